# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Minimum cut of a small graph: the cheapest way to give each node one of two labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

INFINITE = float("inf")


class MinCut:
    """A problem of labelling: costs for nodes that have a label, and for pairs that have different ones.

    Solved by augmenting shortest paths (Edmonds and Karp, 1972); graphs here have some hundred nodes.
    """

    def __init__(self) -> None:
        self._capacity: list[dict[int, float]] = [{}, {}]  # 0: the source (label True), 1: the sink (label False)

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
        while 1 in (parent := self._reach()):
            path, at = [], 1
            while at != 0:
                path.append((parent[at], at))
                at = parent[at]
            flow = min(self._capacity[a][b] for a, b in path)
            if flow == INFINITE:
                raise ValueError("two fixed labels contradict each other")
            for a, b in path:
                self._capacity[a][b] -= flow
                self._capacity[b][a] += flow
        return [k in parent for k in range(len(self._capacity))]

    def _reach(self) -> dict[int, int]:
        """Return the predecessor of each node that the source still reaches."""
        parent = {0: 0}
        queue = deque([0])
        while queue:
            a = queue.popleft()
            for b, capacity in self._capacity[a].items():
                if capacity > 0 and b not in parent:
                    parent[b] = a
                    if b == 1:
                        return parent
                    queue.append(b)
        return parent
