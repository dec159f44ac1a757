# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Layered layout of a directed graph, so that pictures need no Graphviz.

Method: K. Sugiyama et al., "Methods for visual understanding of hierarchical system structures", 1981: layers by longest
path, long edges through dummy nodes, few crossings by barycentres. Coordinates: each layer in turn goes as near to its
neighbours as the widths allow, which is an isotonic regression (pool adjacent violators).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 8


@dataclass
class Layout:
    """Centres of the nodes, and for each edge the points that it passes, from its source to its target.

    ``layer`` numbers the layers from the top; ``back`` tells which edges lead upwards.
    """

    x: list[float]
    layer: list[int]
    routes: list[list[tuple[float, int]]]
    back: list[bool]


def layered(order: Sequence[int], edges: Sequence[tuple[int, int]], widths: Sequence[float], gap: float) -> Layout:
    """Lay out a graph.

    Parameters
    ----------
    order : sequence of int
        The nodes (all of them), sources before targets except along edges that lead back.
    edges : sequence of (source, target)
    widths : sequence of float
        Width of each node.
    gap : float
        Space between neighbours.

    Returns
    -------
    Layout
        The points of a route are (x, layer).
    """
    position = {node: k for k, node in enumerate(order)}
    back = [position[t] <= position[s] for s, t in edges]
    layer = [0] * len(order)
    down: list[list[int]] = [[] for _ in order]
    for (s, t), up in zip(edges, back):
        if not up:
            down[s].append(t)
    for node in order:
        for t in down[node]:
            layer[t] = max(layer[t], layer[node] + 1)

    sizes = list(widths)
    layers = list(layer)
    links: list[tuple[int, int]] = []  # between neighbouring layers, downwards
    chains: list[list[int]] = []
    for (s, t), up in zip(edges, back):
        top, bottom = (t, s) if up else (s, t)
        chain = [top]
        for depth in range(layer[top] + 1, layer[bottom]):
            chain.append(len(sizes))
            sizes.append(gap / 2)
            layers.append(depth)
        chain.append(bottom)
        if layer[top] < layer[bottom]:
            links.extend(itertools.pairwise(chain))
        chains.append(chain[::-1] if up else chain)

    rows: list[list[int]] = [[] for _ in range(max(layers, default=0) + 1)]
    for node in [*order, *range(len(order), len(sizes))]:
        rows[layers[node]].append(node)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for s, t in links:
        below[s].append(t)
        above[t].append(s)
    x = _coordinates(_uncrossed(rows, above, below), above, below, sizes, gap)
    routes = [[(x[n], layers[n]) for n in chain] for chain in chains]
    return Layout(x[: len(order)], layer, routes, back)


def _uncrossed(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Order the nodes of each row by the mean place of their neighbours, downwards and upwards in turn."""
    place: dict[int, float] = {}
    for row in rows:
        place.update((node, k) for k, node in enumerate(row))
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            mean = {n: sum(place[m] for m in neighbours[n]) / len(neighbours[n]) if neighbours[n] else place[n] for n in row}
            row.sort(key=mean.__getitem__)
            place.update((node, k) for k, node in enumerate(row))
    return rows


def _coordinates(rows: list[list[int]], above: list[list[int]], below: list[list[int]], sizes: Sequence[float], gap: float) -> list[float]:
    x = [0.0] * len(sizes)
    offsets: list[list[float]] = []
    for row in rows:
        at, offset = 0.0, []
        for k, node in enumerate(row):
            at += (sizes[row[k - 1]] + sizes[node]) / 2 + gap if k else 0.0
            offset.append(at)
            x[node] = at
        offsets.append(offset)
        middle = at / 2
        for node in row:
            x[node] -= middle
    for sweep in range(SWEEPS):
        turn = list(zip(rows, offsets))
        for row, offset in reversed(turn) if sweep % 2 else turn:
            wanted = []
            for node, shift in zip(row, offset):
                near = (below if sweep % 2 else above)[node] or above[node] or below[node]
                mean = sum(x[n] for n in near) / len(near) if near else x[node]
                wanted.append(mean - shift)
            for node, shift, value in zip(row, offset, _isotonic(wanted)):
                x[node] = value + shift
    left = min((v - w / 2 for v, w in zip(x, sizes)), default=0.0)
    return [v - left for v in x]


def _isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence, in the sense of least squares."""
    pools: list[tuple[float, int]] = []  # sum, length
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            previous, length = pools.pop()
            total, count = total + previous, count + length
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
