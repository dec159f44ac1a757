# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and transposed convolutions of 1, 2 and 3 dimensions."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, int64, pair

_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


@converter("convolution.default", "_convolution.default")
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
        y = _conv(ctx, x, weight, pair(stride, n, 1), pair(padding, n, 0), pair(dilation, n, 1), groups)
    if bias is not None:
        y = ctx.emit(relax.op.add(y, ctx.reshape(bias, (1, ctx.shape(bias)[0], *([1] * n)))))
    return y if batched else ctx.reshape(y, ctx.type.shape)


def _conv(ctx: OpContext, x: Any, w: Any, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Any:
    n = len(stride)
    if n not in _CONV:
        raise NotConvertible(f"convolution of {n} dimensions")
    return ctx.emit(_CONV[n](x, w, strides=stride, padding=[*padding, *padding], dilation=dilation, groups=groups))


def _transposed(
    ctx: OpContext, x: Any, w: Any, stride: list[int], padding: list[int], dilation: list[int], extra: list[int], groups: int
) -> Any:
    """Transposed convolution as a gather: each output element sums the inputs that would have been scattered onto it."""
    n = len(stride)
    batch, cin, *size = ctx.shape(x)
    _, cout, *kernel = ctx.shape(w)
    out = [(s - 1) * st - 2 * p + d * (k - 1) + e + 1 for s, st, p, d, k, e in zip(size, stride, padding, dilation, kernel, extra)]
    dtype = ctx.type.dtype

    def build(data: Any, weight: Any) -> Any:
        c = te.reduce_axis((int64(0), int64(cin // groups)), name="rc")
        taps = [te.reduce_axis((int64(0), int64(k)), name=f"r{i}") for i, k in enumerate(kernel)]

        def element(b: Any, o: Any, *pos: Any) -> Any:
            inside, index = [], []
            for v, tap, s, st, p, d in zip(pos, taps, size, stride, padding, dilation):
                at = v + int64(p) - tap * int64(d)
                inside += [at >= int64(0), at < int64(s * st)]
                if st > 1:
                    inside.append(tirx.floormod(at, int64(st)) == int64(0))
                index.append(tirx.floordiv(at, int64(st)))
            channel = c if groups == 1 else tirx.floordiv(o, int64(cout)) * int64(cin // groups) + c
            filt = weight(channel, o if groups == 1 else tirx.floormod(o, int64(cout)), *taps)
            value = tirx.if_then_else(tirx.all(*inside), data(b, channel, *index), tirx.const(0, dtype))
            return te.sum(value * filt, axis=[c, *taps])

        shape = [int64(v) for v in (batch, cout * groups, *out)]
        return te.compute(shape, element, name=f"conv{n}d_transpose")

    return ctx.call_te(build, x, w, name=f"conv{n}d_transpose")


def _direct(n: int) -> Any:
    def convert(
        ctx: OpContext, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        return _convolution(ctx, x, w, bias, stride, padding, dilation, False, 0, groups)

    return convert


for _n in (1, 2, 3):
    converter(f"conv{_n}d.default")(_direct(_n))
