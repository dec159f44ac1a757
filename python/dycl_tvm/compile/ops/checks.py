# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Questions whether an element of a tensor of integers is as no element may be: those that are asked most, in one kernel.

The others of :mod:`dycl_tvm.hcfg.checks` are made of PyTorch's operators.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops.context import OpContext, converter
from dycl_tvm.hcfg.checks import HAS_ZERO, OUTSIDE, WITHIN


def _any(ctx: OpContext, x: Any, fails: Any) -> Any:
    flags = ctx.elementwise(lambda e: tirx.Select(fails(e), tirx.const(1, "int32"), tirx.const(0, "int32")), x, name="fails")
    return ctx.cast(ctx.emit(relax.op.max(flags)), "bool")


@converter(OUTSIDE)
def _outside(ctx: OpContext, x: Any, low: int, high: int, spared: int | None = None) -> Any:
    def fails(element: Any) -> Any:
        element = element.astype("int64")
        beyond = tirx.Or(element < tirx.const(low, "int64"), element > tirx.const(high, "int64"))
        return beyond if spared is None else tirx.And(beyond, element != tirx.const(spared, "int64"))

    return _any(ctx, x, fails)


@converter(HAS_ZERO)
def _has_zero(ctx: OpContext, x: Any) -> Any:
    if ctx.dtype(x) == "bool":
        x = ctx.cast(x, "int8")
    return _any(ctx, x, lambda e: e.equal(tirx.const(0, ctx.dtype(x))))


converter(WITHIN)(lambda ctx, x, low, high, message: x)
