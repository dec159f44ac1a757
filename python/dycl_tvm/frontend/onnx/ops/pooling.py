# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.onnx.ops.convolution import padded, window_pads

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
        self.pads, self.sizes = [], []
        for k in range(n):
            before, after = self.declared[k]
            room = extents[k] + before + after - self.dilations[k] * (self.kernel[k] - 1) - 1
            steps = math.ceil(room / self.strides[k]) if node.attr("ceil_mode", 0) else room // self.strides[k]
            if node.attr("ceil_mode", 0) and steps * self.strides[k] >= extents[k] + before:
                steps -= 1  # a window may not begin in the padding at the end
            more = max(steps * self.strides[k] - room, 0)
            self.pads.append((before, after + more))
            self.sizes.append(steps + 1)

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
    lowest = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    whole = padded(x, window.pads, lowest)
    if not node.wants(1):
        if x.dtype.is_floating_point and n <= 2 and all(d == 1 for d in window.dilations):
            fn: Any = {1: F.max_pool1d, 2: F.max_pool2d}[n]
            return (fn(whole, window.kernel, window.strides),)
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


@op("AveragePool", "LpPool")
def _average_pool(node: Node, x: Tensor) -> Tensor:
    window = Window(node, x)
    n = len(window.kernel)
    if node.type == "LpPool":
        p = float(node.attr("p", 2))
        taps = window.unfold(padded(torch.abs(x), window.pads))
        return torch.pow(torch.sum(torch.pow(taps, p), -1), 1.0 / p)
    simple = all(d == 1 for d in window.dilations) and n <= 2 and window.pads == window.declared
    if simple and (node.attr("count_include_pad", 0) or not any(a or b for a, b in window.pads)):
        fn: Any = {1: F.avg_pool1d, 2: F.avg_pool2d}[n]
        return fn(padded(x, window.pads), window.kernel, window.strides)
    total = torch.sum(window.unfold(padded(x, window.pads)), -1)
    ones = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    if node.attr("count_include_pad", 0):
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
