# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Minimum cut: the cheapest way to give each node one of two labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

INFINITE = float("inf")


class MinCut:
    """A problem of labelling: costs for nodes that have a label, and for pairs that have different ones.

    Nodes whose label no finite cost can change are labelled first. What is left falls apart into components, small ones however
    many layers a network has, and each is solved by augmenting shortest paths (Edmonds and Karp, 1972).
    """

    def __init__(self) -> None:
        # 0: the source (label True), 1: the sink (label False); every edge has an opposite one, if of no capacity
        self._capacity: list[dict[int, float]] = [{}, {}]

    def node(self) -> int:
        """Return a new node."""
        self._capacity.append({})
        return len(self._capacity) - 1

    def different(self, a: int, b: int, cost: float) -> None:
        """Add what it costs if two nodes have different labels."""
        self._add(a, b, cost)
        self._add(b, a, cost)

    def any_different(self, a: int, others: Sequence[int], cost: float) -> None:
        """Add what it costs, once, if any of ``others`` has not the label of ``a``."""
        to_false, to_true = self.node(), self.node()
        self._add(a, to_false, cost)
        self._add(to_true, a, cost)
        for other in others:
            self._add(to_false, other, INFINITE)
            self._add(other, to_true, INFINITE)

    def fix(self, node: int, label: bool, cost: float = INFINITE) -> None:
        """Add what it costs if a node has not this label."""
        if label:
            self._add(0, node, cost)
        else:
            self._add(node, 1, cost)

    def _add(self, a: int, b: int, cost: float) -> None:
        if a != b:
            self._capacity[a][b] = self._capacity[a].get(b, 0.0) + cost
            self._capacity[b].setdefault(a, 0.0)

    def solve(self) -> list[bool]:
        """Return the label of every node by number; where costs tie, False."""
        bound = {True: self._bound_to(0), False: self._bound_to(1)}
        if bound[True] & bound[False]:
            raise ValueError("two fixed labels contradict each other")
        label = [k in bound[True] for k in range(len(self._capacity))]
        for members in self._components(bound[True] | bound[False]):
            number = {node: k for k, node in enumerate(members, start=2)}
            residual: list[dict[int, float]] = [{} for _ in range(len(members) + 2)]
            for node in members:
                for other, cost in self._capacity[node].items():
                    end = number.get(other, 0 if label[other] else 1)
                    residual[number[node]][end] = residual[number[node]].get(end, 0.0) + cost
                    if end < 2:
                        residual[end][number[node]] = residual[end].get(number[node], 0.0) + self._capacity[other][node]
            reached = _after_augmenting(residual)
            for node, k in number.items():
                label[node] = k in reached
        return label

    def _bound_to(self, end: int) -> set[int]:
        """Return the nodes that no finite cut separates from the source (0) or the sink (1)."""
        bound = {end}
        waiting = [end]
        while waiting:
            node = waiting.pop()
            for other, cost in self._capacity[node].items():
                if other not in bound and (cost if end == 0 else self._capacity[other][node]) == INFINITE:
                    bound.add(other)
                    waiting.append(other)
        return bound

    def _components(self, without: set[int]) -> Iterator[list[int]]:
        """Yield the connected parts of what is left when some nodes are taken out."""
        seen = set(without)
        for start in range(len(self._capacity)):
            if start in seen:
                continue
            seen.add(start)
            members = [start]
            for node in members:
                for other in self._capacity[node]:
                    if other not in seen:
                        seen.add(other)
                        members.append(other)
            yield members


def _after_augmenting(residual: list[dict[int, float]]) -> dict[int, int]:
    """Send as much flow from node 0 to node 1 as there is room for; return what node 0 reaches then."""
    while 1 in (parent := _reach(residual)):
        path, at = [], 1
        while at != 0:
            path.append((parent[at], at))
            at = parent[at]
        flow = min(residual[a][b] for a, b in path)
        for a, b in path:
            residual[a][b] -= flow
            residual[b][a] += flow
    return parent


def _reach(residual: list[dict[int, float]]) -> dict[int, int]:
    """Return the predecessor of each node that node 0 reaches, as far as it takes to reach node 1."""
    parent = {0: 0}
    queue = deque([0])
    while queue:
        a = queue.popleft()
        for b, capacity in residual[a].items():
            if capacity > 0 and b not in parent:
                parent[b] = a
                if b == 1:
                    return parent
                queue.append(b)
    return parent
