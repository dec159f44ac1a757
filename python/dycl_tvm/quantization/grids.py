# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The grids of what layers read: one for tensors that hold elements of one tensor, where that costs little.

A tensor that is pooled for one layer and joined with another one for a second (the two ways of a U-Net) is rounded once for both then,
in the kernel that makes it; with a grid for each layer it would be stored as float32, and rounded by kernels of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp, Value
from dycl_tvm.passes.integers import MAXIMA, moves
from dycl_tvm.quantization.layers import Layer
from dycl_tvm.quantization.numbers import Grid, Range

#: How much coarser than its own the grid of a layer may be for this: 3.5 dB of what it loses by rounding its input.
_COARSER = 1.5


def grids_of(graph: HCFG, layers: Sequence[tuple[Layer, Range]]) -> dict[Value, Grid]:
    """Return the grid of what each layer reads.

    Parameters
    ----------
    graph : HCFG
        Before its sub-DNNs are formed.
    layers : sequence of (Layer, Range)
        Layers of one weight have one range, and keep one grid.
    """
    made = {v: s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) for v in s.results()}
    above: dict[Any, Any] = {}
    ranges: dict[Any, list[Range]] = {}

    def root(key: Any) -> Any:
        while key in above:
            key = above[key]
        return key

    def join(a: Any, b: Any) -> None:
        first, second = root(a), root(b)
        if first is not second:
            above[first] = second
            ranges.setdefault(second, []).extend(ranges.pop(first, []))

    for layer, found in layers:
        join(layer.x, layer.weight)
        ranges.setdefault(root(layer.x), []).append(found)
    readers: dict[Value, list[Value]] = {}
    for layer, _ in layers:
        for source in _sources(layer.x, made):
            for other in readers.setdefault(source, []):
                if _serves(ranges[root(layer.x)] + ranges[root(other)]):
                    join(layer.x, other)
            readers[source].append(layer.x)
    return {layer.x: _grid(ranges[root(layer.x)]) for layer, _ in layers}


def _grid(ranges: Sequence[Range]) -> Grid:
    return Grid.of(reduce(Range.joined, ranges))


def _serves(ranges: Sequence[Range]) -> bool:
    """Whether one grid for all is fine enough for each."""
    scale = _grid(ranges).scale
    return all(scale <= _COARSER * Grid.of(r).scale for r in ranges)


def _sources(value: Value, made: Mapping[Value, TensorOp]) -> list[Value]:
    """Return the tensors whose elements a tensor holds, and nothing else but borders: itself, and what it was moved and joined of."""
    found, pending = dict.fromkeys([value]), [value]
    while pending:
        step = made.get(pending.pop())
        if step is None or not (step.op == "aten.cat.default" or step.op in MAXIMA or moves(step.op, "uint8")):
            continue
        of = step.args[0] if isinstance(step.args[0], (list, tuple)) else [step.args[0]]
        pending += [v for v in of if v not in found and not isinstance(v, Constant)]
        found.update(dict.fromkeys(pending))
    return list(found)
