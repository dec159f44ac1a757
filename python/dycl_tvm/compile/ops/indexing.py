# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Indexing by tensors: gather, scatter, embedding. Every index is brought into range, so that no kernel reads or writes outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, axis_of, broadcast_index, broadcast_shape, converter, int64, is_float
from dycl_tvm.compile.ops.elementwise import filled
from dycl_tvm.errors import CompileError
from dycl_tvm.hcfg.checks import has_demands


def wrapped(ctx: OpContext, index: Any, extent: int) -> Any:
    """Return an index with Python's negative numbers, clamped to the tensor: kernels run before a check ends the call.

    An operator that has no check cannot have places: they would be wrong ones without an error.
    """
    if not has_demands(ctx.op):
        raise CompileError(f"internal: {ctx.op} reads or writes at places that nothing checks: see dycl_tvm.hcfg.checks")
    index = index.astype("int64")
    index = tirx.Select(index < int64(0), index + int64(extent), index)
    return tirx.max(int64(0), tirx.min(index, int64(extent - 1)))


def _take(ctx: OpContext, x: Any, axis: int, index: Any, name: str) -> Any:
    """Emit ``x`` with the axis replaced by the dimensions of ``index``."""
    shape, n = ctx.shape(x), len(ctx.shape(index))
    out = (*shape[:axis], *ctx.shape(index), *shape[axis + 1 :])
    return ctx.compute(
        lambda t, j, *i: t(*i[:axis], wrapped(ctx, j(*i[axis : axis + n]), shape[axis]), *i[axis + n :]), x, index, name=name, shape=out
    )


@converter("embedding.default")
def _embedding(ctx: OpContext, weight: Any, index: Any, *_: Any) -> Any:
    return _take(ctx, weight, 0, index, "embedding")


@converter("index_select.default")
def _index_select(ctx: OpContext, x: Any, dim: int, index: Any) -> Any:
    if not ctx.shape(x):
        return x
    taken = _take(ctx, x, axis_of(dim, len(ctx.shape(x))), index, "index_select")
    return ctx.reshape(taken, ctx.type.shape)  # an index of rank 0 keeps the axis


@converter("take.default")
def _take_flat(ctx: OpContext, x: Any, index: Any) -> Any:
    return _take(ctx, ctx.reshape(x, (math.prod(ctx.shape(x)),)), 0, index, "take")


@converter("gather.default")
def _gather(ctx: OpContext, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    shape = ctx.shape(x)
    if not shape:
        return ctx.reshape(x, ctx.type.shape)
    axis = axis_of(dim, len(shape))
    if not ctx.shape(index):
        index = ctx.reshape(index, (1,))
    gathered = ctx.compute(
        lambda t, j, *i: t(*i[:axis], wrapped(ctx, j(*i), shape[axis]), *i[axis + 1 :]), x, index, name="gather", shape=ctx.shape(index)
    )
    return ctx.reshape(gathered, ctx.type.shape)


@converter("index.Tensor", "_unsafe_index.Tensor")
def _index(ctx: OpContext, x: Any, indices: list[Any]) -> Any:
    shape = ctx.shape(x)
    given = [k for k, j in enumerate(indices) if j is not None]
    tensors = [indices[k] for k in given]
    if any(ctx.dtype(t) == "bool" for t in tensors):
        raise NotConvertible("indexing by a bool mask, whose result has no static shape")
    common = broadcast_shape([ctx.shape(t) for t in tensors])
    n = len(common)
    # PyTorch puts the indexed dimensions first unless they are adjacent
    adjacent = given == list(range(given[0], given[-1] + 1))
    at = given[0] if adjacent else 0
    shapes = [ctx.shape(t) for t in tensors]

    def element(t: Any, *rest: Any) -> Any:
        js, i = rest[: len(tensors)], rest[len(tensors) :]
        picked = i[at : at + n]
        free = iter((*i[:at], *i[at + n :]))
        lookup = {k: wrapped(ctx, j(*broadcast_index(s, picked)), shape[k]) for k, j, s in zip(given, js, shapes)}
        return t(*(lookup[k] if k in lookup else next(free) for k in range(len(shape))))

    return ctx.compute(element, x, *tensors, name="index")


_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
#: Reductions of ``scatter_reduce``: how two are combined, the reducer, and what changes nothing.
_REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Any], Callable[[str], Any]]] = {
    "add": (lambda a, b: a + b, te.sum, lambda dtype: tirx.const(0, dtype)),
    "mean": (lambda a, b: a + b, te.sum, lambda dtype: tirx.const(0, dtype)),
    "prod": (semantics.multiply, _PRODUCT, lambda dtype: tirx.const(1, dtype)),
    "amax": (semantics.maximum, semantics.max_reducer, semantics.lowest),
    "amin": (semantics.minimum, semantics.min_reducer, semantics.highest),
}


def _divided(total: Any, count: Any) -> Any:
    return total / count if is_float(semantics.dtype_of(total)) else semantics.floor_divide(total, count)


def _scatter_kernel(ctx: OpContext, x: Any, axis: int, index: Any, source: Any, how: str, name: str, own: bool = True) -> Any:
    """Scatter as a gather: each output element looks for the entries of ``index`` that name it.

    ``source`` has the shape of ``index``. The last entry wins, as it does in PyTorch on a CPU. ``own`` says whether the element of ``x``
    takes part in a reduction; if not, it stands only where no entry names it.
    """
    if ctx.dtype(x) == "bool" and how in _REDUCTIONS:  # a sum of bools is whether one of them is true
        how = {"add": "amax", "prod": "amin"}.get(how, how)
        x, source = ctx.cast(x, "int8"), ctx.cast(source, "int8")
        return ctx.cast(_scatter_kernel(ctx, x, axis, index, source, how, name, own), "bool")
    shape, span = ctx.shape(x), ctx.shape(index)
    n = span[axis]
    dtype = ctx.dtype(x)
    if math.prod(shape) * n > 1 << 28:
        raise NotConvertible("a scatter of this size")

    def build(t: Any, j: Any, s: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(n)), name="k")

        def covered(i: Any) -> Any:
            others = [v < int64(e) for d, (v, e) in enumerate(zip(i, span)) if d != axis and e < shape[d]]
            return tirx.all(tirx.const(True, "bool"), *others)

        def entry(i: Any, v: Any) -> list[Any]:
            return [v if d == axis else (q if span[d] >= shape[d] else tirx.min(q, int64(span[d] - 1))) for d, q in enumerate(i)]

        def hit(i: Any, v: Any) -> Any:
            return tirx.And(covered(i), wrapped(ctx, j(*entry(i, v)), shape[axis]) == i[axis])

        extents = [int64(v) for v in shape]
        if how in _REDUCTIONS:
            combine, reducer, neutral = _REDUCTIONS[how]
            first = neutral(dtype)
            found = te.compute(extents, lambda *i: reducer(tirx.Select(hit(i, k), s(*entry(i, k)), first), axis=k), name="reduced")
            if own and how != "mean":
                return te.compute(extents, lambda *i: combine(t(*i), found(*i)), name=name)
            named = te.compute(extents, lambda *i: te.sum(tirx.Select(hit(i, k), int64(1), int64(0)), axis=k), name="named")

            def element(*i: Any) -> Any:
                total = combine(t(*i), found(*i)) if own else found(*i)
                if how == "mean":
                    total = _divided(total, (named(*i) + int64(own)).astype(dtype))
                return tirx.if_then_else(named(*i) > int64(0), total, t(*i))

            return te.compute(extents, element, name=name)
        last = te.compute(extents, lambda *i: te.max(tirx.Select(hit(i, k), k, int64(-1)), axis=k), name="last")
        return te.compute(
            extents,
            lambda *i: tirx.if_then_else(last(*i) >= int64(0), s(*entry(i, tirx.max(last(*i), int64(0)))), t(*i)),
            name=name,
        )

    return ctx.call_te(build, x, index, source, name=name)


def _scatter(ctx: OpContext, x: Any, dim: int, index: Any, source: Any, how: str, own: bool = True) -> Any:
    shape = ctx.shape(x)
    if not shape:
        one = [type(ctx.type)((1,), ctx.type.dtype)]
        inner = OpContext(ctx.bb, one, ctx.op)
        source = source if isinstance(source, (int, float)) else ctx.reshape(source, (1,))
        return ctx.reshape(_scatter(inner, ctx.reshape(x, (1,)), 0, ctx.reshape(index, (1,)), source, how, own), ())
    span = ctx.shape(index)
    if isinstance(source, (bool, int, float)):
        source = filled(ctx, span, source, ctx.dtype(x))
    elif ctx.shape(source) != span:
        source = ctx.emit(relax.op.strided_slice(source, list(range(len(span))), [0] * len(span), list(span)))
    return _scatter_kernel(ctx, x, axis_of(dim, len(shape)), index, source, how, "scatter", own)


@converter("scatter.src", "scatter.value")
def _scatter_set(ctx: OpContext, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter(ctx, x, dim, index, source, "set")


@converter("scatter_add.default")
def _scatter_add(ctx: OpContext, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter(ctx, x, dim, index, source, "add")


@converter("scatter_reduce.two")
def _scatter_reduce(ctx: OpContext, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    return _scatter(ctx, x, dim, index, source, "add" if reduce == "sum" else reduce, include_self)


@converter("index_copy.default", "index_fill.int_Scalar", "index_add.default")
def _index_write(ctx: OpContext, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    n = math.prod(ctx.shape(index))
    span = (*shape[:axis], n, *shape[axis + 1 :])
    lined = ctx.reshape(index, tuple(n if k == axis else 1 for k in range(len(shape))))
    index = ctx.emit(relax.op.broadcast_to(lined, span)) if ctx.shape(lined) != span else lined
    how = "add" if "index_add" in ctx.op else "set"
    if alpha != 1:
        source = ctx.binary("multiply", source, alpha, ctx.type.dtype)
    if not isinstance(source, (bool, int, float)):
        source = ctx.reshape(source, span)
    return _scatter(ctx, x, axis, index, source, how)


@converter("index_put.default", "_unsafe_index_put.default")
def _index_put(ctx: OpContext, x: Any, indices: list[Any], values: Any, accumulate: bool = False) -> Any:
    shape = ctx.shape(x)
    given = [k for k, j in enumerate(indices) if j is not None]
    tensors = [indices[k] for k in given]
    if len(given) == 1 and ctx.dtype(tensors[0]) == "bool":
        mask = tensors[0]
        if not accumulate and math.prod(ctx.shape(values)) == 1 and given == [0]:
            mask = ctx.reshape(mask, (*ctx.shape(mask), *([1] * (len(shape) - len(ctx.shape(mask))))))
            return ctx.emit(relax.op.where(mask, ctx.reshape(ctx.cast(values, ctx.type.dtype), ()), x))
        raise NotConvertible("writing several values through a bool mask")
    if any(ctx.dtype(t) == "bool" for t in tensors):
        raise NotConvertible("writing through a bool mask together with other indices")
    common = broadcast_shape([ctx.shape(t) for t in tensors])
    if given != list(range(len(given))):
        return _index_put_inside(ctx, x, indices, values, accumulate, given, len(common))
    entries, rows, tail = math.prod(common), math.prod(shape[: len(given)]), shape[len(given) :]
    if rows * entries * math.prod(tail) > 1 << 28:
        raise NotConvertible("a write of this size")
    shapes = [ctx.shape(t) for t in tensors]

    def flat_row(*js: Any) -> Any:
        def element(*i: Any) -> Any:
            row: Any = int64(0)
            for k, (j, s) in enumerate(zip(js, shapes)):
                row = row * int64(shape[k]) + wrapped(ctx, j(*broadcast_index(s, i)), shape[k])
            return row

        return te.compute([int64(s) for s in common], element, name="row")

    row = ctx.reshape(ctx.call_te(flat_row, *tensors, name="row"), (entries,))
    values = ctx.cast(values, ctx.type.dtype)
    if ctx.shape(values) != (*common, *tail):
        values = ctx.emit(relax.op.broadcast_to(values, (*common, *tail)))
    width = math.prod(tail)
    values = ctx.reshape(values, (entries, width))
    flat = ctx.reshape(x, (rows, width))
    row = ctx.emit(relax.op.broadcast_to(ctx.reshape(row, (entries, 1)), (entries, width)))
    written = _scatter_kernel(ctx, flat, 0, row, values, "add" if accumulate else "set", "index_put")
    return ctx.reshape(written, shape)


def _index_put_inside(ctx: OpContext, x: Any, indices: list[Any], values: Any, accumulate: bool, given: list[int], width: int) -> Any:
    """Write by index tensors that are not in the first dimensions, as these: ``width`` is the number of dimensions that they have."""
    shape = ctx.shape(x)
    order = [*given, *(k for k in range(len(shape)) if k not in given)]
    at = given[0] if given == list(range(given[0], given[-1] + 1)) else 0  # PyTorch puts indexed dimensions first unless they are adjacent
    rank = width + len(shape) - len(given)
    values = ctx.reshape(values, ((1,) * (rank - len(ctx.shape(values))) + ctx.shape(values)))
    front = [*range(at, at + width), *range(at), *range(at + width, rank)]
    moved = [ctx.emit(relax.op.permute_dims(t, o)) for t, o in ((x, order), (values, front))]
    inner = OpContext(ctx.bb, [type(ctx.type)(ctx.shape(moved[0]), ctx.type.dtype)], ctx.op)
    written = _index_put(inner, moved[0], [indices[k] for k in given], moved[1], accumulate)
    return ctx.emit(relax.op.permute_dims(written, [order.index(k) for k in range(len(shape))]))


@converter("select_scatter.default")
def _select_scatter(ctx: OpContext, x: Any, source: Any, dim: int, index: int) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    at = index % shape[axis]
    source = ctx.cast(source, ctx.type.dtype)
    return ctx.compute(
        lambda t, s, *i: tirx.if_then_else(i[axis] == int64(at), s(*i[:axis], *i[axis + 1 :]), t(*i)), x, source, name="select_scatter"
    )


@converter("slice_scatter.default")
def _slice_scatter(ctx: OpContext, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    first, last, step = slice(start, end, step).indices(shape[axis])
    n = len(range(first, last, step))
    if n == 0:
        return x
    source = ctx.cast(source, ctx.type.dtype)

    def element(t: Any, s: Any, *i: Any) -> Any:
        away = i[axis] - int64(first)
        inside = tirx.all(away >= int64(0), away <= int64((n - 1) * step), tirx.floormod(away, int64(step)) == int64(0))
        return tirx.if_then_else(inside, s(*i[:axis], tirx.floordiv(away, int64(step)), *i[axis + 1 :]), t(*i))

    return ctx.compute(element, x, source, name="slice_scatter")
