# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A quantisation moves before what only moves and joins elements, before paddings and before maxima of neighbours, so that they read 8
bits, takes the place of clamps, and of what was dequantised on its own grid is what that was.

Invariant: the integers are the same for every input. To quantise is to multiply by a positive number, to round, to add and to clamp: none
of them changes the order of numbers. So the largest one of a window becomes the largest integer; and a clamp before is nothing else than
the last one, if its ends become the ends of the integers. NaN has no place in that order: it passes clamps, and a maximum is exchanged
only where what it reads is never NaN: exact sums of integers times finite factors, and what is done to them. A dequantised integer is
quantised to itself on its own grid: of at most 2^16 steps the roundings in between, and of the scale, are far less than half of one.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import HCFG, Constant, Operand, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import DEQUANTIZE, QUANTIZE, QUANTIZES
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.integers import CLAMPS, MAXIMA, is_finite, is_never_nan, moves
from dycl_tvm.passes.rewrite import count_uses, static_argument, substitute

_PAD, _CAT = "aten.constant_pad_nd.default", "aten.cat.default"


def early_quantisation(graph: HCFG) -> int:
    """Exchange quantisations with what makes their operands, where nothing else reads these; return how many were."""
    uses = count_uses(graph)
    made = {v: s for block in graph.blocks for s in block.steps if isinstance(s, TensorOp) for v in s.results()}
    same: dict[Value, Operand] = {}
    changes = 0
    for block in graph.blocks:
        kept: list[Step] = []
        for step in block.steps:
            source = made.get(step.args[0]) if isinstance(step, TensorOp) and step.op in QUANTIZES else None
            if not isinstance(step, TensorOp) or source is None or not _is_known(step):
                kept.append(step)
            elif _is_inverse(step, source):
                assert step.outputs[0] is not None
                same[step.outputs[0]] = source.args[0]
                changes += 1
            else:
                new = _exchanged(step, source, made) if uses[step.args[0]] == 1 else None
                changes += new is not None
                kept += [step] if new is None else new
        block.steps = kept
    substitute(graph, same)
    return changes


def reads_integers(step: TensorOp) -> bool:
    """Whether an operation of this kind may read the uint8 that its result is quantised to."""
    return step.op in (_PAD, _CAT) or step.op in MAXIMA or _moves_all(step, "uint8")


def _moves_all(step: TensorOp, dtype: str) -> bool:
    """Whether an operation moves the elements of one tensor and leaves out none: no more may be quantised than before."""
    if not moves(step.op, dtype) or len(step.operands()) != 1:  # a move of a tensor that was quantised is none of these
        return False
    (x,), (out, *_) = step.operands(), step.outputs
    return out is not None and x.type.numel <= out.type.numel  # type: ignore[union-attr]  # both are tensors


def _is_known(step: TensorOp) -> bool:
    """Whether the grid of a quantisation is one, and has numbers that can be computed with."""
    unit, zero = step.args[1:3]
    if not all(isinstance(c, Constant) and c.data.numel() == 1 and c.data.dtype == torch.float32 for c in (unit, zero)):
        return False
    return 1e-37 < float(unit.data) < 1e37 and math.isfinite(float(zero.data))


def _is_inverse(step: TensorOp, source: TensorOp) -> bool:
    """Whether a quantisation undoes a dequantisation."""
    if source.op != DEQUANTIZE or step.outputs[0] is None or step.outputs[0].type != source.args[0].type:
        return False
    scale, zero = source.args[1:]
    if not all(isinstance(c, Constant) and c.data.numel() == 1 for c in (scale, zero)) or not 1e-30 < float(scale.data) < 1e30:
        return False
    unit, point, low, high, dtype = step.args[1:6]
    ratio = float(unit.data) * float(scale.data) if step.op == QUANTIZE else float(unit.data) / float(scale.data)
    whole = float(zero.data) == float(point.data) == round(float(zero.data)) and abs(float(zero.data)) < 2**15
    limits = torch.iinfo(dtype)
    return whole and abs(ratio - 1) < 1e-6 and limits.bits == 8 and low <= limits.min and limits.max <= high


def _exchanged(step: TensorOp, source: TensorOp, made: dict[Value, TensorOp]) -> list[TensorOp] | None:
    if any(v is not None for v in source.outputs[1:]):
        return None
    if source.op == _CAT:
        return _of_parts(step, source, made)
    x = source.args[0] if source.args else None
    if not isinstance(x, Value) or isinstance(x, Constant):
        return None
    if _moves_all(source, step.outputs[0].type.dtype):  # type: ignore[union-attr]  # quantised tensors are tensors
        return _before(step, source, source.args)
    if source.op in CLAMPS:
        return [_quantise(step, x, step.outputs[0])] if _clamps(step, source) else None
    if source.op == _PAD:
        filling = static_argument(source, "value")
        if not is_finite(filling):
            return None
        return _before(step, source, (x, static_argument(source, "pad"), _integer(step, filling)))
    # a window of spread taps may lie outside the image: its maximum is the least number of the type
    if source.op in MAXIMA and not source.kwargs and step.args[3] == torch.iinfo(step.args[5]).min and is_never_nan(x, made):
        return _before(step, source, source.args)
    return None


def _before(step: TensorOp, source: TensorOp, args: tuple[Any, ...]) -> list[TensorOp]:
    """Return the steps that quantise what an operation reads, and the operation on integers with such arguments."""
    x, out = args[0], step.outputs[0]
    assert out is not None and isinstance(out.type, TensorType)
    q = Value(TensorType(x.type.shape, out.type.dtype), x.name)
    kwargs = {} if source.op == _PAD else dict(source.kwargs)  # all arguments of a padding are given
    return [_quantise(step, x, q), TensorOp(source.op, (q, *args[1:]), kwargs, (out, *source.outputs[1:]), source.origin)]


def _quantise(step: TensorOp, x: Value, out: Value | None) -> TensorOp:
    return TensorOp(step.op, (x, *step.args[1:]), dict(step.kwargs), (out,), step.origin)


def _of_parts(step: TensorOp, source: TensorOp, made: dict[Value, TensorOp]) -> list[TensorOp] | None:
    """Return the steps that quantise the parts of a tensor and then join them, where each part is computed by an operation."""
    parts, out = source.args[0], step.outputs[0]
    assert out is not None and isinstance(out.type, TensorType)
    if not all(part in made and part.type.dtype == "float32" for part in parts):
        return None
    whole = {part: Value(TensorType(part.type.shape, out.type.dtype), part.name) for part in dict.fromkeys(parts)}
    steps = [_quantise(step, part, q) for part, q in whole.items()]
    args = ([whole[part] for part in parts], *source.args[1:])
    return [*steps, TensorOp(source.op, args, dict(source.kwargs), (out,), source.origin)]


def _integer(step: TensorOp, number: float) -> int:
    """Return what a number becomes."""
    unit, zero, low, high, dtype = step.args[1:6]
    return int(resolve(step.op)(torch.tensor(number, dtype=torch.float32), unit.data, zero.data, low, high, dtype))


def _clamps(step: TensorOp, source: TensorOp) -> bool:
    """Whether a quantisation clamps as a clamp before it does."""
    names, (low, high) = CLAMPS[source.op], step.args[3:5]
    ends = (0.0, None) if not names[0] else tuple(static_argument(source, name) for name in names)
    if not all(is_finite(end) and not isinstance(end, Constant) for end in ends):
        return False
    return all(end is None or _integer(step, end) == limit for end, limit in zip(ends, (low, high)))
