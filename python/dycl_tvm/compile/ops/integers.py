# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shifts of integers by any amount: TVM's own leave undefined what PyTorch defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter

_BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _shift(op: str) -> Callable[..., Any]:
    def shifted(a: Any, b: Any) -> Any:
        """Shift as PyTorch does: by the whole width or more, or by a negative amount, all bits leave."""
        dtype = semantics.dtype_of(a)
        width = _BITS[dtype]
        inside = tirx.And(b >= tirx.const(0, dtype), b < tirx.const(width, dtype))
        by = tirx.Select(inside, b, tirx.const(0, dtype))
        if op == "left":
            return tirx.Select(inside, tirx.shift_left(a, by), tirx.const(0, dtype))
        zero = tirx.const(0, dtype)
        gone = zero if dtype == "uint8" else tirx.Select(a < zero, tirx.const(-1, dtype), zero)
        return tirx.Select(inside, tirx.shift_right(a, by), gone)

    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        dtype = ctx.type.dtype
        if dtype not in _BITS:
            raise NotConvertible(f"a shift of {dtype}")
        return ctx.elementwise(shifted, ctx.operand(a, dtype), ctx.operand(b, dtype), name=f"shift_{op}")

    return convert


for _op in ("left", "right"):
    _fn = _shift(_op)
    _short = f"__{_op[0]}shift__"
    converter(f"bitwise_{_op}_shift.Tensor", f"bitwise_{_op}_shift.Tensor_Scalar", f"{_short}.Tensor", f"{_short}.Scalar")(_fn)
