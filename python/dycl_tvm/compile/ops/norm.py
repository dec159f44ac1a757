# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Normalisations in inference form, composed of simple operators so that they fuse with their neighbours."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter


def _affine(ctx: OpContext, x: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if weight is not None:
        x = ctx.emit(relax.op.multiply(x, ctx.reshape(weight, shape)))
    if bias is not None:
        x = ctx.emit(relax.op.add(x, ctx.reshape(bias, shape)))
    return x


@converter("_native_batch_norm_legit_no_training.default", "native_batch_norm.default", "batch_norm.default", "cudnn_batch_norm.default")
def _batch_norm(ctx: OpContext, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    if "no_training" in ctx.op:
        training, eps = False, rest[1]
    else:
        training, eps = rest[0], rest[2]
    rank = len(ctx.shape(x))
    shape = (1, ctx.shape(x)[1], *([1] * (rank - 2)))
    if training and mean is None and var is None:  # instance norm comes here
        y, batch_mean, rstd = _normalised(ctx, x, [k for k in range(rank) if k != 1], eps)
        return _results(ctx, _affine(ctx, y, weight, bias, shape), batch_mean, rstd)
    if training or mean is None or var is None:
        raise NotConvertible("batch norm in training mode (call model.eval())")
    dtype = ctx.type.dtype
    # everything that depends on parameters alone first, so that it can be computed at build time
    deviation = ctx.emit(relax.op.sqrt(ctx.binary("add", var, eps, ctx.dtype(var))))
    scale = ctx.binary("divide", 1.0 if weight is None else weight, deviation, dtype)
    shift = ctx.emit(relax.op.multiply(mean, scale))
    shift = ctx.emit(relax.op.negative(shift)) if bias is None else ctx.emit(relax.op.subtract(bias, shift))
    y = _affine(ctx, x, scale, shift, shape)
    return y if len(ctx.out) == 1 else (y, *([None] * (len(ctx.out) - 1)))


def _normalised(ctx: OpContext, x: Any, axes: list[int], eps: float) -> tuple[Any, Any, Any]:
    mean = ctx.emit(relax.op.mean(x, axes, True))
    centred = ctx.emit(relax.op.subtract(x, mean))
    var = ctx.emit(relax.op.mean(ctx.emit(relax.op.multiply(centred, centred)), axes, True))
    rstd = ctx.binary("divide", 1.0, ctx.emit(relax.op.sqrt(ctx.binary("add", var, eps, ctx.dtype(var)))), ctx.dtype(var))
    return ctx.emit(relax.op.multiply(centred, rstd)), mean, rstd


def _results(ctx: OpContext, y: Any, mean: Any, rstd: Any) -> Any:
    if len(ctx.out) == 1:
        return y
    return tuple(None if o is None else v if k == 0 else ctx.reshape(v, o.shape) for k, (v, o) in enumerate(zip((y, mean, rstd), ctx.out)))


@converter("native_layer_norm.default", "layer_norm.default")
def _layer_norm(ctx: OpContext, x: Any, normalized: list[int], weight: Any, bias: Any, eps: float = 1e-5, *_: Any) -> Any:
    rank = len(ctx.shape(x))
    axes = list(range(rank - len(normalized), rank))
    y, mean, rstd = _normalised(ctx, x, axes, eps)
    return _results(ctx, _affine(ctx, y, weight, bias, tuple(normalized)), mean, rstd)


@converter("native_group_norm.default", "group_norm.default")
def _group_norm(ctx: OpContext, x: Any, *args: Any) -> Any:
    if "native" in ctx.op:
        weight, bias, _, _, _, groups, eps = args
    else:
        groups, weight, bias, eps = args[:4]
    batch, channels, *size = ctx.shape(x)
    grouped = ctx.reshape(x, (batch, groups, channels // groups * math.prod(size)))
    y, mean, rstd = _normalised(ctx, grouped, [2], eps)
    y = _affine(ctx, ctx.reshape(y, ctx.shape(x)), weight, bias, (1, channels, *([1] * len(size))))
    return _results(ctx, y, mean, rstd)


@converter("instance_norm.default")
def _instance_norm(
    ctx: OpContext, x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input: bool, momentum: float, eps: float, *_: Any
) -> Any:
    if not use_input:
        raise NotConvertible("instance norm with running statistics")
    rank, channels = len(ctx.shape(x)), ctx.shape(x)[1]
    y, _, _ = _normalised(ctx, x, list(range(2, rank)), eps)
    return _affine(ctx, y, weight, bias, (1, channels, *([1] * (rank - 2))))
