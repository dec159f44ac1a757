# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Integer arithmetic: a convolution or product of dequantised tensors becomes exact sums of their integers, which are scaled once.

Invariant: with x = (q - zx) * sx for one scale, and weights (w - zw) * sw for one scale an output channel, the result is
``float32(sum of (q - zx) * (w - zw)) * float32(sx * sw)``, plus the bias: what the original sums are but for their roundings (see
docs/quantization.md). Sums and integer biases fit an int32 for any input, or the operation stays as it is. What follows, such as relu
and quantisation, is element-wise and stays; the backends compute it in the same kernel. A dequantisation moves behind operations that
only move elements. Scales and zero points become tensors of what is computed with, so that layers which differ in them only are one
sub-DNN. Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, 2.2 to 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Origin, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import ADD, CONV2D, DECOMPOSED, DEQUANTIZE, MATMUL, QUANTIZE, SCALED, is_dequantize
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import freeze, static_argument

#: Operations that give elements of their first operand at other places, and take no other tensor.
_MOVES = frozenset({
    "aten.reshape.default", "aten.view.default", "aten.flatten.using_ints", "aten.permute.default", "aten.transpose.int", "aten.t.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default", "aten.unsqueeze.default", "aten.slice.Tensor", "aten.select.int",
})  # fmt: skip
_CONVOLUTIONS = frozenset({"aten.convolution.default", "aten.conv2d.default"})
#: Products with the names of their left side, right side and bias; of those with ``True`` the right side is (n, k).
_PRODUCTS: dict[str, tuple[str, str, str | None, bool]] = {
    "aten.linear.default": ("input", "weight", "bias", True),
    "aten.addmm.default": ("mat1", "mat2", "self", False),
    "aten.mm.default": ("self", "mat2", None, False),
    "aten.matmul.default": ("self", "other", None, False),
}
#: Least and greatest int32 and int8.
_INT32, _INT8 = (-(2**31), 2**31 - 1), (-128, 127)


@dataclass(frozen=True)
class _Scaled:
    """A tensor of real numbers as (q - zero) * scale."""

    q: Value
    scale: float
    zero: int

    @property
    def type(self) -> TensorType:
        """The type of the integers."""
        assert isinstance(self.q.type, TensorType)
        return self.q.type


@dataclass(frozen=True)
class _Weights:
    """Weights as integers, whose zero point is zero: output channels first, with a scale each."""

    data: torch.Tensor
    scales: torch.Tensor
    name: str


class _Quantised:
    """What is known of the values of a graph, and the constants that were made."""

    def __init__(self, graph: HCFG) -> None:
        self._made: dict[Value, TensorOp] = {
            v: step for block in graph.blocks for step in block.steps if isinstance(step, TensorOp) for v in step.results()
        }
        # Unrolled loops and forks repeat layers: equal constants must come out as one.
        self._memo: dict[Any, Any] = {}

    def define(self, step: TensorOp) -> None:
        """Take note of a new step."""
        self._made.update(dict.fromkeys(step.results(), step))

    def activation(self, value: Any) -> _Scaled | None:
        """Return a dequantised value of one scale as integers of 8 bits."""
        step = self._made.get(value) if isinstance(value, Value) else None
        if step is None or not (step.op == DEQUANTIZE or step.op.startswith(f"{DECOMPOSED}.dequantize_per_tensor.")):
            return None
        q, scale, zero = step.args[0], _number(step.args[1]), _number(step.args[2])
        if scale is None or zero is None or not 0 < scale < float("inf") or q.type.dtype not in ("uint8", "int8"):
            return None
        return _Scaled(q, float(torch.tensor(scale, dtype=torch.float32)), int(zero)) if _is_float32(value) else None

    def weights(self, value: Any, channel: int) -> _Weights | None:
        """Return a dequantised constant as integers; ``channel`` is its dimension of the output's channels."""
        step = self._made.get(value) if isinstance(value, Value) else None
        if step is None or not _is_float32(value):
            return None
        if step.op in ("aten.t.default", "aten.transpose.int", "aten.permute.default") and len(value.type.shape) == 2:  # type: ignore[union-attr]
            swapped = step.op != "aten.permute.default" or [d % 2 for d in step.args[1]] == [1, 0]
            swapped = swapped and (step.op != "aten.transpose.int" or step.args[1] % 2 != step.args[2] % 2)
            return self.weights(step.args[0], 1 - channel if swapped else channel)
        if not is_dequantize(step.op) or not isinstance(step.args[0], Constant):
            return None
        key = ("weights", channel, step.op, freeze(step.args, lambda v: v))  # the same integers may be dequantised at several places
        if key not in self._memo:
            self._memo[key] = self._integers(step, channel)
        found: _Weights | None = self._memo[key]
        return found

    @staticmethod
    def _integers(step: TensorOp, channel: int) -> _Weights | None:
        data = step.args[0].data
        if data.dtype not in (torch.int8, torch.uint8):
            return None
        if "per_channel" in step.op:
            scales, zeros, axis = step.args[1:4]
            if axis % data.dim() != channel or not isinstance(scales, Constant) or scales.data.dtype != torch.float32:
                return None
            if zeros is not None and (not isinstance(zeros, Constant) or zeros.data.is_floating_point()):
                return None
            scale = scales.data
            zero = torch.zeros(scale.shape, dtype=torch.int64) if zeros is None else zeros.data.long()
        else:
            one, point = _number(step.args[1]), _number(step.args[2])
            if one is None or point is None:
                return None
            scale = torch.full((data.shape[channel],), one, dtype=torch.float32)
            zero = torch.full((data.shape[channel],), int(point))
        first = data.transpose(0, channel).long() - zero.reshape(-1, *[1] * (data.dim() - 1))
        if not (_within(first, _INT8) and scale.isfinite().all()):
            return None
        return _Weights(first.to(torch.int8).contiguous(), scale, step.args[0].name)

    def bias(self, value: Any, factors: torch.Tensor) -> tuple[torch.Tensor | None, Any]:
        """Return a bias as integers in units of ``factors``, or else as the operand that it is."""
        step = self._made.get(value) if isinstance(value, Value) else None
        if step is None or not is_dequantize(step.op) or not isinstance(step.args[0], Constant) or step.args[0].data.dtype != torch.int32:
            return None, value
        scale, zero = step.args[1], step.args[2]
        if isinstance(scale, Constant):
            scale = scale.data.float().reshape(-1)
        else:
            scale = torch.tensor([scale], dtype=torch.float32)
        points = zero.data if isinstance(zero, Constant) else torch.tensor(0 if zero is None else zero)
        data = step.args[0].data
        by_channel = not any(extent != 1 for extent in data.shape[:-1])  # that of a product may have a number for each row
        if not by_channel or bool(points.any()) or not torch.equal(scale.expand(factors.shape), factors):
            return None, value
        return data.long().reshape(-1), None

    def number(self, value: float) -> Constant:
        """Return a float32 of rank 0."""
        return self.constant(("number", float(value).hex()), torch.tensor(value, dtype=torch.float32))

    def constant(self, key: Any, data: torch.Tensor, name: str = "") -> Constant:
        """Return the one constant of a key."""
        if key not in self._memo:
            data = data.contiguous()
            self._memo[key] = Constant(tensor_type(data), data, name)
        found: Constant = self._memo[key]
        return found


def integer_products(graph: HCFG) -> int:
    """Rewrite convolutions and products of quantised tensors; return how many operations changed."""
    if not any(isinstance(s, TensorOp) and s.op.startswith(f"{DECOMPOSED}.") for b in graph.blocks for s in b.steps):
        return 0
    known = _Quantised(graph)
    changes = 0
    for block in graph.blocks:
        kept: list[Step] = []
        for step in block.steps:
            steps = _rewritten(step, known) if isinstance(step, TensorOp) else None
            changes += steps is not None
            for new in [step] if steps is None else steps:
                kept.append(new)
                if isinstance(new, TensorOp):
                    known.define(new)
        block.steps = kept
    return changes


def _rewritten(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    if step.op in _MOVES:
        return _moved(step, known)
    if step.op in _CONVOLUTIONS:
        return _convolution(step, known)
    if step.op in _PRODUCTS:
        return _product(step, known)
    if step.op.startswith(f"{DECOMPOSED}.quantize_per_tensor."):
        return _quantised(step, known)
    if step.op == "aten.add.Tensor":
        return _sum(step, known)
    return _dequantised(step, known) if step.op.startswith(f"{DECOMPOSED}.dequantize_per_tensor.") else None


def _sum(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    """Return the sum with a dequantised tensor: what one kernel computes need not lie in memory as float32."""
    out = step.outputs[0]
    if out is None or not _is_float32(out) or static_argument(step, "alpha") != 1 or len(step.operands()) != 2:
        return None
    for other, value in (step.args[:2], step.args[1::-1]):
        found = known.activation(value)
        if found is not None and other.type == value.type == out.type:
            args = (other, found.q, known.number(found.scale), known.number(found.zero))
            return [TensorOp(ADD, args, {}, (out,), step.origin)]
    return None


def _quantised(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    x, scale, zero, low, high, dtype = step.args[:6] if len(step.args) == 6 else (None,) * 6
    scale, zero, out = _number(scale), _number(zero), step.outputs[0]
    if scale is None or zero is None or not scale or not isinstance(low, int) or not isinstance(high, int) or not _is_float32(x):
        return None
    return [TensorOp(QUANTIZE, (x, known.number(1.0 / scale), known.number(zero), low, high, dtype), {}, (out,), step.origin)]


def _dequantised(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    out = step.outputs[0]
    scale, zero = _number(step.args[1]), _number(step.args[2])
    if scale is None or zero is None or out is None or not _is_float32(out) or not 0 < scale < float("inf"):
        return None
    return [TensorOp(DEQUANTIZE, (step.args[0], known.number(scale), known.number(zero)), {}, (out,), step.origin)]


def _moved(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    source, out = known.activation(step.args[0]), step.outputs[0]
    if source is None or out is None or len(step.operands()) != 1 or not _is_float32(out):
        return None
    made = _Steps(step.origin)
    q = made.add(step.op, (source.q, *step.args[1:]), out.type, source.type.dtype, kwargs=step.kwargs)
    made.add(DEQUANTIZE, (q, known.number(source.scale), known.number(source.zero)), out.type, "float32", out)
    return made.steps


def _convolution(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    out, x = step.outputs[0], known.activation(static_argument(step, "input"))
    weights = known.weights(static_argument(step, "weight"), 0)
    if x is None or weights is None or out is None or not _is_float32(out):
        return None
    transposed = step.op == "aten.convolution.default" and static_argument(step, "transposed")
    if transposed or weights.data.dim() != 4 or len(x.type.shape) != 4:
        return None
    stride, padding, dilation = (_pair(static_argument(step, n)) for n in ("stride", "padding", "dilation"))
    layer = _layer(x, weights, static_argument(step, "bias"), known)
    if layer is None:
        return None
    made = _Steps(step.origin)
    q = made.as_uint8(x)
    zero = layer.zero
    if zero and any(padding):  # the border is filled with what stands for zero
        n, c, h, w = x.type.shape
        shape = TensorType((n, c, h + 2 * padding[0], w + 2 * padding[1]), "uint8")
        border = [padding[1], padding[1], padding[0], padding[0]]
        q, padding = made.add("aten.constant_pad_nd.default", (q, border, zero), shape, "uint8"), [0, 0]
    w8 = known.constant(("data", id(weights)), weights.data, weights.name)
    total = made.add(CONV2D, (q, w8, stride, padding, dilation, static_argument(step, "groups")), out.type, "int32")
    layer.finish(made, total, (1, -1, 1, 1), out, known)
    return made.steps


def _product(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    left, right, bias, by_rows = _PRODUCTS[step.op]
    out, x = step.outputs[0], known.activation(static_argument(step, left))
    w = static_argument(step, right)
    if x is None or out is None or not _is_float32(out) or len(w.type.shape) != 2 or not x.type.shape:
        return None
    if step.op == "aten.addmm.default" and (static_argument(step, "beta"), static_argument(step, "alpha")) != (1, 1):
        return None
    weights = known.weights(w, 0 if by_rows else 1)
    layer = None if weights is None else _layer(x, weights, None if bias is None else static_argument(step, bias), known)
    if weights is None or layer is None:
        return None
    made = _Steps(step.origin)
    total = made.add(
        MATMUL, (made.as_uint8(x), known.constant(("transposed", id(weights)), weights.data.mT, weights.name)), out.type, "int32"
    )
    layer.finish(made, total, (-1,), out, known)
    return made.steps


@dataclass
class _Layer:
    """What becomes of the sums of a layer.

    Attributes
    ----------
    zero : int
        The zero point of its input as uint8.
    shift : torch.Tensor
        What is added to the sums, an integer for each output channel.
    factors : torch.Tensor
        Float32, for each output channel.
    bias : Value or None
        What is added afterwards.
    key : tuple
        Equal layers have equal ones.
    """

    zero: int
    shift: torch.Tensor
    factors: torch.Tensor
    bias: Any
    key: tuple[Any, ...]

    def finish(self, made: _Steps, total: Value, shape: tuple[int, ...], out: Value, known: _Quantised) -> None:
        """Add the steps from the sums to the result."""
        if self.shift.any():
            shift = known.constant(("shift", *self.key, shape), self.shift.to(torch.int32).reshape(shape))
            total = made.add("aten.add.Tensor", (total, shift), out.type, "int32")
        factors = known.constant(("factors", *self.key, shape), self.factors.reshape(shape))
        scaled = made.add(SCALED, (total, factors), out.type, "float32", out if self.bias is None else None)
        if self.bias is None:
            return
        bias = self.bias
        if len(shape) > 1:
            spread = TensorType((1, bias.type.shape[0], 1, 1), "float32")
            bias = made.add("aten.reshape.default", (bias, list(spread.shape)), spread, "float32")
        made.add("aten.add.Tensor", (scaled, bias), out.type, "float32", out)


def _layer(x: _Scaled, weights: _Weights, bias: Any, known: _Quantised) -> _Layer | None:
    """Return what becomes of a layer's sums, or None if an int32 might not hold them."""
    zero = x.zero + (128 if x.type.dtype == "int8" else 0)
    factors = torch.tensor(x.scale, dtype=torch.float32) * weights.scales
    integers, rest = known.bias(bias, factors)
    rows = weights.data.flatten(1).long()
    shift = -zero * rows.sum(1)
    if integers is not None:
        shift = shift + integers
    if not (0 <= zero <= 255 and _within(shift, _INT32) and _within(255 * rows.abs().sum(1) + shift.abs(), _INT32)):
        return None
    if not bool((factors.isfinite() & (factors > 0)).all()):
        return None
    return _Layer(zero, shift, factors, rest, (id(weights), x.scale, zero, bias if integers is not None else None))


class _Steps:
    """New steps in the place of one."""

    def __init__(self, origin: Origin | None) -> None:
        self.steps: list[TensorOp] = []
        self._origin = origin

    def add(
        self, op: str, args: tuple[Any, ...], like: Any, dtype: str, out: Value | None = None, kwargs: dict[str, Any] | None = None
    ) -> Value:
        """Add an operation whose result has the shape of ``like``."""
        out = out or Value(TensorType(like.shape, dtype))
        self.steps.append(TensorOp(op, args, dict(kwargs or {}), (out,), self._origin))
        return out

    def as_uint8(self, x: _Scaled) -> Value:
        """Return the integers of a tensor, moved by 128 if they have signs."""
        if x.type.dtype == "uint8":
            return x.q
        wide = self.add("aten._to_copy.default", (x.q,), x.q.type, "int16", kwargs={"dtype": torch.int16})
        moved = self.add("aten.add.Scalar", (wide, 128), x.q.type, "int16")
        return self.add("aten._to_copy.default", (moved,), x.q.type, "uint8", kwargs={"dtype": torch.uint8})


def _number(operand: Any) -> float | int | None:
    """Return the number that an operand is, or that a constant of one element holds."""
    if isinstance(operand, Constant) and operand.data.numel() == 1:
        return operand.data.item()  # type: ignore[no-any-return]
    return operand if isinstance(operand, (int, float)) else None


def _is_float32(value: Any) -> bool:
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.dtype == "float32"


def _pair(value: Any) -> list[int]:
    values = [value] * 2 if isinstance(value, int) else [int(v) for v in value]
    return values * 2 if len(values) == 1 else values


def _within(data: torch.Tensor, bounds: Sequence[int]) -> bool:
    return not data.numel() or (int(data.min()) >= bounds[0] and int(data.max()) <= bounds[1])
