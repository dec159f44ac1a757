# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that move elements and compute nothing: views, concatenation, padding."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, axis_of, converter, int64, number


@converter(
    "view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "view_copy.default", "_reshape_alias.default",
)  # fmt: skip
def _reshape(ctx: OpContext, x: Any, *_: Any) -> Any:
    return ctx.reshape(x, ctx.type.shape)


@converter("permute.default")
def _permute(ctx: OpContext, x: Any, dims: Any) -> Any:
    rank = len(ctx.shape(x))
    return _permuted(ctx, x, [axis_of(d, rank) for d in dims])


def _permuted(ctx: OpContext, x: Any, axes: list[int]) -> Any:
    if axes == sorted(axes):
        return x
    shape = ctx.shape(x)
    kept = [a for a in axes if shape[a] != 1]
    if kept == sorted(kept):  # only dimensions of one element move: a reshape, which costs nothing
        return ctx.reshape(x, [shape[a] for a in axes])
    return ctx.emit(relax.op.permute_dims(x, axes))


@converter("t.default", "numpy_T.default", "mT.default")
def _t(ctx: OpContext, x: Any) -> Any:
    rank = len(ctx.shape(x))
    return x if rank < 2 else _permuted(ctx, x, [*range(rank - 2), rank - 1, rank - 2])


@converter("transpose.int")
def _transpose(ctx: OpContext, x: Any, a: int, b: int) -> Any:
    axes = list(range(len(ctx.shape(x))))
    if axes:
        a, b = axis_of(a, len(axes)), axis_of(b, len(axes))
        axes[a], axes[b] = axes[b], axes[a]
    return _permuted(ctx, x, axes)


@converter("movedim.int")
def _movedim(ctx: OpContext, x: Any, source: int, destination: int) -> Any:
    rank = len(ctx.shape(x))
    axes = [i for i in range(rank) if i != axis_of(source, rank)]
    axes.insert(axis_of(destination, rank), axis_of(source, rank))
    return _permuted(ctx, x, axes)


@converter("expand.default", "broadcast_to.default", "expand_as.default")
def _expand(ctx: OpContext, x: Any, *_: Any) -> Any:
    return x if ctx.shape(x) == ctx.type.shape else ctx.emit(relax.op.broadcast_to(x, ctx.type.shape))


@converter("repeat.default", "tile.default")
def _repeat(ctx: OpContext, x: Any, *_: Any) -> Any:
    shape = ctx.shape(x)
    lead = len(ctx.type.shape) - len(shape)
    if 0 in ctx.type.shape:
        raise NotConvertible("a result without elements")

    def element(t: Any, *i: Any) -> Any:
        return t(*(tirx.floormod(v, int64(s)) for v, s in zip(i[lead:], shape)))

    return ctx.compute(element, x, name="tile")


@converter("repeat_interleave.self_int")
def _repeat_interleave(ctx: OpContext, x: Any, repeats: int, dim: int | None = None, output_size: Any = None) -> Any:
    if dim is None:
        x, dim = ctx.reshape(x, (_numel(ctx.shape(x)),)), 0
    axis = axis_of(dim, len(ctx.shape(x)))
    return ctx.compute(lambda t, *i: t(*i[:axis], tirx.floordiv(i[axis], int64(repeats)), *i[axis + 1 :]), x, name="repeat_interleave")


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for s in shape:
        total *= s
    return total


@converter("cat.default", "concat.default", "concatenate.default")
def _cat(ctx: OpContext, tensors: list[Any], dim: int = 0) -> Any:
    dtype = ctx.type.dtype
    # PyTorch ignores empty tensors of rank 1 whatever the rank of the others
    parts = [ctx.cast(t, dtype) for t in tensors if 0 not in ctx.shape(t)]
    if len(parts) == 1:
        return parts[0]
    return ctx.emit(relax.op.concat(parts, axis_of(dim, len(ctx.type.shape))))


@converter("stack.default")
def _stack(ctx: OpContext, tensors: list[Any], dim: int = 0) -> Any:
    shape = list(ctx.type.shape)
    axis = axis_of(dim, len(shape))
    shape[axis] = 1
    return _cat(ctx, [ctx.reshape(t, shape) for t in tensors], axis)


@converter("slice.Tensor", "slice_copy.Tensor")
def _slice(ctx: OpContext, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    first, last, step = slice(start, end, step).indices(shape[axis])
    return _sliced(ctx, x, axis, first, last, step)


def _sliced(ctx: OpContext, x: Any, axis: int, first: int, last: int, step: int = 1) -> Any:
    if (first, step) == (0, 1) and last == ctx.shape(x)[axis]:
        return x
    return ctx.emit(relax.op.strided_slice(x, [axis], [first], [last], [step]))


@converter("narrow.default")
def _narrow(ctx: OpContext, x: Any, dim: int, start: int, length: int) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    start = start % shape[axis] if start < 0 else start
    return _sliced(ctx, x, axis, start, start + length)


@converter("select.int", "select_copy.int")
def _select(ctx: OpContext, x: Any, dim: int, index: int) -> Any:
    shape = ctx.shape(x)
    axis = axis_of(dim, len(shape))
    index = index % shape[axis]
    return ctx.reshape(_sliced(ctx, x, axis, index, index + 1), ctx.type.shape)


@converter(
    "split.Tensor", "split_with_sizes.default", "chunk.default", "split.sizes", "unbind.int", "tensor_split.sections",
    "split_copy.Tensor", "split_with_sizes_copy.default", "unsafe_split.Tensor", "unsafe_split_with_sizes.default",
)  # fmt: skip
def _split(ctx: OpContext, x: Any, *args: Any) -> Any:
    if "unbind" in ctx.op:
        dim, sizes = args[0] if args else 0, None
    else:
        dim, sizes = args[1] if len(args) > 1 else 0, args[0]
    axis = axis_of(dim, len(ctx.shape(x)))
    parts, at = [], 0
    for out in ctx.out:
        if out is None:
            raise NotConvertible("an undefined part")
        width = 1 if sizes is None else out.shape[axis]
        parts.append(ctx.reshape(_sliced(ctx, x, axis, at, at + width), out.shape))
        at += width
    return tuple(parts)


@converter("constant_pad_nd.default")
def _constant_pad(ctx: OpContext, x: Any, pad: list[int], value: float = 0) -> Any:
    shape, out, dtype = ctx.shape(x), ctx.type.shape, ctx.type.dtype
    rank, filler = len(shape), tirx.const(number(value, dtype), dtype)
    before = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k] = pad[2 * k]

    def element(t: Any, *i: Any) -> Any:
        inside = [tirx.const(True, "bool")]
        index = []
        for v, b, s, o in zip(i, before, shape, out):
            if b == 0 and o == s:
                index.append(v)
                continue
            inside += [v >= int64(b), v < int64(b + s)]
            index.append(v - int64(b))
        return tirx.if_then_else(tirx.all(*inside), t(*index), filler)

    return ctx.compute(element, x, name="pad")


@converter("pad.default")
def _pad(ctx: OpContext, x: Any, pad: list[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant":
        return _constant_pad(ctx, x, pad, value or 0)
    return _mapped_pad(ctx, x, pad, mode)


def _mapped_pad(ctx: OpContext, x: Any, pad: list[int], mode: str) -> Any:
    shape = ctx.shape(x)
    rank = len(shape)
    before = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k] = pad[2 * k]

    def source(v: Any, b: int, s: int) -> Any:
        v = v - int64(b)
        if mode == "replicate":
            return tirx.max(int64(0), tirx.min(v, int64(s - 1)))
        if mode == "circular":
            return tirx.floormod(v, int64(s))
        v = tirx.Select(v < int64(0), -v, v)
        return tirx.Select(v > int64(s - 1), int64(2 * (s - 1)) - v, v)

    touched = rank - len(pad) // 2
    return ctx.compute(
        lambda t, *i: t(*i[:touched], *(source(i[k], before[k], shape[k]) for k in range(touched, rank))), x, name=f"{mode}_pad"
    )


for _mode, _torch in (("reflect", "reflection"), ("replicate", "replication")):
    for _n in (1, 2, 3):
        converter(f"{_torch}_pad{_n}d.default")(lambda ctx, x, pad, mode=_mode: _mapped_pad(ctx, x, pad, mode))


@converter("flip.default")
def _flip(ctx: OpContext, x: Any, dims: list[int]) -> Any:
    shape = ctx.shape(x)
    axes = {axis_of(d, len(shape)) for d in dims}
    return ctx.compute(lambda t, *i: t(*(int64(shape[k] - 1) - v if k in axes else v for k, v in enumerate(i))), x, name="flip")


@converter("roll.default")
def _roll(ctx: OpContext, x: Any, shifts: list[int], dims: list[int] | None = None) -> Any:
    shape = ctx.shape(x)
    if not dims:
        flat = ctx.reshape(x, (_numel(shape),))
        n = _numel(shape)
        rolled = ctx.compute(lambda t, i: t(tirx.floormod(i - int64(shifts[0]), int64(n))), flat, name="roll", shape=(n,))
        return ctx.reshape(rolled, shape)
    amount = [0] * len(shape)
    for s, d in zip(shifts, dims):
        amount[axis_of(d, len(shape))] += s
    return ctx.compute(
        lambda t, *i: t(*(tirx.floormod(v - int64(a), int64(s)) if a else v for v, a, s in zip(i, amount, shape))), x, name="roll"
    )


@converter("pixel_shuffle.default")
def _pixel_shuffle(ctx: OpContext, x: Any, factor: int) -> Any:
    *lead, c, h, w = ctx.shape(x)
    n = len(lead)
    grid = ctx.reshape(x, (*lead, c // factor**2, factor, factor, h, w))
    moved = _permuted(ctx, grid, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return ctx.reshape(moved, ctx.type.shape)


@converter("tril.default", "triu.default")
def _triangle(ctx: OpContext, x: Any, diagonal: int = 0) -> Any:
    lower = "tril" in ctx.op
    dtype = ctx.type.dtype

    def element(t: Any, *i: Any) -> Any:
        keep = i[-1] - i[-2] <= int64(diagonal) if lower else i[-1] - i[-2] >= int64(diagonal)
        return tirx.Select(keep, t(*i), tirx.const(0, dtype))

    return ctx.compute(element, x, name="tril" if lower else "triu")


@converter("eye.default", "eye.m")
def _eye(ctx: OpContext, *_: Any) -> Any:
    dtype = ctx.type.dtype
    return ctx.compute(lambda i, j: tirx.Select(i == j, tirx.const(1, dtype), tirx.const(0, dtype)), name="eye")


@converter("diagonal.default")
def _diagonal(ctx: OpContext, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(ctx.shape(x))
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)

    def element(t: Any, *i: Any) -> Any:
        rest = iter(i[:-1])
        index = [None if k in (a, b) else next(rest) for k in range(rank)]
        index[a] = i[-1] + int64(max(0, -offset))
        index[b] = i[-1] + int64(max(0, offset))
        return t(*index)

    return ctx.compute(element, x, name="diagonal")


@converter("unfold.default")
def _unfold(ctx: OpContext, x: Any, dim: int, size: int, step: int) -> Any:
    if not ctx.shape(x):
        return ctx.reshape(x, ctx.type.shape)
    axis = axis_of(dim, len(ctx.shape(x)))
    return ctx.compute(lambda t, *i: t(*i[:axis], i[axis] * int64(step) + i[-1], *i[axis + 1 : -1]), x, name="unfold")
