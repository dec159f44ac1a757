# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Normalisations in inference form, composed of simple operators so that they fuse with their neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, sums_in_float32


def _affine(ctx: OpContext, x: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if weight is not None:
        x = ctx.emit(relax.op.multiply(x, ctx.reshape(weight, shape)))
    if bias is not None:
        x = ctx.emit(relax.op.add(x, ctx.reshape(bias, shape)))
    return x


@converter("_native_batch_norm_legit_no_training.default", "native_batch_norm.default", "batch_norm.default", "cudnn_batch_norm.default")
@sums_in_float32
def _batch_norm(ctx: OpContext, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    if "no_training" in ctx.op:
        training, eps = False, rest[1]
    else:
        training, eps = rest[0], rest[2]
    rank = len(ctx.shape(x))
    shape = (1, ctx.shape(x)[1], *([1] * (rank - 2)))
    if training and mean is None and var is None:  # instance norm comes here, as a batch of one
        if ctx.shape(x)[0] == 1 and rank > 2 and _is_one_operator(ctx, x, weight, bias):
            return _results(ctx, _grouped(ctx, x, weight, bias, ctx.shape(x)[1], eps), None, None)
        y, batch_mean, rstd = normalised(ctx.emit, x, [k for k in range(rank) if k != 1], eps)
        return _results(ctx, _affine(ctx, y, weight, bias, shape), batch_mean, rstd)
    if training or mean is None or var is None:
        raise NotConvertible("batch norm in training mode (call model.eval())")
    dtype = ctx.type.dtype
    # everything that depends on parameters alone first, so that it can be computed at build time
    deviation = ctx.emit(relax.op.sqrt(ctx.binary("add", var, eps, ctx.dtype(var))))
    scale = ctx.binary("divide", 1.0 if weight is None else weight, deviation, dtype)
    shift = ctx.emit(relax.op.multiply(mean, scale))
    shift = ctx.binary("subtract", 0.0 if bias is None else bias, shift, dtype)  # without a bias +0, as in eager
    y = _affine(ctx, x, scale, shift, shape)
    return y if len(ctx.out) == 1 else (y, *([None] * (len(ctx.out) - 1)))


def normalised(emit: Callable[[Any], Any], x: Any, axes: list[int], eps: float) -> tuple[Any, Any, Any]:
    """Return (centred x times rstd, mean, rstd), of operators that ``emit`` binds."""
    op = relax.op
    dtype = str(x.ty.dtype.dtype)
    mean = emit(op.mean(x, axes, True))
    centred = emit(op.subtract(x, mean))
    var = emit(op.mean(emit(op.multiply(centred, centred)), axes, True))
    rstd = emit(op.divide(relax.const(1.0, dtype), emit(op.sqrt(emit(op.add(var, relax.const(eps, dtype)))))))
    return emit(op.multiply(centred, rstd)), mean, rstd


def _results(ctx: OpContext, y: Any, mean: Any, rstd: Any) -> Any:
    if len(ctx.out) == 1:
        return y
    return tuple(
        None if o is None or v is None else v if k == 0 else ctx.reshape(v, o.shape)
        for k, (v, o) in enumerate(zip((y, mean, rstd), ctx.out))
    )


def _is_one_operator(ctx: OpContext, *operands: Any) -> bool:
    """Whether only the normalised tensor is wanted, in float32: then it is one operator, which kernel families know."""
    statistics = all(o is None or k in ctx.unused for k, o in enumerate(ctx.out) if k)
    return statistics and all(o is None or ctx.dtype(o) == "float32" for o in operands)


def _tables(ctx: OpContext, weight: Any, bias: Any, shape: tuple[int, ...]) -> tuple[list[Any], dict[str, bool]]:
    """Return weight and bias, ones where there are none, and which there are."""
    ones = relax.const(np.ones(shape, "float32")) if weight is None or bias is None else None
    tables = [ones if t is None else ctx.reshape(t, shape) for t in (weight, bias)]
    return tables, {"scale": weight is not None, "center": bias is not None}


@converter("native_layer_norm.default", "layer_norm.default")
@sums_in_float32
def _layer_norm(ctx: OpContext, x: Any, normalized: list[int], weight: Any, bias: Any, eps: float = 1e-5, *_: Any) -> Any:
    rank = len(ctx.shape(x))
    if _is_one_operator(ctx, x, weight, bias):
        tables, there = _tables(ctx, weight, bias, tuple(normalized))
        last = list(range(rank - len(normalized), rank))
        return _results(ctx, ctx.emit(relax.op.nn.layer_norm(x, *tables, last, eps, **there)), None, None)
    axes = list(range(rank - len(normalized), rank))
    y, mean, rstd = normalised(ctx.emit, x, axes, eps)
    return _results(ctx, _affine(ctx, y, weight, bias, tuple(normalized)), mean, rstd)


def _grouped(ctx: OpContext, x: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
    """Return a group normalisation as one operator."""
    _, channels, *size = ctx.shape(x)
    tables, there = _tables(ctx, weight, bias, (channels,))
    return ctx.emit(relax.op.nn.group_norm(x, *tables, groups, 1, list(range(2, 2 + len(size))), eps, **there))


@converter("native_group_norm.default", "group_norm.default")
@sums_in_float32
def _group_norm(ctx: OpContext, x: Any, *args: Any) -> Any:
    if "native" in ctx.op:
        weight, bias, _, _, _, groups, eps = args
    else:
        groups, weight, bias, eps = args[:4]
    batch, channels, *size = ctx.shape(x)
    if _is_one_operator(ctx, x, weight, bias):
        return _results(ctx, _grouped(ctx, x, weight, bias, groups, eps), None, None)
    grouped = ctx.reshape(x, (batch, groups, channels // groups * math.prod(size)))
    y, mean, rstd = normalised(ctx.emit, grouped, [2], eps)
    y = _affine(ctx, ctx.reshape(y, ctx.shape(x)), weight, bias, (1, channels, *([1] * len(size))))
    return _results(ctx, y, mean, rstd)


@converter("instance_norm.default")
@sums_in_float32
def _instance_norm(
    ctx: OpContext, x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input: bool, momentum: float, eps: float, *_: Any
) -> Any:
    if not use_input:
        raise NotConvertible("instance norm with running statistics")
    rank, channels = len(ctx.shape(x)), ctx.shape(x)[1]
    if _is_one_operator(ctx, x, weight, bias):
        return _grouped(ctx, x, weight, bias, channels, eps)
    y, _, _ = normalised(ctx.emit, x, list(range(2, rank)), eps)
    return _affine(ctx, y, weight, bias, (1, channels, *([1] * (rank - 2))))
