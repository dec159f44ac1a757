# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Integer arithmetic: a convolution or product of dequantised tensors becomes exact sums of their integers, which are scaled once.

Invariant: with x = (q - zx) * sx for one scale, and weights (w - zw) * sw for one scale an output channel, the result is
``float32(sum of (q - zx) * (w - zw)) * float32(sx * sw)``, plus the bias: what the original sums are but for their roundings (see
docs/quantization.md). Sums and integer biases fit an int32 for any input, or the operation stays as it is. What follows, such as relu
and quantisation, is element-wise and stays; the backends compute it in the same kernel. What has no weights reads the integers too
(:mod:`integer_moves`). Scales and zero points become tensors of what is computed with, so that layers which differ in them only are one
sub-DNN. Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, 2.2 to 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.nodes import HCFG, Constant, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import BYTES, CONV2D, DECOMPOSED, MATMUL, NAMESPACE, SCALED, SHIFTED, is_dequantize
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.integer_moves import moved
from dycl_tvm.passes.integers import MIDDLE, Dynamic, Known, Scaled, Steps, is_float32, number, pair
from dycl_tvm.passes.rewrite import freeze, static_argument

_CONVOLUTIONS = frozenset({"aten.convolution.default", "aten.conv2d.default"})
#: Products with the names of their left side, right side and bias; of those with ``True`` the right side is (n, k).
_PRODUCTS: dict[str, tuple[str, str, str | None, bool]] = {
    "aten.linear.default": ("input", "weight", "bias", True),
    "aten.addmm.default": ("mat1", "mat2", "self", False),
    "aten.mm.default": ("self", "mat2", None, False),
    "aten.matmul.default": ("self", "other", None, False),
}
_INTEGER_PRODUCT = "aten._int_mm.default"
#: Least and greatest int32 and int8.
_INT32, _INT8 = (-(2**31), 2**31 - 1), (-128, 127)


@dataclass(frozen=True)
class _Weights:
    """Weights as integers with a scale each, output channels first: ``data``, plus ``more`` in each output channel."""

    data: torch.Tensor
    more: torch.Tensor
    scales: torch.Tensor
    name: str

    @property
    def rows(self) -> torch.Tensor:
        """The weights of each output channel, without a zero point."""
        return self.data.flatten(1).long() + self.more[:, None]


class _Quantised(Known):
    """What is known of values, and of constants that are weights and biases."""

    def weights(self, value: Any, channel: int) -> _Weights | None:
        """Return a dequantised constant as integers; ``channel`` is its dimension of the output's channels."""
        step = self.maker(value)
        if step is None or not is_float32(value):
            return None
        if step.op in ("aten.t.default", "aten.transpose.int", "aten.permute.default") and len(value.type.shape) == 2:  # type: ignore[union-attr]
            swapped = step.op != "aten.permute.default" or [d % 2 for d in step.args[1]] == [1, 0]
            swapped = swapped and (step.op != "aten.transpose.int" or step.args[1] % 2 != step.args[2] % 2)
            return self.weights(step.args[0], 1 - channel if swapped else channel)
        if not is_dequantize(step.op) or not isinstance(step.args[0], Constant):
            return None
        key = ("weights", channel, step.op, freeze(step.args, lambda v: v))  # the same integers may be dequantised at several places
        if key not in self.memo:
            self.memo[key] = self._integers(step, channel)
        found: _Weights | None = self.memo[key]
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
            one, point = number(step.args[1]), number(step.args[2])
            if one is None or point is None:
                return None
            scale = torch.full((data.shape[channel],), one, dtype=torch.float32)
            zero = torch.full((data.shape[channel],), int(point))
        first = data.transpose(0, channel).long() - zero.reshape(-1, *[1] * (data.dim() - 1))
        if not scale.isfinite().all():
            return None
        more = torch.zeros(scale.shape, dtype=torch.int64)
        if not _within(first, _INT8):  # what 8 bits do not hold is a number for each output channel
            more = (MIDDLE if data.dtype == torch.uint8 else 0) - zero
            first = first - more.reshape(-1, *[1] * (data.dim() - 1))
        return _Weights(first.to(torch.int8).contiguous(), more, scale, step.args[0].name)

    def bias(self, value: Any, factors: torch.Tensor) -> tuple[torch.Tensor | None, Any]:
        """Return a bias as integers in units of ``factors``, or else as the operand that it is."""
        step = self.maker(value)
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


def integer_products(graph: HCFG) -> int:
    """Rewrite convolutions and products of quantised tensors; return how many operations changed."""
    quantised = (f"{DECOMPOSED}.", f"{NAMESPACE}.", _INTEGER_PRODUCT)
    if not any(isinstance(s, TensorOp) and s.op.startswith(quantised) for b in graph.blocks for s in b.steps):
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
    if step.op in _CONVOLUTIONS:
        return _convolution(step, known)
    if step.op == _INTEGER_PRODUCT:
        return _integer_product(step, known)
    return _product(step, known) if step.op in _PRODUCTS else moved(step, known)


def _convolution(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    source, out = static_argument(step, "input"), step.outputs[0]
    x = known.activation(source) or known.dynamic(source)
    weights = known.weights(static_argument(step, "weight"), 0)
    if x is None or weights is None or out is None or not is_float32(out):
        return None
    transposed = step.op == "aten.convolution.default" and static_argument(step, "transposed")
    if transposed or weights.data.dim() != 4 or len(x.type.shape) != 4:
        return None
    stride, padding, dilation = (pair(static_argument(step, n)) for n in ("stride", "padding", "dilation"))
    layer = _layer(x, weights, static_argument(step, "bias"), known)
    if layer is None or (layer.zero is None and any(padding)):
        return None
    made = Steps(step.origin)
    q = made.as_uint8(x)
    if layer.zero and any(padding):  # the border is filled with what stands for zero
        n, c, h, w = x.type.shape
        shape = TensorType((n, c, h + 2 * padding[0], w + 2 * padding[1]), "uint8")
        border = [padding[1], padding[1], padding[0], padding[0]]
        q, padding = made.add("aten.constant_pad_nd.default", (q, border, layer.zero), shape, "uint8"), [0, 0]
    groups = static_argument(step, "groups")
    how = stride, padding, dilation, groups
    w8 = known.constant(("data", id(weights)), weights.data, weights.name)
    total = made.add(CONV2D, (q, w8, *how), out.type, "int32")
    if weights.more.any():
        # of one group the sums of what it reads are those of all outputs
        ones = torch.ones((weights.data.shape[0] if groups > 1 else 1, *weights.data.shape[1:]), dtype=torch.int8)
        like = TensorType((out.type.shape[0], ones.shape[0], *out.type.shape[2:]), "int32")  # type: ignore[union-attr]
        sums = made.add(CONV2D, (q, known.constant(("ones", *ones.shape), ones), *how), like, "int32")
        total = _with_more(made, total, sums, weights, (1, -1, 1, 1), out, known)
    layer.finish(made, total, (1, -1, 1, 1), out, known)
    return made.steps


def _product(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    left, right, bias, by_rows = _PRODUCTS[step.op]
    source, out = static_argument(step, left), step.outputs[0]
    x = known.activation(source) or known.dynamic(source)
    w = static_argument(step, right)
    if x is None or out is None or not is_float32(out) or len(w.type.shape) != 2 or not x.type.shape:
        return None
    if step.op == "aten.addmm.default" and (static_argument(step, "beta"), static_argument(step, "alpha")) != (1, 1):
        return None
    weights = known.weights(w, 0 if by_rows else 1)
    layer = None if weights is None else _layer(x, weights, None if bias is None else static_argument(step, bias), known)
    if weights is None or layer is None:
        return None
    made = Steps(step.origin)
    q = made.as_uint8(x)
    total = made.add(MATMUL, (q, known.constant(("transposed", id(weights)), weights.data.mT, weights.name)), out.type, "int32")
    if weights.more.any():
        ones = torch.ones((weights.data.shape[1], 1), dtype=torch.int8)
        like = TensorType((*x.type.shape[:-1], 1), "int32")
        sums = made.add(MATMUL, (q, known.constant(("ones", *ones.shape), ones)), like, "int32")
        total = _with_more(made, total, sums, weights, (-1,), out, known)
    layer.finish(made, total, (-1,), out, known)
    return made.steps


def _with_more(made: Steps, total: Value, sums: Value, weights: _Weights, shape: tuple[int, ...], out: Value, known: _Quantised) -> Value:
    """Add what weights are more than their 8 bits: a number of an output channel times the sums of what it reads."""
    more = known.constant(("more", id(weights), shape), weights.more.to(torch.int32).reshape(shape))
    return made.add(SHIFTED, (total, sums, more), out.type, "int32")


def _integer_product(step: TensorOp, known: _Quantised) -> list[TensorOp] | None:
    """Return an exact product of int8 as one of uint8 and int8."""
    (x, w), out = step.args, step.outputs[0]
    if out is None or isinstance(x, Constant) or not isinstance(w, Constant):
        return None
    if (x.type.dtype, w.type.dtype, out.type.dtype) != ("int8", "int8", "int32"):  # type: ignore[union-attr]
        return None
    columns = w.data.long()
    shift = -MIDDLE * columns.sum(0)
    if not _within(255 * columns.abs().sum(0) + shift.abs(), _INT32):
        return None
    made = Steps(step.origin)
    total = made.add(MATMUL, (made.add(BYTES, (x,), x.type, "uint8"), w), out.type, "int32")
    made.add("aten.add.Tensor", (total, known.constant(("shift of", w), shift.to(torch.int32))), out.type, "int32", out)
    return made.steps


@dataclass
class _Layer:
    """What becomes of the sums of a layer.

    Attributes
    ----------
    zero : int or None
        The zero point of its input as uint8; None if each call chooses it.
    shift : torch.Tensor
        What is added to the sums, an integer for each output channel.
    factors : torch.Tensor
        Float32, for each output channel.
    bias : Value or None
        What is added afterwards.
    key : tuple
        Equal layers have equal ones.
    dynamic : Dynamic or None
        The input, if each call chooses its scale: then ``factors`` are the weights' scales alone, and ``shift`` is for each unit of the
        zero point.
    """

    zero: int | None
    shift: torch.Tensor
    factors: torch.Tensor
    bias: Any
    key: tuple[Any, ...]
    dynamic: Dynamic | None = None

    def finish(self, made: Steps, total: Value, shape: tuple[int, ...], out: Value, known: _Quantised) -> None:
        """Add the steps from the sums to the result."""
        shift = known.constant(("shift", *self.key, shape), self.shift.to(torch.int32).reshape(shape))
        factors: Value = known.constant(("factors", *self.key, shape), self.factors.reshape(shape))
        if self.dynamic is not None:
            total, factors = self._of_call(self.dynamic, made, total, shift, factors, out)
        elif self.shift.any():
            total = made.add("aten.add.Tensor", (total, shift), out.type, "int32")
        scaled = made.add(SCALED, (total, factors), out.type, "float32", out if self.bias is None else None)
        if self.bias is None:
            return
        bias = self.bias
        if len(shape) > 1 and isinstance(bias, Constant):
            bias = known.constant(("bias", id(bias)), bias.data.reshape(shape), bias.name)
        elif len(shape) > 1:
            spread = TensorType((1, bias.type.shape[0], 1, 1), "float32")
            bias = made.add("aten.reshape.default", (bias, list(spread.shape)), spread, "float32")
        made.add("aten.add.Tensor", (scaled, bias), out.type, "float32", out)

    @staticmethod
    def _of_call(x: Dynamic, made: Steps, total: Value, shift: Value, factors: Value, out: Value) -> tuple[Value, Value]:
        """Return the sums without a zero point, and factors, by what the call has chosen."""
        zero = made.add("aten._to_copy.default", (x.zero,), x.zero.type, "int32", kwargs={"dtype": torch.int32})
        if x.type.dtype == "int8":
            zero = made.add("aten.add.Scalar", (zero, MIDDLE), x.zero.type, "int32")
        scale = made.add("aten._to_copy.default", (x.scale,), x.scale.type, "float32", kwargs={"dtype": torch.float32})
        total = made.add(SHIFTED, (total, zero, shift), out.type, "int32")
        return total, made.add("aten.mul.Tensor", (factors, scale), factors.type, "float32")


def _layer(x: Scaled | Dynamic, weights: _Weights, bias: Any, known: _Quantised) -> _Layer | None:
    """Return what becomes of a layer's sums, or None if an int32 might not hold them."""
    rows = weights.rows
    # of the products, of those with what weights are more than their 8 bits, and of the zero point
    most = 255 * (weights.data.flatten(1).long().abs().sum(1) + rows.shape[1] * weights.more.abs())
    if isinstance(x, Dynamic):
        if not (_within(most + 255 * rows.sum(1).abs(), _INT32) and bool((weights.scales > 0).all())):
            return None
        return _Layer(None, -rows.sum(1), weights.scales, bias, (id(weights), "dynamic"), x)
    zero = x.zero + (MIDDLE if x.type.dtype == "int8" else 0)
    factors = torch.tensor(x.scale, dtype=torch.float32) * weights.scales
    integers, rest = known.bias(bias, factors)
    shift = -zero * rows.sum(1)
    if integers is not None and _within(most + (shift + integers).abs(), _INT32):
        shift = shift + integers
    else:  # one that the sums have no room for is added afterwards
        integers, rest = None, bias
    if not (0 <= zero <= 255 and _within(shift, _INT32) and _within(most + shift.abs(), _INT32)):
        return None
    if not bool((factors.isfinite() & (factors > 0)).all()):
        return None
    return _Layer(zero, shift, factors, rest, (id(weights), x.scale, zero, bias if integers is not None else None))


def _within(data: torch.Tensor, bounds: Sequence[int]) -> bool:
    return not data.numel() or (int(data.min()) >= bounds[0] and int(data.max()) <= bounds[1])
