# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A quantisation moves before paddings and before maxima of neighbours, so that they read 8 bits, and takes the place of clamps.

Invariant: the integers are the same for every input. To quantise is to multiply by a positive number, to round, to add and to clamp: none
of them changes the order of numbers. So the largest one of a window becomes the largest integer; and a clamp before is nothing else than
the last one, if its ends become the ends of the integers. NaN has no place in that order: it passes clamps, and a maximum is exchanged
only where what it reads is never NaN: exact sums of integers times finite factors, and what is done to them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.hcfg.nodes import HCFG, Constant, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import QUANTIZE, SCALED
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import count_uses, static_argument

_PAD = "aten.constant_pad_nd.default"
#: Maxima of a window, whose first operand is what they read.
_MAXIMA = frozenset({"aten.max_pool2d_with_indices.default", "aten.max_pool2d.default"})
#: Clamps, and the names of their ends.
_CLAMPS: dict[str, tuple[str, str]] = {
    "aten.relu.default": ("", ""), "aten.hardtanh.default": ("min_val", "max_val"), "aten.clamp.default": ("min", "max"),
}  # fmt: skip


def early_quantisation(graph: HCFG) -> int:
    """Exchange quantisations with what makes their operands, where nothing else reads these; return how many were."""
    uses = count_uses(graph)
    made = {v: s for block in graph.blocks for s in block.steps if isinstance(s, TensorOp) for v in s.results()}
    changes = 0
    for block in graph.blocks:
        kept: list[Step] = []
        for step in block.steps:
            source = made.get(step.args[0]) if isinstance(step, TensorOp) and step.op == QUANTIZE and uses[step.args[0]] == 1 else None
            new = _exchanged(step, source, made) if isinstance(step, TensorOp) and source is not None else None
            changes += new is not None
            kept += [step] if new is None else new
        block.steps = kept
    return changes


def _exchanged(step: TensorOp, source: TensorOp, made: dict[Value, TensorOp]) -> list[TensorOp] | None:
    x, inverse, zero = source.args[0], *step.args[1:3]
    known = all(isinstance(c, Constant) and c.data.numel() == 1 and c.data.dtype == torch.float32 for c in (inverse, zero))
    if not known or not 1e-37 < float(inverse.data) < 1e37 or not math.isfinite(float(zero.data)):
        return None
    if not isinstance(x, Value) or isinstance(x, Constant) or any(v is not None for v in source.outputs[1:]):
        return None
    if source.op in _CLAMPS:
        return [_quantise(step, x, step.outputs[0])] if _clamps(step, source) else None
    if source.op == _PAD:
        filling = static_argument(source, "value")
        if not _is_finite(filling):
            return None
        return _before(step, source, (x, static_argument(source, "pad"), _integer(step, filling)))
    # a window of spread taps may lie outside the image: its maximum is the least number of the type
    if source.op in _MAXIMA and not source.kwargs and step.args[3] == torch.iinfo(step.args[5]).min and _is_never_nan(x, made):
        return _before(step, source, source.args)
    return None


def _before(step: TensorOp, source: TensorOp, args: tuple[Any, ...]) -> list[TensorOp]:
    """Return the steps that quantise what an operation reads, and the operation on integers with such arguments."""
    x, out = args[0], step.outputs[0]
    assert out is not None and isinstance(out.type, TensorType)
    q = Value(TensorType(x.type.shape, out.type.dtype), x.name)
    return [_quantise(step, x, q), TensorOp(source.op, (q, *args[1:]), {}, (out, *source.outputs[1:]), source.origin)]


def _quantise(step: TensorOp, x: Value, out: Value | None) -> TensorOp:
    return TensorOp(QUANTIZE, (x, *step.args[1:]), dict(step.kwargs), (out,), step.origin)


def _integer(step: TensorOp, number: float) -> int:
    """Return what a number becomes."""
    inverse, zero, low, high, dtype = step.args[1:6]
    return int(torch.ops.dycl_quantized.quantize(torch.tensor(number, dtype=torch.float32), inverse.data, zero.data, low, high, dtype))


def _clamps(step: TensorOp, source: TensorOp) -> bool:
    """Whether a quantisation clamps as a clamp before it does."""
    names, (low, high) = _CLAMPS[source.op], step.args[3:5]
    ends = (0.0, None) if not names[0] else tuple(static_argument(source, name) for name in names)
    if not all(_is_finite(end) and not isinstance(end, Constant) for end in ends):
        return False
    return all(end is None or _integer(step, end) == limit for end, limit in zip(ends, (low, high)))


def _is_never_nan(value: Any, made: dict[Value, TensorOp]) -> bool:
    """Whether a float32 tensor has no NaN, whatever the inputs are."""
    while isinstance(value, Value):
        step = made.get(value)
        if step is None:
            return False
        if step.op == SCALED:
            return _is_finite(step.args[1])
        # of infinities too these make numbers, if all but their first argument are finite
        known = step.op in _CLAMPS or step.op in _MAXIMA or (step.op == "aten.add.Tensor" and isinstance(step.args[1], Constant))
        if not known or not all(_is_finite(a) for a in (*step.args[1:], *step.kwargs.values())):
            return False
        value = step.args[0]
    return False


def _is_finite(argument: Any) -> bool:
    """Whether an argument is one or more numbers that float32 has, or none at all."""
    if isinstance(argument, Constant):
        return bool(torch.isfinite(argument.data).all())
    if isinstance(argument, (list, tuple)):
        return all(_is_finite(a) for a in argument)
    return argument is None or (isinstance(argument, (bool, int, float)) and abs(argument) < 3e38)
