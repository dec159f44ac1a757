# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.backends.tir_cpu.reading.reduction_op import REDUCER
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import OpContext, axes_of, axis_of, converter, in_float32, int64


def _reduce_te(ctx: OpContext, x: Any, axes: list[int], fn: Callable[..., Any], name: str) -> Any:
    """Emit a reduction by any reducer; the result has the shape of the first output."""
    shape = ctx.shape(x)
    kept = [s for k, s in enumerate(shape) if k not in axes]

    def build(t: Any) -> Any:
        reduced = [te.reduce_axis((int64(0), int64(shape[k])), name=f"k{k}") for k in axes]

        def element(*i: Any) -> Any:
            free, bound = iter(i), iter(reduced)
            return fn(t(*(next(bound) if k in axes else next(free) for k in range(len(shape)))), reduced)

        return te.compute([int64(s) for s in kept], element, name=name)

    return ctx.reshape(ctx.call_te(build, x, name=name), ctx.type.shape)


@converter("sum.default", "sum.dim_IntList")
@in_float32
def _sum(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if "sum.default" in ctx.op:
        dim, keepdim = None, False
    x = ctx.cast(x, ctx.type.dtype)
    axes = axes_of(dim, len(ctx.shape(x)))
    if not axes:
        return x
    return ctx.reshape(ctx.emit(relax.op.sum(x, axes, keepdim)), ctx.type.shape)


@converter("mean.default", "mean.dim")
@in_float32
def _mean(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if "mean.default" in ctx.op:
        dim, keepdim = None, False
    x = ctx.cast(x, ctx.type.dtype)
    axes = axes_of(dim, len(ctx.shape(x)))
    if not axes:
        return x
    return ctx.reshape(ctx.emit(relax.op.mean(x, axes, keepdim)), ctx.type.shape)


def _moments(ctx: OpContext, x: Any, dim: Any, correction: Any) -> tuple[Any, Any]:
    """Return (variance, mean) in float64 with the reduced dimensions kept: as in PyTorch, squares of large numbers do not overflow."""
    x = ctx.cast(x, "float64")
    shape = ctx.shape(x)
    axes = axes_of(dim, len(shape))
    count = math.prod(shape[a] for a in axes)
    mean = ctx.emit(relax.op.mean(x, axes, True)) if axes else x
    centred = ctx.emit(relax.op.subtract(x, mean))
    squares = ctx.emit(relax.op.multiply(centred, centred))
    total = ctx.emit(relax.op.sum(squares, axes, True)) if axes else squares
    divisor = max(0.0, count - (1 if correction is None else correction))
    return ctx.binary("divide", total, float(divisor), "float64"), mean


@converter("var.correction", "std.correction")
@in_float32
def _var(ctx: OpContext, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return _spread(ctx, _moments(ctx, x, dim, correction)[0])


@converter("var_mean.correction", "std_mean.correction")
@in_float32
def _var_mean(ctx: OpContext, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    var, _ = _moments(ctx, x, dim, correction)
    return _spread(ctx, var), ctx.cast(ctx.reshape(_running_mean(ctx, x, dim), ctx.result_shape), ctx.result_dtype)


def _running_mean(ctx: OpContext, x: Any, dim: Any) -> Any:
    """Return the mean in float64 as PyTorch computes it beside a variance: after an infinity that is not the last element it is NaN."""
    shape = ctx.shape(x)
    axes = axes_of(dim, len(shape))
    kept = [k for k in range(len(shape)) if k not in axes]
    count = math.prod(shape[a] for a in axes)
    order = ctx.emit(relax.op.permute_dims(ctx.cast(x, "float64"), [*kept, *axes])) if axes else ctx.cast(x, "float64")
    rows = ctx.reshape(order, (math.prod(shape[k] for k in kept), count))
    last = ctx.emit(relax.op.strided_slice(rows, [1], [count - 1], [count]))
    if count == 1:
        return last
    head = ctx.emit(relax.op.sum(ctx.emit(relax.op.strided_slice(rows, [1], [0], [count - 1])), [1], True))

    def mean(head: Any, last: Any) -> Any:
        zero = semantics.multiply(head, tirx.const(0.0, "float64"))
        return semantics.add((head + last) / tirx.const(float(count), "float64"), zero)

    return ctx.elementwise(mean, head, last, name="mean")


def _spread(ctx: OpContext, var: Any) -> Any:
    var = ctx.reshape(var, ctx.result_shape)
    return ctx.cast(ctx.emit(relax.op.sqrt(var)) if "std" in ctx.op else var, ctx.result_dtype)


@converter("prod.default", "prod.dim_int")
@in_float32
def _prod(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if "prod.default" in ctx.op:
        dim = None
    x = ctx.cast(x, ctx.type.dtype)
    axes = axes_of(dim, len(ctx.shape(x)))
    if not axes:
        return x
    if ctx.type.dtype == "bool":  # TVM multiplies none
        return ctx.cast(_product(ctx, ctx.cast(x, "int8"), axes), "bool")
    return _product(ctx, x, axes)


def _product(ctx: OpContext, x: Any, axes: list[int]) -> Any:
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
    return _reduce_te(ctx, x, axes, lambda v, k: product(v, axis=k), "prod")


def _extreme(is_max: bool) -> Callable[..., Any]:
    reducer = semantics.max_reducer if is_max else semantics.min_reducer

    def convert(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        axes = axes_of(dim, len(ctx.shape(x)))
        if not axes:
            return x
        dtype = ctx.dtype(x)
        if dtype == "bool":  # comparisons are defined on integers
            wide = OpContext(ctx.bb, [type(ctx.type)(ctx.type.shape, "int8")], ctx.op)
            return ctx.cast(convert(wide, ctx.cast(x, "int8"), dim, keepdim), "bool")
        return _reduce_te(ctx, x, axes, lambda v, k: reducer(v, axis=k), "max" if is_max else "min")

    return convert


_max, _min = _extreme(True), _extreme(False)
converter("amax.default", "max.default")(_max)
converter("amin.default", "min.default")(_min)


@converter("any.default", "any.dim", "any.dims")
def _any(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _truth(ctx, x, None if ctx.op.endswith("any.default") else dim, _max)


@converter("all.default", "all.dim", "all.dims")
def _all(ctx: OpContext, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _truth(ctx, x, None if ctx.op.endswith("all.default") else dim, _min)


def _truth(ctx: OpContext, x: Any, dim: Any, extreme: Callable[..., Any]) -> Any:
    return ctx.cast(extreme(ctx, ctx.cast(x, "bool"), dim), ctx.type.dtype)


def _arg_extreme(ctx: OpContext, x: Any, axis: int, is_max: bool) -> tuple[Any, Any]:
    """Return (values, indices) without the axis."""
    shape = ctx.shape(x)
    kept = [int64(s) for k, s in enumerate(shape) if k != axis]
    reducer = semantics.arg_reducer(is_max)
    name = "argmax" if is_max else "argmin"
    if ctx.dtype(x) in ("bool", "bfloat16"):  # TVM has no reductions of two values of these
        x = ctx.cast(x, "int8" if ctx.dtype(x) == "bool" else "float32")

    def build(t: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[axis])), name="k")
        index, value = te.compute(kept, lambda *i: reducer((k, t(*i[:axis], k, *i[axis:])), axis=k), name=name, attrs={REDUCER: name})
        return [index, value]

    both = ctx.call_te(build, x, name=name)
    return ctx.emit(relax.TupleGetItem(both, 1)), ctx.emit(relax.TupleGetItem(both, 0))


def _arg(is_max: bool) -> Callable[..., Any]:
    def convert(ctx: OpContext, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        shape = ctx.shape(x)
        if dim is None or not shape:
            x, dim = ctx.reshape(x, (math.prod(shape),)), 0
        _, index = _arg_extreme(ctx, x, axis_of(dim, len(ctx.shape(x))), is_max)
        return ctx.reshape(index, ctx.type.shape)

    return convert


converter("argmax.default")(_arg(True))
converter("argmin.default")(_arg(False))


def _extreme_dim(is_max: bool) -> Callable[..., Any]:
    def convert(ctx: OpContext, x: Any, dim: int, keepdim: bool = False) -> Any:
        dtype = ctx.dtype(x)
        if not ctx.shape(x):
            x = ctx.reshape(x, (1,))
        value, index = _arg_extreme(ctx, x, axis_of(dim, len(ctx.shape(x))), is_max)
        return ctx.cast(ctx.reshape(value, ctx.result_shape), dtype), ctx.reshape(index, ctx.result_shape)

    return convert


converter("max.dim")(_extreme_dim(True))
converter("min.dim")(_extreme_dim(False))


@converter("_softmax.default", "softmax.int")
@in_float32
def _softmax(ctx: OpContext, x: Any, dim: int, *_: Any) -> Any:
    return _softmax_impl(ctx, x, dim, log=False)


@converter("_log_softmax.default", "log_softmax.int")
@in_float32
def _log_softmax(ctx: OpContext, x: Any, dim: int, *_: Any) -> Any:
    return _softmax_impl(ctx, x, dim, log=True)


def _softmax_impl(ctx: OpContext, x: Any, dim: int, log: bool) -> Any:
    x = ctx.cast(x, ctx.type.dtype)
    shape = ctx.shape(x)
    if not shape:
        return _softmax_impl_rank0(ctx, x, log)
    axis = axis_of(dim, len(shape))
    return ctx.emit(relax.op.nn.log_softmax(x, axis) if log else relax.op.nn.softmax(x, axis))


def _softmax_impl_rank0(ctx: OpContext, x: Any, log: bool) -> Any:
    flat = ctx.reshape(x, (1,))
    return ctx.reshape(ctx.emit(relax.op.nn.log_softmax(flat, 0) if log else relax.op.nn.softmax(flat, 0)), ())


@converter("_softmax_backward_data.default")
@in_float32
def _softmax_backward(ctx: OpContext, gradient: Any, output: Any, dim: int, *_: Any) -> Any:
    """Subtract before multiplying, as the kernel does and PyTorch's decomposition does not: an infinity stays one."""
    shape = ctx.type.shape
    wide = [ctx.reshape(ctx.cast(t, ctx.type.dtype), shape or (1,)) for t in (gradient, output)]
    total = ctx.emit(relax.op.sum(relax.op.multiply(*wide), axis_of(dim, max(1, len(shape))), keepdims=True))
    return ctx.reshape(ctx.emit(relax.op.multiply(wide[1], relax.op.subtract(wide[0], total))), shape)
