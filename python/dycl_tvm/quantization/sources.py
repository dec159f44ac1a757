# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which tensors that layers read are made of one tensor, by operations that read its integers where both have one grid.

The tensor at the end of a U-Net's level is an example: a layer reads the maxima of its windows, another one reads it behind a
concatenation. On two grids it would be written as float32 and quantised twice; on one grid the layer that makes it writes its integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp, Value
from dycl_tvm.passes.early_quantisation import reads_integers


def families(graph: HCFG, read: Collection[Value]) -> list[list[Value]]:
    """Return the tensors that have elements of one tensor, for each such tensor of which there are several.

    Parameters
    ----------
    graph : HCFG
        Before its layers are rounded.
    read : collection of Value
        What layers read.
    """
    made = {v: s for block in graph.blocks for s in block.steps if isinstance(s, TensorOp) for v in s.results()}
    found = {value: [value] for value in read}
    for value in read:
        for source in _sources(value, made, read):
            found.setdefault(source, []).append(value)
    return [values for values in found.values() if len(values) > 1]


def _sources(value: Value, made: dict[Value, TensorOp], ends: Collection[Value]) -> Iterator[Value]:
    """Yield the tensors whose elements a value has, as far as the first ones that are rounded themselves."""
    waiting, seen = [value], {value}
    while waiting:
        here = waiting.pop()
        step = made.get(here)
        if step is not None and (here is value or here not in ends) and reads_integers(step):
            new = [v for v in dict.fromkeys(step.operands()) if not isinstance(v, Constant) and v not in seen]
            seen.update(new)
            waiting += new
            yield from new
