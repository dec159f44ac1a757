# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Integer arithmetic, without weights: what moves, joins, compares or averages dequantised tensors does so with their integers.

A part of :mod:`integer_products`. Elements that are moved, and the largest one of a window, are those of their integers, exactly: numbers
of one grid are in the order of their integers. An average is the exact sum of a window's integers, less the zero points, times
``float32(scale / elements)``: what the sum of float32 is but for its roundings.
"""

from __future__ import annotations

import math

import torch

from dycl_tvm.hcfg.nodes import TensorOp, Value
from dycl_tvm.hcfg.quantized import ADD, BYTES, DECOMPOSED, DEQUANTIZE, QUANTIZE, QUANTIZES, SCALED, SIGNED, WINDOW_SUMS
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.integers import MAXIMA, MIDDLE, Known, Scaled, Steps, has_one_scale, is_float32, is_never_nan, moves, number, pair
from dycl_tvm.passes.rewrite import static_argument

_AVERAGES = frozenset({
    "aten.avg_pool2d.default", "aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default", "aten.mean.dim",
})  # fmt: skip
_PAD, _CAT, _SUM = "aten.constant_pad_nd.default", "aten.cat.default", "aten.add.Tensor"
#: How many integers of 8 bits there may be in a window such that their sum fits an int32.
_MOST = 2**31 // 256


def moved(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Return the steps in the place of one that needs no more of dequantised tensors than their integers; None if it is another."""
    if step.op in MAXIMA or step.op == _PAD or moves(step.op, "uint8"):
        return _moved(step, known)
    if step.op in _AVERAGES:
        return _averaged(step, known)
    if step.op == _CAT:
        return _joined(step, known)
    if step.op == _SUM:
        return _added(step, known)
    if step.op.startswith(f"{DECOMPOSED}.quantize_per_tensor."):
        return _quantised(step, known)
    if step.op in QUANTIZES:
        return _in_bytes(step, known)
    return _dequantised(step, known) if has_one_scale(step.op) else None


def _moved(step: TensorOp, known: Known) -> list[TensorOp] | None:
    source, out = known.activation(step.args[0]), step.outputs[0]
    if out is None or len(step.operands()) != 1 or not is_float32(out) or any(v is not None for v in step.outputs[1:]):
        return None
    if source is None:
        return _moved_of_call(step, known)
    if step.op not in MAXIMA and step.op != _PAD and not moves(step.op, source.type.dtype):
        return None
    args, kwargs = step.args[1:], step.kwargs
    if step.op == _PAD:
        if static_argument(step, "value") != 0 or not _fits(source):
            return None
        args, kwargs = (static_argument(step, "pad"), source.zero), {}
    if step.op in MAXIMA and pair(static_argument(step, "dilation")) != [1, 1]:
        return None  # windows of spread taps may hold nothing of the image
    if step.op == "aten.clone.default" and step.kwargs:
        return None
    made = Steps(step.origin)
    dtype = source.type.dtype
    if step.op in MAXIMA:
        q = Value(TensorType(out.type.shape, dtype))  # type: ignore[union-attr]
        made.steps.append(TensorOp(step.op, (source.q, *args), dict(kwargs), (q, *step.outputs[1:]), step.origin))
    else:
        q = made.add(step.op, (source.q, *args), out.type, dtype, kwargs=kwargs)
    return made.dequantised(q, source, known, out)


def _moved_of_call(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Move integers whose scale each call chooses."""
    source, out = known.dynamic(step.args[0]), step.outputs[0]
    dequantised = known.maker(step.args[0])
    if source is None or dequantised is None or out is None or not moves(step.op, source.type.dtype):
        return None
    made = Steps(step.origin)
    q = made.add(step.op, (source.q, *step.args[1:]), out.type, source.type.dtype, kwargs=step.kwargs)
    return [*made.steps, TensorOp(dequantised.op, (q, *dequantised.args[1:]), dict(dequantised.kwargs), (out,), step.origin)]


def _fits(x: Scaled) -> bool:
    """Whether the integers of a tensor have one that stands for zero."""
    info = torch.iinfo(getattr(torch, x.type.dtype))
    return bool(info.min <= x.zero <= info.max)


def _joined(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Join tensors of one grid."""
    parts, out = [known.activation(v) for v in step.args[0]], step.outputs[0]
    first = parts[0]
    if first is None or out is None or not is_float32(out) or any(p is None or p.grid != first.grid for p in parts):
        return None
    made = Steps(step.origin)
    q = made.add(step.op, ([p.q for p in parts if p is not None], *step.args[1:]), out.type, first.type.dtype, kwargs=step.kwargs)
    return made.dequantised(q, first, known, out)


def _added(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Return the sum with a dequantised tensor: what one kernel computes need not lie in memory as float32.

    Of two such tensors the one that is computed first is read as integers: the kernel of the other one can compute the sum.
    """
    out = step.outputs[0]
    if out is None or not is_float32(out) or static_argument(step, "alpha") != 1 or len(step.operands()) != 2:
        return None
    pairs = sorted((step.args[:2], step.args[1::-1]), key=lambda pair: known.position(pair[1]))
    for other, value in pairs:
        found = known.activation(value)
        if found is not None and other.type == value.type == out.type:
            args = (other, found.q, known.number(found.scale), known.number(found.zero))
            return [TensorOp(ADD, args, {}, (out,), step.origin)]
    return None


def _quantised(step: TensorOp, known: Known) -> list[TensorOp] | None:
    x, scale, zero, low, high, dtype = step.args[:6] if len(step.args) == 6 else (None,) * 6
    scale, zero, out = number(scale), number(zero), step.outputs[0]
    if scale is None or zero is None or not scale or not isinstance(low, int) or not isinstance(high, int) or not is_float32(x):
        return None
    new = TensorOp(QUANTIZE, (x, known.number(1.0 / scale), known.number(zero), low, high, dtype), {}, (out,), step.origin)
    return _in_bytes(new, known) or [new]


def _in_bytes(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Return a quantisation to int8 as one to uint8, whose zero point is in the middle; whoever dequantises it can read that one."""
    x, unit, point, low, high, dtype = step.args
    zero, out = number(point), step.outputs[0]
    if dtype != torch.int8 or zero is None or out is None or not (low >= -MIDDLE and high < MIDDLE):
        return None
    if zero != round(zero) or abs(zero) > 2**20:  # float32 adds larger ones otherwise
        return None
    if step.op == QUANTIZE and not is_never_nan(x, known.made):  # for PyTorch NaN is 0, of int8 and of uint8
        return None
    made = Steps(step.origin)
    args = (x, unit, known.number(zero + MIDDLE), low + MIDDLE, high + MIDDLE, torch.uint8)
    made.add(SIGNED, (made.add(step.op, args, out.type, "uint8"),), out.type, "int8", out)
    return made.steps


def _dequantised(step: TensorOp, known: Known) -> list[TensorOp] | None:
    """Return a dequantisation in the words of this pass, of the uint8 where the int8 were made of them, or made of numbers at all."""
    out, q = step.outputs[0], step.args[0]
    scale, zero = number(step.args[1]), number(step.args[2])
    if scale is None or zero is None or out is None or not is_float32(out) or not 0 < scale < float("inf"):
        return None
    source = known.maker(q)
    made = Steps(step.origin)
    if source is not None and source.op == SIGNED:
        q, zero = source.args[0], zero + MIDDLE
    elif source is not None and source.op == QUANTIZE and q.type.dtype == "int8":
        q, zero = made.add(BYTES, (q,), q.type, "uint8"), zero + MIDDLE
    elif step.op == DEQUANTIZE:
        return None
    made.add(DEQUANTIZE, (q, known.number(scale), known.number(zero)), out.type, "float32", out)
    return made.steps


def _averaged(step: TensorOp, known: Known) -> list[TensorOp] | None:
    source, out = known.activation(step.args[0]), step.outputs[0]
    if source is None or out is None or not is_float32(out) or len(source.type.shape) != 4 or not _fits(source):
        return None
    window = _window(step, source.type.shape)
    if window is None or math.prod(window.kernel) > _MOST:
        return None
    # how many elements of the image each window has, and by how many its sum is divided
    ones = torch.ones(1, 1, *source.type.shape[2:], dtype=torch.float64)
    how = (window.kernel, window.stride, window.padding, window.ceil_mode)
    inside = torch.nn.functional.avg_pool2d(ones, *how, divisor_override=1)
    counted = window.divisor(inside, torch.nn.functional.avg_pool2d(ones, *how, count_include_pad=True))
    if bool((inside == inside.flatten()[0]).all()) and bool((counted == counted.flatten()[0]).all()):
        inside, counted = inside[:, :, :1, :1], counted[:, :, :1, :1]
    made = Steps(step.origin)
    zero = source.zero + (MIDDLE if source.type.dtype == "int8" else 0)
    like = TensorType((*source.type.shape[:2], *window.out), "int32")
    total = made.add(WINDOW_SUMS, (made.as_uint8(source), *how), like, "int32")
    if zero:
        shift = (-zero * inside).to(torch.int32)
        total = made.add(_SUM, (total, known.constant(("shift", tuple(shift.flatten().tolist()), shift.shape), shift)), like, "int32")
    factors = (torch.tensor(source.scale, dtype=torch.float64) / counted).to(torch.float32)
    factor = known.constant(("factors", tuple(factors.flatten().tolist()), factors.shape), factors)
    same = out.type == TensorType(like.shape, "float32")
    mean = made.add(SCALED, (total, factor), like, "float32", out if same else None)
    if not same:
        made.add("aten.reshape.default", (mean, list(out.type.shape)), out.type, "float32", out)  # type: ignore[union-attr]
    return made.steps


class _Window:
    """The windows of an average, their results' size, and what is divided by."""

    def __init__(self, kernel: list[int], stride: list[int], padding: list[int], out: tuple[int, ...], ceil_mode: bool = False) -> None:
        self.kernel, self.stride, self.padding, self.out, self.ceil_mode = kernel, stride, padding, out, ceil_mode
        self.override: int | None = None
        self.with_border = True

    def divisor(self, inside: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Return by how many each sum is divided, of the elements inside and of the share of the window that they are."""
        if self.override is not None:
            return torch.full_like(inside, self.override)
        return torch.round(inside / share) if self.with_border else inside


def _window(step: TensorOp, shape: tuple[int, ...]) -> _Window | None:
    size, out = shape[2:], step.outputs[0]
    assert out is not None and isinstance(out.type, TensorType)
    if step.op == "aten.mean.dim":
        dims = static_argument(step, "dim")
        if dims is None or sorted(d % 4 for d in dims) != [2, 3] or static_argument(step, "dtype") is not None:
            return None
        return _Window([*size], [*size], [0, 0], (1, 1))
    results = out.type.shape[2:]
    if "adaptive" in step.op:
        if any(s % o for s, o in zip(size, results)):
            return None
        kernel = [s // o for s, o in zip(size, results)]
        return _Window(kernel, kernel, [0, 0], results)
    kernel = pair(static_argument(step, "kernel_size"))
    window = _Window(
        kernel,
        pair(static_argument(step, "stride"), kernel),
        pair(static_argument(step, "padding")),
        results,
        bool(static_argument(step, "ceil_mode")),
    )
    window.override = static_argument(step, "divisor_override")
    window.with_border = bool(static_argument(step, "count_include_pad"))
    return window if window.override is None or window.override > 0 else None
