# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A quantisation moves before a maximum of neighbours, so that what is computed before it lies in memory as 8 bits.

Invariant: the integers are the same for every input. To quantise is to multiply by a positive number, to round, to add and to clamp: none of them
changes the order of numbers, so the largest one of a window becomes the largest integer. NaN has no place in that order; so the
operation moves only where what the maximum reads is never NaN: exact sums of integers times finite factors, and what is done to them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.hcfg.nodes import HCFG, Constant, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import QUANTIZE, SCALED
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import count_uses

#: Maxima of a window, whose first operand is what they read.
_MAXIMA = frozenset({"aten.max_pool2d_with_indices.default", "aten.max_pool2d.default"})
#: Operations that give numbers for numbers, infinities among them, where all but their first argument are finite.
_KEEP_NUMBERS = frozenset({"aten.relu.default", "aten.hardtanh.default", "aten.clamp.default", "aten.clamp_min.default", *_MAXIMA})


def early_quantisation(graph: HCFG) -> int:
    """Quantise what maxima read instead of their results, where nothing else reads these; return how many were moved."""
    uses = count_uses(graph)
    made = {v: s for block in graph.blocks for s in block.steps if isinstance(s, TensorOp) for v in s.results()}
    changes = 0
    for block in graph.blocks:
        kept: list[Step] = []
        for step in block.steps:
            maximum = made.get(step.args[0]) if isinstance(step, TensorOp) and step.op == QUANTIZE else None
            if not isinstance(step, TensorOp) or maximum is None or not _moves(step, maximum, made) or uses[step.args[0]] > 1:
                kept.append(step)
                continue
            source, out = maximum.args[0], step.outputs[0]
            assert out is not None and isinstance(out.type, TensorType)
            q = Value(TensorType(source.type.shape, out.type.dtype), source.name)
            kept.append(TensorOp(QUANTIZE, (source, *step.args[1:]), dict(step.kwargs), (q,), step.origin))
            kept.append(TensorOp(maximum.op, (q, *maximum.args[1:]), dict(maximum.kwargs), (out, *maximum.outputs[1:]), maximum.origin))
            changes += 1
        block.steps = kept
    return changes


def _moves(step: TensorOp, maximum: TensorOp, made: dict[Value, TensorOp]) -> bool:
    inverse, source = step.args[1], maximum.args[0]
    if maximum.op not in _MAXIMA or any(v is not None for v in maximum.outputs[1:]):
        return False
    positive = isinstance(inverse, Constant) and inverse.data.numel() == 1 and 1e-37 < float(inverse.data) < 1e37
    return positive and isinstance(step.args[2], Constant) and isinstance(source, Value) and _is_never_nan(source, made)


def _is_never_nan(value: Any, made: dict[Value, TensorOp]) -> bool:
    """Whether a float32 tensor has no NaN, whatever the inputs are."""
    while isinstance(value, Value):
        step = made.get(value)
        if step is None:
            return False
        if step.op == SCALED:
            return _is_finite(step.args[1])
        known = step.op in _KEEP_NUMBERS or (step.op == "aten.add.Tensor" and isinstance(step.args[1], Constant))
        if not known or not all(_is_finite(a) for a in (*step.args[1:], *step.kwargs.values())):
            return False
        value = step.args[0]
    return False


def _is_finite(argument: Any) -> bool:
    """Whether an argument is one or more numbers, or none at all."""
    if isinstance(argument, Constant):
        return bool(torch.isfinite(argument.data).all())
    if isinstance(argument, (list, tuple)):
        return all(_is_finite(a) for a in argument)
    return argument is None or (isinstance(argument, (bool, int, float)) and math.isfinite(argument))
