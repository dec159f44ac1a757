# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sampling at points that are known only at run time: GridSample and RoiAlign."""

from __future__ import annotations

import itertools
import math

import torch

from dycl_tvm.frontend.onnx.node import Node, op

Tensor = torch.Tensor


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Reflect positions at both ends of a range."""
    width = high - low
    if width <= 0:
        return torch.zeros_like(x)
    away = torch.abs(x - low)
    rest = torch.remainder(away, 2 * width)
    return torch.where(rest > width, 2 * width - rest, rest) + low


class _Grid:
    """Reads an image [n, c, flat] at positions along its spatial axes."""

    def __init__(self, node: Node, x: Tensor) -> None:
        self.sizes = list(x.shape[2:])
        self.flat = x.reshape(x.shape[0], x.shape[1], -1)
        self.mode, self.aligned = node.attr("padding_mode", "zeros"), node.attr("align_corners", 0)

    def settle(self, p: Tensor, axis: int) -> Tensor:
        """Bring a position inside, as the padding says."""
        size = self.sizes[axis]
        if self.mode == "border":
            return p.clamp(0, size - 1)
        if self.mode == "reflection":
            return _reflected(p, 0.0, size - 1.0) if self.aligned else _reflected(p, -0.5, size - 0.5).clamp(0, size - 1)
        return p

    def read(self, at: list[Tensor]) -> Tensor:
        """Return the elements at whole positions [n, points], outside 0, as [n, c, points]."""
        index: Tensor = torch.zeros((), dtype=torch.int64)
        inside: Tensor = torch.ones((), dtype=torch.bool)
        for axis, (p, size) in enumerate(zip(at, self.sizes)):
            p = self.settle(p, axis)
            inside = inside & (p >= 0) & (p <= size - 1)
            index = index * size + p.clamp(0, size - 1).to(torch.int64)
        found = torch.gather(self.flat, 2, index.unsqueeze(1).expand(-1, self.flat.shape[1], -1))
        return torch.where(inside.unsqueeze(1), found, torch.zeros((), dtype=found.dtype))


@op("GridSample")
def _grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    image, n = _Grid(node, x), x.dim() - 2
    mode = node.attr("mode", "linear")
    points = grid.reshape(grid.shape[0], -1, n)
    at = []
    for axis in range(n):
        p = points.select(2, n - 1 - axis)  # the grid has the last axis first
        size = image.sizes[axis]
        p = (p + 1) / 2 * (size - 1) if image.aligned else ((p + 1) * size - 1) / 2
        at.append(image.settle(p, axis) if mode not in ("cubic", "bicubic") else p)
    if mode == "nearest":
        found = image.read([torch.round(p) for p in at])
    else:
        cubic = mode in ("cubic", "bicubic")
        floors = [torch.floor(p) for p in at]
        shares = [_cubic(p - f) if cubic else [1 - (p - f), p - f] for p, f in zip(at, floors)]
        steps = range(-1, 3) if cubic else range(2)
        total: Tensor | None = None
        for combination in itertools.product(range(len(steps)), repeat=n):
            weight = shares[0][combination[0]]
            for axis in range(1, n):
                weight = weight * shares[axis][combination[axis]]
            part = image.read([f + steps[k] for f, k in zip(floors, combination)]) * weight.unsqueeze(1).to(x.dtype)
            total = part if total is None else total + part
        assert total is not None
        found = total
    return found.reshape([x.shape[0], x.shape[1], *grid.shape[1:-1]])


def _cubic(t: Tensor, a: float = -0.75) -> list[Tensor]:
    def near(s: Tensor) -> Tensor:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: Tensor) -> Tensor:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


@op("RoiAlign")
def _roi_align(node: Node, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    height, width = x.shape[2], x.shape[3]
    rows, columns, ratio = node.attr("output_height", 1), node.attr("output_width", 1), node.attr("sampling_ratio", 0)
    scale = node.attr("spatial_scale", 1.0)
    half = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel") == "half_pixel"
    boxes = rois * scale - (0.5 if half else 0.0)
    count = rois.shape[0]
    spans = []
    for low, high, bins in ((1, 3, rows), (0, 2, columns)):
        extent = boxes.select(1, high) - boxes.select(1, low)
        spans.append((boxes.select(1, low), extent if half else torch.clamp_min(extent, 1.0), bins))
    if ratio <= 0:
        # The number of samples follows from the size of each box.
        node.static(rois, "the boxes, from which the number of samples follows (sampling_ratio is 0),")
    found = []
    for k in range(count):
        axes, taps = [], 1
        for low, extent, bins in spans:
            samples = ratio if ratio > 0 else max(math.ceil(float(extent[k]) / bins), 1)
            taps *= samples
            steps = (torch.arange(bins * samples).to(x.dtype) + 0.5) / samples
            axes.append((low[k] + steps * (extent[k] / bins), bins, samples))
        image = x.index_select(0, batch[k].reshape(1).to(torch.int64)).squeeze(0)
        sampled = _sample(image, axes[0][0], axes[1][0], height, width)
        (_, bh, sh), (_, bw, sw) = axes
        parts = sampled[0].reshape(-1, bh, sh, bw, sw)
        if node.attr("mode", "avg") == "avg":
            found.append(torch.sum(parts, [2, 4]) / taps)
        else:
            corners = torch.stack([s.reshape(-1, bh, sh, bw, sw) for s in sampled[1]], 0)
            found.append(torch.amax(corners, [0, 3, 5]))
    return torch.stack(found, 0)


def _sample(image: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> tuple[Tensor, list[Tensor]]:
    """Interpolate an image [c, h, w] on a grid; also return the four weighted corners."""

    def split(p: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inside = ((p >= -1) & (p <= size)).to(p.dtype)
        p = p.clamp(0, size - 1)
        low = torch.floor(p)
        high = torch.clamp_max(low + 1, size - 1)
        return low.to(torch.int64), high.to(torch.int64), p - low, inside

    y0, y1, dy, iny = split(y, height)
    x0, x1, dx, inx = split(x, width)
    top, bottom = image.index_select(1, y0), image.index_select(1, y1)
    wy0, wy1 = ((1 - dy) * iny).reshape(-1, 1), (dy * iny).reshape(-1, 1)
    wx0, wx1 = (1 - dx) * inx, dx * inx
    corners = [
        top.index_select(2, x0) * (wy0 * wx0),
        top.index_select(2, x1) * (wy0 * wx1),
        bottom.index_select(2, x0) * (wy1 * wx0),
        bottom.index_select(2, x1) * (wy1 * wx1),
    ]
    return corners[0] + corners[1] + corners[2] + corners[3], corners
