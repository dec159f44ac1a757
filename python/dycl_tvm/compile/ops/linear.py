# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, broadcast_index, converter, in_float32, is_float, sums_in_float32
from dycl_tvm.compile.ops.shape import _permuted


def matmul(ctx: OpContext, a: Any, b: Any) -> Any:
    """Emit a product of matrices of the same dtype."""
    return ctx.emit(relax.op.matmul(a, b))


#: Multiplications a matrix below which PyTorch has a loop of its own for batches, which multiplies by any factor.
_SMALL_BATCH = 400


def _scaled(ctx: OpContext, x: Any, factor: Any) -> Any:
    return x if factor == 1 else ctx.binary("multiply", x, factor, ctx.type.dtype)


@converter("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
@sums_in_float32
def _matmul(ctx: OpContext, a: Any, b: Any) -> Any:
    return ctx.reshape(matmul(ctx, a, b), ctx.type.shape)


@converter("addmm.default", "baddbmm.default", "addmv.default")
@sums_in_float32
def _addmm(ctx: OpContext, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    # PyTorch: what has the factor 0 is ignored, NaN in it too, but in small batches
    small = "baddbmm" in ctx.op and math.prod(ctx.shape(a)[1:]) * ctx.shape(b)[-1] < _SMALL_BATCH
    if alpha == 0 and not small:
        scaled = ctx.operand(0, ctx.type.dtype) if beta == 0 else _scaled(ctx, bias, beta)
        return ctx.emit(relax.op.broadcast_to(scaled, ctx.type.shape))
    product = _scaled(ctx, ctx.reshape(matmul(ctx, a, b), ctx.type.shape), alpha)
    if beta == 0:
        return product
    return ctx.emit(relax.op.add(product, _scaled(ctx, bias, beta)))


@converter("linear.default")
@sums_in_float32
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


@converter("_safe_softmax.default")
@in_float32
def _safe_softmax(ctx: OpContext, x: Any, dim: int, *_: Any) -> Any:
    """Emit a softmax that is 0 in rows of -inf, but for those with a NaN."""
    x = ctx.cast(x, ctx.type.dtype)
    y = ctx.emit(relax.op.nn.softmax(x, dim))
    unseen = ctx.emit(relax.op.equal(ctx.emit(relax.op.abs(x)), ctx.const(math.inf, ctx.dtype(x))))
    unseen = ctx.emit(relax.op.logical_and(unseen, ctx.emit(relax.op.less(x, ctx.const(0.0, ctx.dtype(x))))))
    all_unseen = ctx.emit(relax.op.min(ctx.cast(unseen, "int8"), [dim], keepdims=True))
    return ctx.emit(relax.op.where(ctx.cast(all_unseen, "bool"), ctx.const(0.0, ctx.dtype(x)), y))


SAFE_SOFTMAX, ATTENTION_WEIGHTS = "aten._safe_softmax.default", "aten._safe_softmax.weights"


@converter("_safe_softmax.weights")
@in_float32
def _factors(ctx: OpContext, x: Any, dim: int, *_: Any) -> Any:
    """Emit a softmax that is 0 in rows of -inf, and only a factor: a row with a NaN makes a NaN of all that it is multiplied with."""
    return _weights(ctx, ctx.cast(x, ctx.type.dtype), dim)


def _weights(ctx: OpContext, x: Any, dim: int) -> Any:
    """Emit the softmax of attention, 0 where x is -inf."""
    low, zero = (tirx.const(number, ctx.dtype(x)) for number in (float("-inf"), 0.0))
    y = ctx.emit(relax.op.nn.softmax(x, dim))
    return ctx.compute(lambda s, p, *i: tirx.Select(tirx.EQ(s(*i), low), zero, p(*i)), x, y, name="seen", shape=ctx.shape(x))


@converter("scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention_for_cpu.default")
@sums_in_float32
def attention(ctx: OpContext, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """Emit attention in its written-out form; as in PyTorch, rows that see no key are 0 here, where a softmax gives NaN.

    What is emitted between the products is what the attention kernels of CPUs look for.
    """
    if "flash" in ctx.op:
        dropout, causal, mask, scale = rest
    else:
        mask, dropout, causal, scale, _ = rest
    if dropout:
        raise NotConvertible("attention with dropout (put the model in eval mode)")
    dtype = ctx.type.dtype
    if not is_float(dtype):
        raise NotConvertible(f"attention on {dtype}")
    depth = ctx.shape(q)[-1]
    if len(ctx.shape(q)) > 2 and ctx.shape(q)[-3] != ctx.shape(k)[-3]:  # enable_gqa
        q, k, v, mask = _grouped(ctx, q, k, v, mask)
    rank = len(ctx.shape(k))
    swap = [*range(rank - 2), rank - 1, rank - 2]
    scores = matmul(ctx, q, _permuted(ctx, k, swap))
    scores = _scaled(ctx, scores, scale if scale is not None else depth**-0.5)
    low, zero = tirx.const(float("-inf"), dtype), tirx.const(0, dtype)
    shape = ctx.shape(scores)
    if causal:
        scores = ctx.compute(lambda t, *i: tirx.Select(i[-1] <= i[-2], t(*i), low), scores, name="causal", shape=shape)
    if mask is not None:
        boolean, own = ctx.dtype(mask) == "bool", ctx.shape(mask)

        def masked(t: Any, m: Any, *i: Any) -> Any:
            value = m(*broadcast_index(own, i))
            return t(*i) + (tirx.Select(value, zero, low) if boolean else value)

        scores = ctx.compute(masked, scores, mask if boolean else ctx.cast(mask, dtype), name="mask", shape=shape)
    weights = _weights(ctx, scores, -1)
    out = ctx.reshape(matmul(ctx, weights, v), ctx.type.shape)
    return out if len(ctx.out) == 1 else (out, *([None] * (len(ctx.out) - 1)))


def _grouped(ctx: OpContext, q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
    """Return operands in which the heads of queries that share one of keys have a dimension of their own."""
    *batch, heads, rows, depth = ctx.shape(q)
    shared = ctx.shape(k)[-3]
    group = heads // shared
    q = ctx.reshape(q, (*batch, shared, group, rows, depth))
    k, v = (ctx.reshape(t, (*ctx.shape(t)[:-2], 1, *ctx.shape(t)[-2:])) for t in (k, v))
    if mask is not None and len(ctx.shape(mask)) > 2:
        *outer, own, m, n = ctx.shape(mask)
        mask = ctx.reshape(mask, (*outer, *((1, 1) if own == 1 else (shared, group)), m, n))
    return q, k, v, mask
