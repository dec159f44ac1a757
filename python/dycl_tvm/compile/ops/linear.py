# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Matrix products."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, is_float
from dycl_tvm.compile.ops.shape import _permuted


def matmul(ctx: OpContext, a: Any, b: Any) -> Any:
    """Emit a product of matrices of the same dtype."""
    return ctx.emit(relax.op.matmul(a, b))


def _scaled(ctx: OpContext, x: Any, factor: Any) -> Any:
    return x if factor == 1 else ctx.binary("multiply", x, factor, ctx.type.dtype)


@converter("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def _matmul(ctx: OpContext, a: Any, b: Any) -> Any:
    return ctx.reshape(matmul(ctx, a, b), ctx.type.shape)


@converter("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(ctx: OpContext, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _scaled(ctx, ctx.reshape(matmul(ctx, a, b), ctx.type.shape), alpha)
    if beta == 0:  # PyTorch: the bias is ignored then, NaN in it too
        return product
    return ctx.emit(relax.op.add(product, _scaled(ctx, bias, beta)))


@converter("linear.default")
def _linear(ctx: OpContext, x: Any, weight: Any, bias: Any = None) -> Any:
    rank = len(ctx.shape(weight))
    product = matmul(ctx, x, _permuted(ctx, weight, [1, 0]) if rank == 2 else weight)
    product = ctx.reshape(product, ctx.type.shape)
    return product if bias is None else ctx.emit(relax.op.add(product, bias))


@converter("outer.default", "ger.default")
def _outer(ctx: OpContext, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    (n,), (m,) = ctx.shape(a), ctx.shape(b)
    return ctx.binary("multiply", ctx.reshape(a, (n, 1)), ctx.reshape(b, (1, m)), dtype)


@converter("scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention_for_cpu.default")
def _attention(ctx: OpContext, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    if "flash" in ctx.op:
        (dropout, causal, mask, scale), gqa = rest, False
    else:
        mask, dropout, causal, scale, gqa = rest
    if dropout:
        raise NotConvertible("attention with dropout (put the model in eval mode)")
    if gqa:
        raise NotConvertible("attention with enable_gqa")
    dtype = ctx.type.dtype
    if not is_float(dtype):
        raise NotConvertible(f"attention on {dtype}")
    rank, depth = len(ctx.shape(q)), ctx.shape(q)[-1]
    scale = scale if scale is not None else depth**-0.5
    swap = [*range(rank - 2), rank - 1, rank - 2]
    scores = matmul(ctx, ctx.binary("multiply", q, scale, dtype), _permuted(ctx, k, swap))
    if causal:
        low = tirx.const(float("-inf"), dtype)
        scores = ctx.compute(lambda t, *i: tirx.Select(i[-1] <= i[-2], t(*i), low), scores, name="causal", shape=ctx.shape(scores))
    if mask is not None:
        if ctx.dtype(mask) == "bool":
            mask = ctx.emit(relax.op.where(mask, ctx.const(0.0, dtype), ctx.const(float("-inf"), dtype)))
        scores = ctx.emit(relax.op.add(scores, mask))
    out = matmul(ctx, ctx.emit(relax.op.nn.softmax(scores, -1)), v)
    return out if len(ctx.out) == 1 else (out, *([None] * (len(ctx.out) - 1)))
