# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling and resizing of images and volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition


@decomposition("_adaptive_avg_pool3d.default")
def adaptive_avg_pool3d(x: Tensor, output_size: list[int]) -> Tensor:
    """Average over boxes, one dimension after the other: the boxes are products of intervals."""
    for dim, size in zip((-3, -2, -1), output_size):
        extent = x.shape[dim]
        spans = [(k * extent // size, -(-(k + 1) * extent // size)) for k in range(size)]
        x = torch.cat([x.narrow(dim, a, b - a).mean(dim, keepdim=True) for a, b in spans], dim)
    return x


def _linear(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _resized(
    x: Tensor, dim: int, size: int, align_corners: bool, scale: float | None, kernel: Callable[[float], float], width: int
) -> Tensor:
    """Resize one dimension with a kernel that is as wide as what it looks at, so that nothing is left out (antialias)."""
    extent = x.shape[dim]
    if align_corners:
        step = (extent - 1) / (size - 1) if size > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else extent / size
    stretch = max(step, 1.0)
    support = width / 2 * stretch
    first, factors = [], []
    for k in range(size):
        centre = step * (k + 0.5)
        begin = max(int(centre - support + 0.5), 0)
        count = min(int(centre + support + 0.5), extent) - begin
        row = [kernel((j + begin - centre + 0.5) / stretch) for j in range(count)]
        total = sum(row)
        first.append(begin)
        factors.append([w / total if total else w for w in row])
    taps = max(map(len, factors))
    x = x.movedim(dim, -1)
    places = [[b + min(j, len(row) - 1) for j in range(taps)] for b, row in zip(first, factors)]
    weights = torch.tensor([row + [0.0] * (taps - len(row)) for row in factors], dtype=x.dtype)
    within = torch.tensor([[j < len(row) for j in range(taps)] for row in factors])
    taken = x[..., torch.tensor(places).reshape(-1)].reshape(*x.shape[:-1], size, taps)
    return torch.where(within, taken * weights, 0.0).sum(-1).movedim(-1, dim)


def _antialiased(kernel: Callable[[float], float], width: int) -> Callable[..., Tensor]:
    def resize(x: Tensor, output_size: list[int], align_corners: bool, scales_h: Any = None, scales_w: Any = None) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        wide = _resized(wide, -1, output_size[1], align_corners, scales_w, kernel, width)
        return _resized(wide, -2, output_size[0], align_corners, scales_h, kernel, width).to(x.dtype)

    return resize


decomposition("_upsample_bilinear2d_aa.default")(_antialiased(_linear, 2))
decomposition("_upsample_bicubic2d_aa.default")(_antialiased(_cubic, 4))


def _source(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Return positions in pixels of positions from -1 to 1: as they are (0), within the border (1), or reflected (2)."""
    x = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if padding == 0:
        return x
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        away = (x - low).abs()
        extra, turns = torch.fmod(away, span), torch.floor(away / span)
        x = torch.where(turns % 2 == 0, extra + low, span - extra + low)
    return torch.where(torch.isnan(x), size - 1.0, x.clamp(0, size - 1))


@decomposition("grid_sampler_3d.default")
def grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Read a volume at positions: trilinearly (0) or the nearest (1)."""
    n, channels, *sizes = x.shape
    flat = x.reshape(n, channels, -1)
    places = [_source(grid[..., 2 - k], size, padding_mode, align_corners) for k, size in enumerate(sizes)]

    def read(corner: list[Tensor], weight: Tensor) -> Tensor:
        inside, at = torch.ones(corner[0].shape, dtype=torch.bool), torch.zeros(corner[0].shape, dtype=torch.int64)
        for c, size in zip(corner, sizes):
            inside = inside & (c >= 0) & (c < size)
            at = at * size + c.clamp(0, size - 1).to(torch.int64)
        taken = flat.gather(2, at.reshape(n, 1, -1).expand(n, channels, -1)).reshape(n, channels, *at.shape[1:])
        return torch.where(inside.unsqueeze(1), taken * weight.unsqueeze(1), 0.0)

    if interpolation_mode == 1:
        return read([torch.round(p) for p in places], torch.ones_like(places[0]))
    lower, result = [torch.floor(p) for p in places], None
    for corner in range(8):
        steps = [corner >> k & 1 for k in range(3)]
        weight = torch.ones_like(places[0])
        for p, low, step in zip(places, lower, steps):
            weight = weight * (p - low if step else low + 1 - p)
        part = read([low + step for low, step in zip(lower, steps)], weight)
        result = part if result is None else result + part
    assert result is not None
    return result
