# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights of 8 or 4 bits with a scale a group: products and rows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.backends.tir_cpu.words.loops import GROUP
from dycl_tvm.compile.ops.context import OpContext, converter, int64
from dycl_tvm.compile.ops.indexing import wrapped
from dycl_tvm.hcfg.grouped import LINEAR, ROWS


def _element(data: Any, scales: Any, group: int) -> Callable[[Any, Any], Any]:
    """Return the function of a row and a column that is a weight there."""

    def weight(row: Any, column: Any) -> Any:
        if str(data.dtype) == "uint8":
            byte = data(row, column // int64(2)).astype("int32")
            half = tirx.Select((column % int64(2)).equal(int64(0)), byte << tirx.const(28, "int32"), byte << tirx.const(24, "int32"))
            number = half >> tirx.const(28, "int32")
        else:
            number = data(row, column).astype("int32")
        return number.astype("float32") * scales(row, column // int64(group))

    return weight


@converter(LINEAR)
def _linear(ctx: OpContext, x: Any, data: Any, scales: Any, group: int) -> Any:
    k, n = ctx.shape(x)[-1], ctx.shape(data)[0]

    def dequantise(data: Any, scales: Any) -> Any:
        weight = _element(data, scales, group)
        return te.compute((int64(k), int64(n)), lambda i, j: weight(j, i), name="dequantise")

    weights = ctx.bb.emit_te(dequantise, data, scales, primfunc_name_hint="dequantise", primfunc_attrs={GROUP: group})
    return ctx.emit(relax.op.matmul(x, weights))


@converter(ROWS)
def _rows(ctx: OpContext, data: Any, scales: Any, group: int, k: int, index: Any) -> Any:
    extent, shape = ctx.shape(data)[0], [int64(d) for d in ctx.type.shape]

    def rows(data: Any, scales: Any, index: Any) -> Any:
        weight = _element(data, scales, group)
        return te.compute(shape, lambda *i: weight(wrapped(ctx, index(*i[:-1]), extent), i[-1]), name="dequantised_rows")

    # a kernel of its own: what is added in the same one LLVM would add before the product is rounded
    return ctx.call_te(rows, data, scales, index, name="dequantised_rows", fusible=False)
