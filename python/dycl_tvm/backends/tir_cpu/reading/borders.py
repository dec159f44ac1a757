# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recognising operators that put one number around an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.tir_cpu.reading.channelwise_op import ChannelwiseOp
from dycl_tvm.backends.tir_cpu.reading.ranges import Decider, branches, conjunction, is_conditional


@dataclass(frozen=True)
class Border:
    """Rows above, columns to the left, rows below and columns to the right of an image, which all hold a whole number."""

    widths: tuple[int, int, int, int]
    number: int


def border(op: ChannelwiseOp) -> Border | None:
    """Return the border that an operator puts around its only input (N, C, H, W), or None if it does anything else."""
    if op.reduction is not None or len(op.params) != 1 or len(op.extents) != 4 or not is_conditional(op.value):
        return None
    condition, inside, outside = branches(op.value)
    if not isinstance(inside, TensorLoad) or not isinstance(outside, tirx.IntImm):
        return None
    before = [_shift(index, axis) for index, axis in zip(inside.indices, op.axes)]
    sizes, spatial = op.inputs[0].shape, op.axes[2:]
    if any(b is None for b in before) or before[:2] != [0, 0] or sizes[:2] != op.extents[:2]:
        return None
    first = [int(b) for b in before[2:] if b is not None]
    decide, atoms = Decider(), conjunction(condition)
    for axis, extent, begin, size in zip(spatial, op.extents[2:], first, sizes[2:]):
        own = [a for a in atoms if any(v.same_as(axis) for v in decide.of(a).variables)]
        # each condition is of one axis alone, and together they hold exactly where the image lies
        for place in range(extent):
            known = [decide(a, {axis: (place,)}) for a in own]
            if None in known or all(known) != (begin <= place < begin + size):
                return None
        atoms = [a for a in atoms if not any(a.same_as(o) for o in own)]
    if any(decide(a, {}) != 1 for a in atoms):
        return None
    last = [extent - begin - size for extent, begin, size in zip(op.extents[2:], first, sizes[2:])]
    return Border((first[0], first[1], last[0], last[1]), int(outside)) if min(*first, *last) >= 0 else None


def _shift(index: Any, axis: Any) -> int | None:
    """Return the number that is taken off an axis to make an index, or None if it is no such index."""
    parts = tvm.sym.detect_linear_equation(index, [axis])
    if len(parts) != 2 or not all(isinstance(n, tirx.IntImm) for n in parts) or int(parts[0]) != 1:
        return None
    return -int(parts[1])
