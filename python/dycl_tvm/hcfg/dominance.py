# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dominator trees of plain graphs (nodes are the numbers 0 to n - 1).

Method: T. Lengauer and R. Tarjan, "A fast algorithm for finding dominators in a flowgraph", TOPLAS 1979, the version
with path compression, O(m log n), written without recursion.
"""

from __future__ import annotations

from collections.abc import Sequence


def immediate_dominators(successors: Sequence[Sequence[int]], root: int) -> list[int]:
    """Return the immediate dominator of each node; the root's is the root, an unreachable node's is -1."""
    n = len(successors)
    number = [-1] * n  # depth-first numbers
    order: list[int] = []
    parent = [-1] * n
    stack = [(root, -1)]
    while stack:
        node, above = stack.pop()
        if number[node] >= 0:
            continue
        number[node], parent[node] = len(order), above
        order.append(node)
        stack.extend((s, node) for s in reversed(successors[node]) if number[s] < 0)
    predecessors: list[list[int]] = [[] for _ in range(n)]
    for node in order:
        for s in successors[node]:
            predecessors[s].append(node)

    semi = list(number)
    best = list(range(n))  # the node of least semidominator on the compressed path to the forest's root
    ancestor = [-1] * n
    idom = [-1] * n
    bucket: list[list[int]] = [[] for _ in range(n)]

    def least(node: int) -> int:
        path = []
        while ancestor[node] >= 0 and ancestor[ancestor[node]] >= 0:
            path.append(node)
            node = ancestor[node]
        for below in reversed(path):
            above = ancestor[below]
            if semi[best[above]] < semi[best[below]]:
                best[below] = best[above]
            ancestor[below] = ancestor[above]
        return best[path[0] if path else node]

    for node in reversed(order[1:]):
        for p in predecessors[node]:
            semi[node] = min(semi[node], semi[least(p)])
        bucket[order[semi[node]]].append(node)
        above = parent[node]
        ancestor[node] = above
        for held in bucket[above]:
            lowest = least(held)
            idom[held] = lowest if semi[lowest] < semi[held] else above
        bucket[above].clear()
    for node in order[1:]:
        if idom[node] != order[semi[node]]:
            idom[node] = idom[idom[node]]
    idom[root] = root
    return idom
