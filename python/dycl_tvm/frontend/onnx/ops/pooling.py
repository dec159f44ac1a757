# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.onnx.ops.convolution import padded, window_pads
from dycl_tvm.frontend.trace.values.extremes import extremum

Tensor = torch.Tensor


class Window:
    """The window of a pooling node: padding that reaches every output, ``ceil_mode`` included."""

    def __init__(self, node: Node, x: Tensor) -> None:
        self.kernel: list[int] = node.attr("kernel_shape")
        n = len(self.kernel)
        self.strides: list[int] = node.attr("strides") or [1] * n
        self.dilations: list[int] = node.attr("dilations") or [1] * n
        extents = list(x.shape[2:])
        self.declared = window_pads(node, extents, self.kernel, self.strides, self.dilations)
        self.ceil = bool(node.attr("ceil_mode", 0))
        self.pads, self.sizes = [], []
        for k in range(n):
            before, after = self.declared[k]
            stride, room = self.strides[k], extents[k] + before + after - self.dilations[k] * (self.kernel[k] - 1) - 1
            # Rounded up, but a window may not begin in the padding at the end.
            steps = extremum([-(-room // stride), (extents[k] + before - 1) // stride], largest=False) if self.ceil else room // stride
            more = extremum([steps * stride - room, 0], largest=True) if self.ceil else 0
            self.pads.append((before, after + more))
            self.sizes.append(extremum([steps + 1, 0], largest=True))

    def layer(self, x: Tensor) -> bool:
        """Whether PyTorch's layers have such a window: uneven padding, and such as only windows of a run have, they do not know."""
        even = all(type(a) is type(b) is int and a == b and 2 * a <= self.kernel[k] for k, (a, b) in enumerate(self.declared))
        return even and x.dtype.is_floating_point and len(self.kernel) <= 3

    def indices(self, axis: int) -> Tensor:
        """Return the positions [output, tap] in the padded axis."""
        return torch.arange(self.sizes[axis]).reshape(-1, 1) * self.strides[axis] + torch.arange(self.kernel[axis]) * self.dilations[axis]

    def unfold(self, x: Tensor) -> Tensor:
        """Return a padded tensor as [n, c, outputs..., taps]."""
        n = len(self.kernel)
        for k in range(n):
            at = self.indices(k)
            axis = 2 + 2 * k
            x = x.index_select(axis, at.reshape(-1))
            x = x.reshape([*x.shape[:axis], self.sizes[k], self.kernel[k], *x.shape[axis + 1 :]])
        order = [0, 1, *(2 + 2 * k for k in range(n)), *(3 + 2 * k for k in range(n))]
        return x.permute(order).reshape([*x.shape[:2], *self.sizes, math.prod(self.kernel)])


@op("MaxPool")
def _max_pool(node: Node, x: Tensor) -> Any:
    window = Window(node, x)
    n = len(window.kernel)
    if window.layer(x) and not (node.wants(1) and any(d != 1 for d in window.dilations)):
        pads = [before for before, _ in window.declared]
        fn: Any = getattr(F, f"max_pool{n}d")
        if not node.wants(1):
            return (fn(x, window.kernel, window.strides, pads, window.dilations, window.ceil),)
        values, places = fn(x, window.kernel, window.strides, pads, window.dilations, window.ceil, True)
        return values, _over_all(x, places, column=bool(node.attr("storage_order", 0)))
    lowest = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    whole = padded(x, window.pads, lowest)
    if not node.wants(1):
        return (torch.amax(window.unfold(whole), -1),)
    values, tap = torch.max(window.unfold(whole), -1)
    # Positions in the input, without its padding, as ONNX counts them: over the whole tensor.
    extents = list(x.shape[2:])
    column = node.attr("storage_order", 0)
    flat: Tensor = torch.zeros((), dtype=torch.int64)
    taps = torch.zeros((), dtype=torch.int64)
    places = []
    for k in range(n):
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = window.sizes[k], window.kernel[k]
        places.append((window.indices(k) - window.declared[k][0]).reshape(shape))
    for k in reversed(range(n)) if column else range(n):
        flat = flat * extents[k] + places[k]
    flat = (flat + taps).reshape([1, 1, *window.sizes, -1]).expand([*values.shape, math.prod(window.kernel)])
    inside = torch.gather(flat, -1, tap.unsqueeze(-1)).squeeze(-1)
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape([x.shape[0], x.shape[1], *[1] * n])
    return values, inside + planes * math.prod(extents)


def _over_all(x: Tensor, places: Tensor, column: bool) -> Tensor:
    """Return places over the whole tensor, as ONNX counts them, for such in each plane, as PyTorch does."""
    sizes = list(x.shape[2:])
    if column:
        rest, flat = places, torch.zeros((), dtype=torch.int64)
        for k, size in reversed(list(enumerate(sizes))):
            flat = flat + rest % size * math.prod(sizes[:k])
            rest = rest // size
        places = flat
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape([x.shape[0], x.shape[1], *[1] * len(sizes)])
    return places + planes * math.prod(sizes)


@op("AveragePool", "LpPool")
def _average_pool(node: Node, x: Tensor) -> Tensor:
    window = Window(node, x)
    n = len(window.kernel)
    if node.type == "LpPool":
        p = float(node.attr("p", 2))
        taps = window.unfold(padded(torch.abs(x), window.pads))
        return torch.pow(torch.sum(torch.pow(taps, p), -1), 1.0 / p)
    include = bool(node.attr("count_include_pad", 0))
    if all(d == 1 for d in window.dilations) and n <= 3:
        fn: Any = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[n]
        if window.layer(x):
            return fn(x, window.kernel, window.strides, [before for before, _ in window.declared], window.ceil, include)
        if not window.ceil:
            found = fn(padded(x, window.declared), window.kernel, window.strides)
            ones = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
            return found if include else found / fn(padded(ones, window.declared), window.kernel, window.strides)
    total = torch.sum(window.unfold(padded(x, window.pads)), -1)
    ones = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    if include:
        ones = padded(ones, window.declared, 1)
        rest = [(a - c, b - d) for (a, b), (c, d) in zip(window.pads, window.declared)]
        counts = torch.sum(window.unfold(padded(ones, rest)), -1)
    else:
        counts = torch.sum(window.unfold(padded(ones, window.pads)), -1)
    return total / counts


@op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(node: Node, x: Tensor) -> Tensor:
    axes = list(range(2, x.dim()))
    if node.type == "GlobalAveragePool":
        return torch.mean(x, axes, keepdim=True)
    if node.type == "GlobalMaxPool":
        return torch.amax(x, axes, keepdim=True)
    p = float(node.attr("p", 2))
    return torch.pow(torch.sum(torch.pow(torch.abs(x), p), axes, keepdim=True), 1.0 / p)


@op("MaxUnpool")
def _unpool(node: Node, x: Tensor, indices: Tensor, shape: Tensor | None = None) -> Tensor:
    kernel = node.attr("kernel_shape")
    n = len(kernel)
    strides, pads = node.attr("strides") or [1] * n, node.attr("pads") or [0] * (2 * n)
    own = [(x.shape[2 + k] - 1) * strides[k] + kernel[k] - pads[k] - pads[n + k] for k in range(n)]
    batch, channels = x.shape[0], x.shape[1]
    made = torch.scatter(torch.zeros(batch * channels * math.prod(own), dtype=x.dtype), 0, indices.reshape(-1), x.reshape(-1))
    made = made.reshape(batch, channels, *own)
    if shape is None:
        return made
    # The positions count in the tensor that the pooling had; a larger one is that with zeros behind.
    sizes = (node.ints(shape, "the output's shape") or [])[2:]
    return padded(made, [(0, size - extent) for size, extent in zip(sizes, own)])
