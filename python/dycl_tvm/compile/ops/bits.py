# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of C's library, and of the bits of numbers."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, in_float32, is_float


@converter("signbit.default")
def _signbit(ctx: OpContext, x: Any) -> Any:
    dtype = ctx.dtype(x)
    if not is_float(dtype):
        return ctx.elementwise(lambda v: v.astype("int64") < tirx.const(0, "int64"), x, name="signbit")
    x = ctx.cast(x, dtype := "float64" if dtype == "float64" else "float32")
    bits = "int" + dtype.removeprefix("float")
    return ctx.elementwise(lambda v: tirx.reinterpret(bits, v) < tirx.const(0, bits), x, name="signbit")


def _of_library(name: str) -> Any:
    def convert(ctx: OpContext, *args: Any) -> Any:
        operands = [ctx.operand(a, ctx.type.dtype) for a in args]
        return ctx.elementwise(lambda *v: semantics.libm(name, *v), *operands, name=name)

    return in_float32(convert)


for _name in ("lgamma", "hypot"):
    converter(f"{_name}.default")(_of_library(_name))


def _bessel(name: str) -> Any:
    def bessel(x: Any) -> Any:
        infinite = tirx.abs(x) == tirx.const(math.inf, semantics.dtype_of(x))
        return tirx.Select(infinite, tirx.const(math.nan, semantics.dtype_of(x)), semantics.libm(name, x))  # as ATen

    def convert(ctx: OpContext, x: Any) -> Any:
        if ctx.type.dtype == "float64":
            raise NotConvertible("a Bessel function of float64, of which PyTorch's own values are exact to nine digits")
        return ctx.elementwise(bessel, ctx.cast(x, ctx.type.dtype), name=f"bessel_{name}")

    return in_float32(convert)


for _name in ("j0", "j1", "y0", "y1"):
    converter(f"special_bessel_{_name}.default")(_bessel(_name))


@converter("nextafter.default")
def _nextafter(ctx: OpContext, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    if dtype not in ("float32", "float64"):
        raise NotConvertible(f"nextafter of {dtype}")
    return ctx.elementwise(lambda x, y: semantics.libm("nextafter", x, y), ctx.operand(a, dtype), ctx.operand(b, dtype), name="nextafter")
