# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Scans and sorting: operators whose results stand in an order along one axis. They are lowered in :mod:`dycl_tvm.compile.ordering`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.compile.ops.context import CONVERTERS, NotConvertible, OpContext, axis_of, converter, in_float32
from dycl_tvm.compile.templates import symbol_of
from dycl_tvm.hcfg.orders import NAMESPACE

#: Elements of an axis that kernels of a GPU scan and sort: their cost is quadratic.
_MAX_SCAN, _MAX_SORT = 4096, 16384


def _check_length(n: int, limit: int, what: str) -> None:
    target = tvm.target.Target.current()
    if n > limit and target is not None and str(target.kind) != "llvm":
        raise NotConvertible(f"{what} {n} elements on a GPU (at most {limit})")


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return a shape as what is before an axis, the axis, and what is behind it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _scan(scan: Callable[..., Any]) -> Callable[..., Any]:
    def convert(ctx: OpContext, x: Any, dim: int, dtype: Any = None) -> Any:
        x = ctx.cast(x, ctx.type.dtype)
        shape = ctx.shape(x)
        if not shape:
            return x
        around = _around(shape, axis_of(dim, len(shape)))
        _check_length(around[1], _MAX_SCAN, "a scan over")
        return ctx.reshape(ctx.emit(scan(ctx.reshape(x, around), 1, ctx.type.dtype)), shape)

    return in_float32(convert)


converter("cumsum.default")(_scan(relax.op.cumsum))
converter("cumprod.default")(_scan(relax.op.cumprod))


def _ordered(ctx: OpContext, x: Any, k: int, dim: int, descending: bool, wanted: tuple[bool, bool] = (True, True)) -> tuple[Any, Any]:
    """Return the first k (values, indices) in order along ``dim``: stable, NaN is the largest. What is not wanted may be None."""
    shape, dtype = ctx.shape(x), ctx.dtype(x)
    if not shape:
        return x, ctx.const(0, "int64")
    axis = axis_of(dim, len(shape))
    around = _around(shape, axis)
    _check_length(around[1], _MAX_SORT, "sorting")
    if dtype == "bool":
        x = ctx.cast(x, "int8")
    which = "both" if all(wanted) else "values" if wanted[0] else "indices"
    found = ctx.emit(relax.op.topk(ctx.reshape(x, around), k, 1, which, descending, "int64"))
    value, index = (ctx.emit(relax.TupleGetItem(found, i)) for i in range(2)) if all(wanted) else (found, found)
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return (
        ctx.cast(ctx.reshape(value, result), dtype) if wanted[0] else None,
        ctx.reshape(index, result) if wanted[1] else None,
    )


def _wanted(ctx: OpContext) -> tuple[bool, bool]:
    wanted = (0 not in ctx.unused, 1 not in ctx.unused)
    return wanted if any(wanted) else (True, True)


def _length(ctx: OpContext, x: Any, dim: int) -> int:
    shape = ctx.shape(x)
    return shape[axis_of(dim, len(shape))] if shape else 1


@converter("sort.default", "sort.stable")
def _sort(ctx: OpContext, x: Any, *args: Any) -> Any:
    dim, descending = args[1:] if "stable" in ctx.op else args
    return _ordered(ctx, x, _length(ctx, x, dim), dim, bool(descending), _wanted(ctx))


@converter("argsort.default", "argsort.stable")
def _argsort(ctx: OpContext, x: Any, *args: Any) -> Any:
    dim, descending = args[1:] if "stable" in ctx.op else args
    return _ordered(ctx, x, _length(ctx, x, dim), dim, bool(descending), (False, True))[1]


@converter("topk.default")
def _topk(ctx: OpContext, x: Any, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> Any:
    """Which of equal elements PyTorch takes follows from its algorithm, used on CPUs here too; a GPU takes those that come first."""
    shape, dtype = ctx.shape(x), ctx.dtype(x)
    target = tvm.target.Target.current()
    if not shape or (target is not None and str(target.kind) != "llvm"):
        return _ordered(ctx, x, k, dim, bool(largest), _wanted(ctx))
    axis = axis_of(dim, len(shape))
    around, result = _around(shape, axis), (*shape[:axis], k, *shape[axis + 1 :])
    return tuple(ctx.reshape(part, result) for part in _chosen(ctx, "TopK", [ctx.reshape(x, around)], around, k, dtype, largest, is_sorted))


def _chosen(
    ctx: OpContext, function: str, operands: list[Any], around: tuple[int, ...], k: int, dtype: str, largest: bool, is_sorted: bool
) -> list[Any]:
    symbol = symbol_of("order", function, [dtype], [bool(largest), bool(is_sorted)])
    types = [relax.TensorType((around[0], k, around[2]), d) for d in (dtype, "int64")]
    made = ctx.emit(relax.call_dps_packed(symbol, relax.Tuple(operands), types))
    return [ctx.emit(relax.TupleGetItem(made, i)) for i in range(2)]


def _topk_of_some(ctx: OpContext, x: Any, n: Any, k: Any, most: int, largest: bool, is_sorted: bool) -> Any:
    target = tvm.target.Target.current()
    if target is not None and str(target.kind) != "llvm":
        raise NotConvertible("topk() along a dimension whose length is known only at run time, on a GPU")
    return tuple(_chosen(ctx, "TopKOfSome", [x, n, k], ctx.shape(x), most, ctx.dtype(x), largest, is_sorted))


CONVERTERS[f"{NAMESPACE}.topk.default"] = _topk_of_some
