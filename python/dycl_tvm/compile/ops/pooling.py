# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling: maximum, average, adaptive, of 1, 2 and 3 dimensions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import OpContext, converter, in_float32, int64, is_float, pair


def _window(
    x_size: list[int], pos: Any, taps: Any, stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[list[Any], list[Any]]:
    """Return (index, conditions that it is inside) of a window's element."""
    index, inside = [], []
    for v, tap, s, st, p, d in zip(pos, taps, x_size, stride, padding, dilation):
        at = v * int64(st) + tap * int64(d) - int64(p)
        index.append(at)
        inside += [at >= int64(0), at < int64(s)]
    return index, inside


def _needs_mask(size: list[int], out: list[int], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> bool:
    return any(p > 0 or (o - 1) * st + (k - 1) * d - p >= s for s, o, k, st, p, d in zip(size, out, kernel, stride, padding, dilation))


def _max_pool(ctx: OpContext, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, n: int, indices: bool) -> Any:
    kernel = pair(kernel, n)
    stride, padding, dilation = pair(stride, n, kernel), pair(padding, n, 0), pair(dilation, n, 1)
    lead, size = list(ctx.shape(x)[:-n]), list(ctx.shape(x)[-n:])
    out = list(ctx.result_shape[-n:])
    own = ctx.dtype(x)
    x = _with_places(ctx, x) if indices else x
    dtype, masked = ctx.dtype(x), _needs_mask(size, out, kernel, stride, padding, dilation)
    extents = [int64(v) for v in (*lead, *out)]

    def build(t: Any) -> Any:
        taps = [te.reduce_axis((int64(0), int64(k)), name=f"r{i}") for i, k in enumerate(kernel)]

        def value(i: Any) -> tuple[Any, Any]:
            at, inside = _window(size, i[len(lead) :], taps, stride, padding, dilation)
            element = t(*i[: len(lead)], *at)
            if masked:
                element = tirx.if_then_else(tirx.all(*inside), element, semantics.lowest(dtype))
            flat: Any = int64(0)
            for a, s in zip(at, size):
                flat = flat * int64(s) + a
            # an element outside never wins a tie: its index is that of the identity
            return (tirx.if_then_else(tirx.all(*inside), flat, int64(-1)) if masked else flat), element

        if not indices:
            return te.compute(extents, lambda *i: semantics.max_reducer(value(i)[1], axis=taps), name="max_pool")
        return list(te.compute(extents, lambda *i: semantics.arg_reducer(True, last_nan=True)(value(i), axis=taps), name="max_pool"))

    both = ctx.call_te(build, x, name=f"max_pool{n}d")
    return _values_and_places(ctx, both, own) if indices else both


def _with_places(ctx: OpContext, x: Any) -> Any:
    """Return what is reduced together with its places: TVM has no such reductions of bfloat16."""
    return ctx.cast(x, "float32") if ctx.dtype(x) == "bfloat16" else x


def _values_and_places(ctx: OpContext, both: Any, dtype: str) -> tuple[Any, Any]:
    return ctx.cast(ctx.emit(relax.TupleGetItem(both, 1)), dtype), ctx.emit(relax.TupleGetItem(both, 0))


def window_sums(ctx: OpContext, x: Any, kernel: list[int], stride: list[int], padding: list[int]) -> Any:
    """Emit the sums of windows of the last dimensions, in the type of the result; the border is filled with zeros."""
    totals = _totals(list(ctx.shape(x)), ctx, kernel, stride, padding)
    return ctx.call_te(totals, x, name=f"window_sums{len(kernel)}d")


def _totals(shape: list[int], ctx: OpContext, kernel: list[int], stride: list[int], padding: list[int]) -> Callable[[Any], Any]:
    """Return the function from a tensor of such a shape to the sums of its windows."""
    n = len(kernel)
    lead, size, out = shape[:-n], shape[-n:], list(ctx.type.shape[-n:])
    dtype, masked = ctx.type.dtype, _needs_mask(size, out, kernel, stride, padding, [1] * n)
    extents = [int64(v) for v in (*lead, *out)]

    def build(t: Any) -> Any:
        taps = [te.reduce_axis((int64(0), int64(k)), name=f"r{i}") for i, k in enumerate(kernel)]

        def element(*i: Any) -> Any:
            at, inside = _window(size, i[len(lead) :], taps, stride, padding, [1] * n)
            value = t(*i[: len(lead)], *at).astype(dtype)
            return te.sum(tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)) if masked else value, axis=taps)

        return te.compute(extents, element, name="pool_sum")

    return build


def _avg_pool(ctx: OpContext, x: Any, kernel: Any, stride: Any, padding: Any, count_pad: bool, divisor: int | None, n: int) -> Any:
    kernel = pair(kernel, n)
    stride, padding = pair(stride, n, kernel), pair(padding, n, 0)
    lead, size = list(ctx.shape(x)[:-n]), list(ctx.shape(x)[-n:])
    out = list(ctx.type.shape[-n:])
    dtype, masked = ctx.type.dtype, _needs_mask(size, out, kernel, stride, padding, [1] * n)
    totals = _totals([*lead, *size], ctx, kernel, stride, padding)

    def build(t: Any) -> Any:
        total = totals(t)

        def count(i: Any) -> Any:
            if divisor is not None:
                return tirx.const(divisor, dtype)
            if not masked:
                return tirx.const(math.prod(kernel), dtype)
            area: Any = int64(1)
            for v, s, k, st, p in zip(i[len(lead) :], size, kernel, stride, padding):
                start = v * int64(st) - int64(p)
                # a window of ceil_mode counts the padding, but not what lies beyond it
                end = tirx.min(start + int64(k), int64(s + p))
                if not count_pad:
                    start, end = tirx.max(start, int64(0)), tirx.min(end, int64(s))
                area = area * (end - start)
            return area.astype(dtype)

        divided = operator.truediv if is_float(dtype) else tirx.truncdiv
        return te.compute(total.shape, lambda *i: divided(total(*i), count(i)), name="avg_pool")

    return ctx.call_te(build, x, name=f"avg_pool{n}d")


def _register(n: int) -> None:
    @converter(f"max_pool{n}d_with_indices.default")
    def _with_indices(
        ctx: OpContext, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        if len(ctx.out) < 2 or ctx.out[1] is None or 1 in ctx.unused:
            return _max_pool(ctx, x, kernel, stride, padding, dilation, n, False), None
        return _max_pool(ctx, x, kernel, stride, padding, dilation, n, True)

    @converter(f"max_pool{n}d.default")
    def _plain(ctx: OpContext, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        return _max_pool(ctx, x, kernel, stride, padding, dilation, n, False)

    @converter(f"avg_pool{n}d.default")
    @in_float32
    def _average(
        ctx: OpContext, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        return _avg_pool(ctx, x, kernel, stride, padding, count_include_pad, divisor_override, n)

    @converter(f"_adaptive_avg_pool{n}d.default", f"adaptive_avg_pool{n}d.default")
    @in_float32
    def _adaptive_average(ctx: OpContext, x: Any, size: Any) -> Any:
        return _adaptive(ctx, x, n, is_max=False, indices=False)

    @converter(f"adaptive_max_pool{n}d.default")
    def _adaptive_max(ctx: OpContext, x: Any, size: Any) -> Any:
        wanted = len(ctx.out) > 1 and ctx.out[1] is not None and 1 not in ctx.unused
        result = _adaptive(ctx, x, n, is_max=True, indices=wanted)
        return result if wanted else (result, None)


for _n in (1, 2, 3):
    _register(_n)


def _adaptive(ctx: OpContext, x: Any, n: int, is_max: bool, indices: bool) -> Any:
    lead, size = list(ctx.shape(x)[:-n]), list(ctx.shape(x)[-n:])
    out = list(ctx.result_shape[-n:])
    if all(s % o == 0 for s, o in zip(size, out)):
        kernel = [s // o for s, o in zip(size, out)]
        if is_max:
            return _max_pool(ctx, x, kernel, kernel, 0, 1, n, indices)
        if out == [1] * n:
            axes = list(range(len(lead), len(lead) + n))
            return ctx.emit(relax.op.mean(x, axes, True))
        return _avg_pool(ctx, x, kernel, kernel, 0, True, None, n)
    own = ctx.dtype(x)
    x = _with_places(ctx, x) if indices else x
    dtype = ctx.dtype(x)
    # windows of different lengths: reduce over the longest one and mask
    longest = [max(-(-(i + 1) * s // o) - i * s // o for i in range(o)) for s, o in zip(size, out)]
    extents = [int64(v) for v in (*lead, *out)]

    def bounds(i: Any) -> list[tuple[Any, Any]]:
        pos = i[len(lead) :]
        return [
            (tirx.floordiv(v * int64(s), int64(o)), tirx.floordiv((v + 1) * int64(s) + int64(o - 1), int64(o)))
            for v, s, o in zip(pos, size, out)
        ]

    def build(t: Any) -> Any:
        taps = [te.reduce_axis((int64(0), int64(k)), name=f"r{i}") for i, k in enumerate(longest)]

        def value(i: Any, outside: Any) -> tuple[Any, Any]:
            at = [b + tap for (b, _), tap in zip(bounds(i), taps)]
            inside = tirx.all(*(a < e for a, (_, e) in zip(at, bounds(i))))
            flat: Any = int64(0)
            for a, s in zip(at, size):
                flat = flat * int64(s) + a
            return tirx.if_then_else(inside, flat, int64(-1)), tirx.if_then_else(inside, t(*i[: len(lead)], *at), outside)

        if is_max and indices:
            reducer = semantics.arg_reducer(True, last_nan=True)
            return list(te.compute(extents, lambda *i: reducer(value(i, semantics.lowest(dtype)), axis=taps), name="adaptive_max_pool"))
        if is_max:
            low = semantics.lowest(dtype)
            return te.compute(extents, lambda *i: semantics.max_reducer(value(i, low)[1], axis=taps), name="adaptive_max_pool")
        total = te.compute(extents, lambda *i: te.sum(value(i, tirx.const(0, dtype))[1], axis=taps), name="pool_sum")

        def area(i: Any) -> Any:
            count: Any = int64(1)
            for b, e in bounds(i):
                count = count * (e - b)
            return count.astype(dtype)

        return te.compute(extents, lambda *i: total(*i) / area(i), name="adaptive_avg_pool")

    both = ctx.call_te(build, x, name="adaptive_pool")
    if is_max and indices:
        return _values_and_places(ctx, both, own)
    return both
