# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and transposed convolutions of 1, 2 and 3 dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, int64, pair, sums_in_float32

_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d}


@converter("convolution.default", "_convolution.default")
@sums_in_float32
def _convolution(
    ctx: OpContext, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int, *_: Any,
) -> Any:  # fmt: skip
    n = len(ctx.shape(weight)) - 2
    batched = len(ctx.shape(x)) == n + 2
    if not batched:
        x = ctx.reshape(x, (1, *ctx.shape(x)))
    if transposed:
        y = _transposed(ctx, x, weight, pair(stride, n, 1), pair(padding, n, 0), pair(dilation, n, 1), pair(output_padding, n, 0), groups)
    else:
        y = _conv(ctx, x, weight, pair(stride, n, 1), 2 * pair(padding, n, 0), pair(dilation, n, 1), groups)
    if bias is not None:
        y = ctx.emit(relax.op.add(y, ctx.reshape(bias, (1, ctx.shape(bias)[0], *([1] * n)))))
    return y if batched else ctx.reshape(y, ctx.type.shape)


def _conv(ctx: OpContext, x: Any, w: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Any:
    """Emit a convolution; ``padding`` is that of all beginnings, then of all ends."""
    n = len(stride)
    if n == 3:
        return _conv3d(ctx, x, w, stride, padding, dilation, groups)
    if n not in _CONV:
        raise NotConvertible(f"convolution of {n} dimensions")
    return ctx.emit(_CONV[n](x, w, strides=[*stride], padding=[*padding], dilation=[*dilation], groups=groups))


def _conv3d(ctx: OpContext, x: Any, w: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Any:
    """Emit a convolution of three dimensions as one of two, for which there are kernels.

    Each depth of the result is an image of its own; its input has the channels of all the depths that it reads, one after the other.
    """
    batch, channels, depth, *image = ctx.shape(x)
    out, _, taps, *kernel = ctx.shape(w)
    flat = [stride[k] == kernel_k == 1 and padding[k] == padding[3 + k] == 0 for k, kernel_k in enumerate((taps, kernel[0]))]
    if all(flat):  # depth and height are one long dimension
        y = _conv(
            ctx,
            ctx.reshape(x, (batch, channels, depth * image[0], image[1])),
            ctx.reshape(w, (*ctx.shape(w)[:2], *kernel)),
            (1, stride[2]), (0, padding[2], 0, padding[5]), dilation[1:], groups,
        )  # fmt: skip
        return ctx.reshape(y, (batch, out, depth, image[0], ctx.shape(y)[3]))
    front, back = padding[0], padding[3]
    depths = (depth + front + back - dilation[0] * (taps - 1) - 1) // stride[0] + 1

    def build(data: Any) -> Any:
        def element(d: Any, c: Any, i: Any, j: Any) -> Any:
            at = tirx.floormod(d, int64(depths)) * int64(stride[0]) + tirx.floormod(c, int64(taps)) * int64(dilation[0]) - int64(front)
            value = data(tirx.floordiv(d, int64(depths)), tirx.floordiv(c, int64(taps)), at, i, j)
            if not front and not back:
                return value
            return tirx.if_then_else(tirx.all(at >= int64(0), at < int64(depth)), value, tirx.const(0, data.dtype))

        return te.compute([int64(v) for v in (batch * depths, channels * taps, *image)], element, name="depths")

    images = ctx.call_te(build, x, name="depths")
    weights = ctx.reshape(w, (out, ctx.shape(w)[1] * taps, *kernel))
    y = _conv(ctx, images, weights, stride[1:], (*padding[1:3], *padding[4:6]), dilation[1:], groups)
    split = ctx.reshape(y, (batch, depths, *ctx.shape(y)[1:]))
    return ctx.emit(relax.op.permute_dims(split, (0, 2, 1, 3, 4)))


@dataclass(frozen=True)
class _Phases:
    """Neighbouring places of a result, modulo the stride, that read equally many inputs by other taps.

    Place q * stride + first + r, for r < count, is the sum over t < taps of x[q - shift - t * dilation] * w[tap + r + t * step].
    """

    first: int
    count: int
    taps: int
    tap: int
    step: int
    shift: int
    dilation: int


def _phases(stride: int, kernel: int, dilation: int) -> list[_Phases]:
    """Return the phases of one dimension of a transposed convolution."""
    common = math.gcd(stride, dilation)
    step, apart = stride // common, dilation // common
    if dilation == 1:
        longer = kernel % stride  # phases with one tap more
        parts = [(0, longer, kernel // stride + 1), (longer, stride - longer, kernel // stride)]
        return [_Phases(first, count, taps, first, stride, 0, 1) for first, count, taps in parts if count]
    found = []
    for r in range(stride):
        tap = next((k for k in range(min(kernel, step)) if k * dilation % stride == r), kernel)
        found.append(_Phases(r, 1, -(-(kernel - tap) // step), tap, step, tap * dilation // stride, apart))
    return found


def _transposed(
    ctx: OpContext, x: Any, w: Any, stride: list[int], padding: list[int], dilation: list[int], extra: list[int], groups: int
) -> Any:
    """Emit a transposed convolution as plain ones.

    The places of the result that are equal modulo the stride are a plain convolution of the input. Phases with equally many taps are the
    channels of one convolution, so that no product with a zero is computed; their results are put side by side.
    """
    n = len(stride)
    batch, _, *size = ctx.shape(x)
    cout, kernel = ctx.shape(w)[1], ctx.shape(w)[2:]
    length = [(s - 1) * st - 2 * p + d * (k - 1) + e + 1 for s, st, p, d, k, e in zip(size, stride, padding, dilation, kernel, extra)]
    begin = [p // st for p, st in zip(padding, stride)]
    end = [-(-(p + v) // st) for p, v, st in zip(padding, length, stride)]
    places = [b - a for a, b in zip(begin, end)]

    def part(chosen: Sequence[_Phases]) -> Any:
        """Return phases, as an array (batch, channels, phases of each dimension, places of each dimension)."""
        shape = (batch, cout * groups, *(f.count for f in chosen), *places)
        before = [f.shift + (f.taps - 1) * f.dilation - a for f, a in zip(chosen, begin)]
        after = [b - f.shift - s for f, b, s in zip(chosen, end, size)]
        low, high = [max(0, -v) for v in before], [s + min(0, v) for s, v in zip(size, after)]
        if any(f.taps < 1 for f in chosen) or any(a >= b for a, b in zip(low, high)):  # nothing is scattered there
            return ctx.emit(relax.op.zeros(shape, ctx.type.dtype))
        here = x
        if any(low) or high != size:
            here = ctx.emit(relax.op.strided_slice(x, list(range(2, n + 2)), low, high))
        y = _conv(
            ctx, here, _phase_weights(ctx, w, chosen, groups), [1] * n, [max(0, v) for v in (*before, *after)],
            [f.dilation for f in chosen], groups,
        )  # fmt: skip
        return ctx.reshape(y, shape)

    def joined(chosen: tuple[_Phases, ...]) -> Any:
        k = len(chosen)
        if k == n:
            return part(chosen)
        parts = [joined((*chosen, f)) for f in _phases(stride[k], kernel[k], dilation[k])]
        return parts[0] if len(parts) == 1 else ctx.emit(relax.op.concat(parts, 2 + k))

    y = joined(())
    if any(st > 1 for st in stride):
        y = ctx.emit(relax.op.permute_dims(y, (0, 1, *(axis for k in range(n) for axis in (2 + n + k, 2 + k)))))
    whole = [v * st for v, st in zip(places, stride)]
    y = ctx.reshape(y, (batch, cout * groups, *whole))
    low = [p - a * st for p, a, st in zip(padding, begin, stride)]
    if whole == length:
        return y
    return ctx.emit(relax.op.strided_slice(y, list(range(2, n + 2)), low, [a + v for a, v in zip(low, length)]))


def _phase_weights(ctx: OpContext, w: Any, chosen: Sequence[_Phases], groups: int) -> Any:
    """Return the weights of the convolution that computes phases: output channels in the order (channel, phase of each dimension)."""
    cin, cout = ctx.shape(w)[0] // groups, ctx.shape(w)[1]
    counts = [f.count for f in chosen]
    phases = math.prod(counts)

    def build(weight: Any) -> Any:
        def element(o: Any, c: Any, *taps: Any) -> Any:
            channel, phase = tirx.floordiv(o, int64(phases)), tirx.floormod(o, int64(phases))
            index = []
            for k, (f, tap) in enumerate(zip(chosen, taps)):
                r = tirx.floormod(tirx.floordiv(phase, int64(math.prod(counts[k + 1 :]))), int64(f.count))
                index.append(int64(f.tap) + r + (int64(f.taps - 1) - tap) * int64(f.step))
            return weight(tirx.floordiv(channel, int64(cout)) * int64(cin) + c, tirx.floormod(channel, int64(cout)), *index)

        return te.compute([int64(v) for v in (cout * groups * phases, cin, *(f.taps for f in chosen))], element, name="phases")

    return ctx.call_te(build, w, name="phases")


def _direct(n: int) -> Any:
    def convert(
        ctx: OpContext, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        return _convolution(ctx, x, w, bias, stride, padding, dilation, False, 0, groups)

    return convert


for _n in (1, 2, 3):
    converter(f"conv{_n}d.default")(_direct(_n))
