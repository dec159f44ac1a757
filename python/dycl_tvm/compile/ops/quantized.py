# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Quantised numbers: PyTorch's operators that make and read them, and exact sums of their products."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops import functions, semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter
from dycl_tvm.compile.ops.pooling import window_sums
from dycl_tvm.hcfg.quantized import (
    ADD,
    BYTES,
    CONV2D,
    DECOMPOSED,
    DEQUANTIZE,
    DIVIDED,
    MATMUL,
    QUANTIZE,
    SCALED,
    SHIFTED,
    SIGNED,
    WINDOW_SUMS,
)

#: Types whose numbers float32 holds.
_NARROW = ("int8", "uint8", "int16", "uint16")


def _quantized(ctx: OpContext, x: Any, unit: Any, zero: Any, low: int, high: int, scaled: Callable[[Any, Any], Any] = operator.mul) -> Any:
    """Emit round(x * unit) + zero, saturated; ``unit`` and ``zero`` are of the type in which is computed, and broadcast to ``x``.

    ``scaled`` is done instead of a product.
    """
    out, wide = ctx.type.dtype, ctx.dtype(unit)
    if out not in (*_NARROW, "int32"):
        raise NotConvertible(f"quantisation to {out}")

    def element(v: Any, i: Any, z: Any) -> Any:
        whole = tirx.nearbyint(scaled(v, i)) + z
        if (out, low, high) == ("uint8", 0, 255):
            return functions.to_byte(whole).astype(out)
        # comparisons as PyTorch's clamp has them: NaN stays NaN until it is converted
        whole = tirx.Select(whole < tirx.const(low, wide), tirx.const(low, wide), whole)
        whole = tirx.Select(whole > tirx.const(high, wide), tirx.const(high, wide), whole)
        return whole.astype("int32").astype(out)

    return ctx.elementwise(element, ctx.cast(x, wide), unit, zero, name="quantize")


def _inverse_of_number(ctx: OpContext, scale: Any) -> Any:
    """Return 1 / scale as PyTorch has it for one scale: in float64, rounded to float32."""
    if isinstance(scale, (int, float)):
        return ctx.const(1.0 / scale, "float32")
    inverse = ctx.elementwise(lambda s: tirx.const(1.0, "float64") / s, _one(ctx, scale, "float64"), name="inverse")
    return ctx.cast(inverse, "float32")


def _one(ctx: OpContext, value: Any, dtype: str) -> Any:
    """Return the one element of a tensor, or a number, as a tensor of rank 0."""
    if isinstance(value, (int, float)):
        return ctx.const(value, dtype)
    return ctx.cast(ctx.reshape(value, ()), dtype)


def _quantize_per_tensor(ctx: OpContext, x: Any, scale: Any, zero: Any, low: Any, high: Any, dtype: Any) -> Any:
    return _quantized(ctx, x, _inverse_of_number(ctx, scale), _one(ctx, zero, "float32"), *_limits(low, high))


def _dequantize_per_tensor(ctx: OpContext, q: Any, scale: Any, zero: Any, low: Any, high: Any, dtype: Any, out_dtype: Any = None) -> Any:
    if ctx.type.dtype != "float32" or ctx.dtype(q) not in (*_NARROW, "int32"):
        raise NotConvertible(f"dequantisation from {ctx.dtype(q)} to {ctx.type.dtype}")
    return ctx.elementwise(
        lambda v, s, z: (v.astype("float32") - z) * s,
        q,
        _one(ctx, scale, "float32"),
        _one(ctx, zero, "float32"),
        name="dequantize",
    )


@converter(QUANTIZE)
def _quantize(ctx: OpContext, x: Any, inverse: Any, zero: Any, low: int, high: int, dtype: Any) -> Any:
    return _quantized(ctx, x, inverse, zero, low, high)


@converter(DIVIDED)
def _divided(ctx: OpContext, x: Any, scale: Any, zero: Any, low: int, high: int, dtype: Any) -> Any:
    return _quantized(ctx, x, scale, zero, low, high, operator.truediv)


@converter(BYTES, SIGNED)
def _other_sign(ctx: OpContext, q: Any) -> Any:
    out = ctx.type.dtype
    return ctx.elementwise(lambda v: tirx.bitwise_xor(v.astype("uint8"), tirx.const(128, "uint8")).astype(out), q, name="other_sign")


@converter(WINDOW_SUMS)
def _window_sums(ctx: OpContext, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> Any:
    return window_sums(ctx, x, [*kernel], [*stride], [*padding])


@converter(DEQUANTIZE)
def _dequantize(ctx: OpContext, q: Any, scale: Any, zero: Any) -> Any:
    return ctx.elementwise(lambda v, s, z: semantics.rounded_product(v.astype("float32") - z, s), q, scale, zero, name="dequantize")


for _overload in ("default", "tensor"):
    converter(f"{DECOMPOSED}.quantize_per_tensor.{_overload}")(_quantize_per_tensor)
    converter(f"{DECOMPOSED}.dequantize_per_tensor.{_overload}")(_dequantize_per_tensor)


@converter(f"{DECOMPOSED}.quantize_per_channel.default")
def _quantize_per_channel(ctx: OpContext, x: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: Any) -> Any:
    wide = "float64" if "float64" in (ctx.dtype(scales), ctx.dtype(zeros)) else "float32"
    spread = _spread(ctx, ctx.shape(x), axis)
    own = ctx.dtype(scales)
    inverse = ctx.elementwise(lambda s: tirx.const(1.0, own) / s, scales, name="inverse")
    return _quantized(ctx, x, spread(ctx.cast(inverse, wide)), spread(ctx.cast(zeros, wide)), low, high)


@converter(f"{DECOMPOSED}.dequantize_per_channel.default")
def _dequantize_per_channel(
    ctx: OpContext, q: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: Any, out_dtype: Any = None
) -> Any:
    if ctx.type.dtype != "float32" or ctx.dtype(q) not in (*_NARROW, "int32"):
        raise NotConvertible(f"dequantisation from {ctx.dtype(q)} to {ctx.type.dtype}")
    spread, wide = _spread(ctx, ctx.shape(q), axis), ctx.dtype(scales)
    if zeros is None:
        return ctx.cast(ctx.elementwise(lambda v, s: v.astype(wide) * s, q, spread(scales), name="dequantize"), "float32")
    if ctx.dtype(zeros) not in ("int32", "int64"):  # in narrow types PyTorch's difference may wrap around
        raise NotConvertible(f"zero points of {ctx.dtype(zeros)}")
    difference = ctx.elementwise(
        lambda v, s, z: (v.astype("int64") - z.astype("int64")).astype(wide) * s, q, spread(scales), spread(zeros), name="dequantize"
    )
    return ctx.cast(difference, "float32")


def _limits(low: Any, high: Any) -> tuple[int, int]:
    if not (isinstance(low, int) and isinstance(high, int)):
        raise NotConvertible("limits that are tensors")
    return low, high


def _spread(ctx: OpContext, shape: Sequence[int], axis: int) -> Callable[[Any], Any]:
    """Return a function that lays a vector along an axis."""
    extents = [1] * len(shape)
    extents[axis] = shape[axis]
    return lambda vector: ctx.reshape(vector, extents)


@converter(CONV2D)
def _conv2d(ctx: OpContext, x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return ctx.emit(
        relax.op.nn.conv2d(
            x, w, strides=[*stride], padding=[*padding, *padding], dilation=[*dilation], groups=groups, out_dtype="int32"
        )
    )  # fmt: skip


@converter(MATMUL)
def _matmul(ctx: OpContext, x: Any, w: Any) -> Any:
    return ctx.emit(relax.op.matmul(x, w, out_dtype="int32"))


@converter(ADD)
def _add(ctx: OpContext, x: Any, q: Any, scale: Any, zero: Any) -> Any:
    return ctx.elementwise(
        lambda a, v, s, z: a + semantics.rounded_product(v.astype("float32") - z, s), x, q, scale, zero, name="add_dequantized"
    )


@converter(SHIFTED)
def _shifted(ctx: OpContext, sums: Any, a: Any, b: Any) -> Any:
    return ctx.elementwise(lambda v, x, y: v + x * y, sums, a, b, name="shifted")


@converter("_int_mm.default")
def _int_mm(ctx: OpContext, x: Any, w: Any) -> Any:
    return ctx.emit(relax.op.matmul(x, w, out_dtype="int32"))


@converter(SCALED)
def _scaled(ctx: OpContext, sums: Any, factors: Any) -> Any:
    return ctx.elementwise(lambda v, f: semantics.rounded_product(v.astype("float32"), f), sums, factors, name="scaled")
