# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and what is built on windows: Conv, ConvTranspose, Col2Im, deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.onnx.ops.shape import pad_axis
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.numbers import is_symbolic

Tensor = torch.Tensor


def window_pads(
    node: Node, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding of each spatial axis (before, after) as ``auto_pad`` or ``pads`` say it."""
    mode, n = node.attr("auto_pad", "NOTSET"), len(kernel)
    if mode in ("NOTSET", ""):
        pads = node.attr("pads") or [0] * (2 * n)
        return [(pads[k], pads[n + k]) for k in range(n)]
    if mode == "VALID":
        return [(0, 0)] * n
    found = []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations):
        # The last window begins -extent % stride before a whole stride behind the end.
        total = extremum([-extent % stride + (size - 1) * dilation + 1 - stride, 0], largest=True)
        low, high = total // 2, total - total // 2
        found.append((high, low) if mode == "SAME_LOWER" else (low, high))
    return found


def padded(x: Tensor, pads: Sequence[tuple[Any, Any]], value: float | int = 0) -> Tensor:
    """Pad the last axes."""
    if not any(is_symbolic(side) for pair in pads for side in pair):
        return F.pad(x, [side for pair in reversed(pads) for side in pair], value=value) if any(a or b for a, b in pads) else x
    for k, (before, after) in enumerate(pads):
        x = pad_axis(x, x.dim() - len(pads) + k, before, after, "constant", value)
    return x


@op("Conv")
def convolve(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Convolve; uneven padding is made beforehand."""
    n = x.dim() - 2
    strides, dilations = node.attr("strides") or [1] * n, node.attr("dilations") or [1] * n
    pads = window_pads(node, x.shape[2:], node.attr("kernel_shape") or list(w.shape[2:]), strides, dilations)
    even = all(a is b or (type(a) is type(b) is int and a == b) for a, b in pads)
    x = x if even else padded(x, pads)
    inner = [a for a, _ in pads] if even else [0] * n
    return torch.ops.aten.convolution.default(x, w, b, strides, inner, dilations, False, [0] * n, node.attr("group", 1))


@op("ConvTranspose")
def _conv_transpose(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    n = x.dim() - 2
    strides, dilations = node.attr("strides") or [1] * n, node.attr("dilations") or [1] * n
    kernel = node.attr("kernel_shape") or list(w.shape[2:])
    extra = node.attr("output_padding") or [0] * n
    pads = node.attr("pads") or [0] * (2 * n)
    wanted, mode = node.attr("output_shape"), node.attr("auto_pad", "NOTSET")
    full = [strides[k] * (x.shape[2 + k] - 1) + (kernel[k] - 1) * dilations[k] + 1 for k in range(n)]
    if wanted is None and mode.startswith("SAME"):
        wanted = [x.shape[2 + k] * strides[k] for k in range(n)]
    if wanted is not None:
        wanted = wanted[-n:]
        totals = [max(full[k] + extra[k] - wanted[k], 0) for k in range(n)]
        small = [t // 2 for t in totals]
        large = [t - s for t, s in zip(totals, small)]
        pads = [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
        extra = [wanted[k] + pads[k] + pads[n + k] - full[k] for k in range(n)]
    y = torch.ops.aten.convolution.default(x, w, b, strides, [0] * n, dilations, True, [0] * n, node.attr("group", 1))
    for k in range(n):
        # Output padding lengthens the end; padding cuts both ends.
        begin, end = pads[k], full[k] + extra[k] - pads[n + k]
        if end > full[k] or begin < 0:
            fill = [0, 0] * (n - 1 - k) + [max(-begin, 0), max(end - full[k], 0)]
            grown = F.pad(y, fill) if b is None else F.pad(y - b.reshape(-1, *[1] * n), fill) + b.reshape(-1, *[1] * n)
            y, begin, end = grown, max(begin, 0), end + max(-begin, 0)
        y = y.narrow(2 + k, begin, end - begin)
    return y


@op("Col2Im")
def _col2im(node: Node, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    size, kernel = node.ints(image, "the shape of the image") or [], node.ints(block, "the shape of a block") or []
    n = len(size)
    dilations, strides, pads = node.attr("dilations") or [1] * n, node.attr("strides") or [1] * n, node.attr("pads") or [0] * (2 * n)
    whole = [size[k] + pads[k] + pads[n + k] for k in range(n)]
    steps = [(whole[k] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1 for k in range(n)]
    # Where each element of each block lies in the padded image, as a flat index.
    at = torch.zeros((), dtype=torch.int64)
    for k in range(n):
        line = torch.arange(kernel[k]).reshape(-1, 1) * dilations[k] + torch.arange(steps[k]) * strides[k]
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = kernel[k], steps[k]
        at = at * whole[k] + line.reshape(shape)
    batch, taps = x.shape[0], math.prod(kernel)
    channels = x.shape[1] // taps
    flat = x.reshape(batch, channels, -1)
    at = at.reshape(1, 1, -1).expand(batch, channels, -1)
    y = torch.scatter_add(torch.zeros((batch, channels, math.prod(whole)), dtype=x.dtype), 2, at, flat).reshape(batch, channels, *whole)
    for k in range(n):
        y = y.narrow(2 + k, pads[k], size[k])
    return y


@op("DeformConv")
def _deform(node: Node, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    if x.dim() != 4:
        node.fail(f"of {x.dim() - 2} spatial dimensions", "two are supported")
    batch, channels, height, width = x.shape
    kh, kw = w.shape[2], w.shape[3]
    (sh, sw), (dh, dw) = node.attr("strides") or [1, 1], node.attr("dilations") or [1, 1]
    top, left = (node.attr("pads") or [0, 0, 0, 0])[:2]
    groups, parts = node.attr("group", 1), node.attr("offset_group", 1)
    oh, ow = offset.shape[2], offset.shape[3]
    offset = offset.reshape(batch, parts, kh, kw, 2, oh, ow)
    rows = torch.arange(oh).reshape(1, 1, -1, 1) * sh - top + torch.arange(kh).reshape(-1, 1, 1, 1) * dh
    columns = torch.arange(ow).reshape(1, 1, 1, -1) * sw - left + torch.arange(kw).reshape(1, -1, 1, 1) * dw
    y = offset.select(4, 0) + rows.to(x.dtype)
    z = offset.select(4, 1) + columns.to(x.dtype)
    image = x.reshape(batch, parts, channels // parts, height * width)
    sampled = _bilinear(image, y.reshape(batch, parts, 1, -1), z.reshape(batch, parts, 1, -1), height, width)
    sampled = sampled.reshape(batch, parts, channels // parts, kh * kw, oh * ow)
    if mask is not None:
        sampled = sampled * mask.reshape(batch, parts, 1, kh * kw, oh * ow)
    per, out = channels // groups, w.shape[0] // groups
    found = torch.matmul(w.reshape(1, groups, out, per * kh * kw), sampled.reshape(batch, groups, per * kh * kw, oh * ow))
    found = found.reshape(batch, out * groups, oh, ow)
    return found if b is None else found + b.reshape(1, -1, 1, 1)


def _bilinear(image: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Sample flat images at points; what lies outside is 0."""
    low_y, low_x = torch.floor(y), torch.floor(x)
    total: Tensor | None = None
    for step_y in (0, 1):
        for step_x in (0, 1):
            at_y, at_x = low_y + step_y, low_x + step_x
            weight = (1 - torch.abs(y - at_y)) * (1 - torch.abs(x - at_x))
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            flat = at_y.clamp(0, height - 1).to(torch.int64) * width + at_x.clamp(0, width - 1).to(torch.int64)
            taken = torch.gather(image, 3, flat.expand(-1, -1, image.shape[2], -1))
            part = taken * torch.where(inside, weight, torch.zeros((), dtype=weight.dtype))
            total = part if total is None else total + part
    assert total is not None
    return total


@op("CausalConvWithState")
def _causal(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
    taps, channels = w.shape[-1], x.shape[1]
    left = torch.zeros((x.shape[0], channels, taps - 1), dtype=x.dtype) if past is None else past
    whole = torch.cat([left, x], 2) if taps > 1 else x
    y = torch.ops.aten.convolution.default(whole, w.reshape(channels, 1, taps), b, [1], [0], [1], False, [0], channels)
    if node.attr("activation", "none") in ("silu", "swish"):
        y = y * torch.sigmoid(y)
    return y, whole.narrow(2, whole.shape[2] - (taps - 1), taps - 1)
