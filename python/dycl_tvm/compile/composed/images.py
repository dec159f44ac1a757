# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling and resizing of images and volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def _near(x: Any, a: float) -> Any:
    """Return the kernel of cubic convolution at distances below 1."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _far(x: Any, a: float) -> Any:
    """Return it at distances from 1 to 2."""
    return (((x - 5) * x + 8) * x - 4) * a


def _cubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    return _near(x, a) if x < 1 else _far(x, a) if x < 2 else 0.0


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


def _source(x: Tensor, size: int, padding: int, align_corners: bool, of_nan: float) -> Tensor:
    """Return positions in pixels of positions from -1 to 1: as they are (0), within the border (1), or reflected (2)."""
    return _placed((x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2, size, padding, align_corners, of_nan)


def _placed(x: Tensor, size: int, padding: int, align_corners: bool, of_nan: float) -> Tensor:
    """Return positions in pixels, within the border (1) or reflected (2)."""
    if padding == 0:
        return x
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        away = (x - low).abs()
        extra, turns = torch.fmod(away, span), torch.floor(away / span)
        x = torch.where(turns % 2 == 0, extra + low, span - extra + low)
    return torch.where(torch.isnan(x), of_nan, x.clamp(0, size - 1))


def _read(x: Tensor, corner: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the pixels at whole positions, with zeros for those that there are not, and which there are."""
    n, channels, *sizes = x.shape
    inside, at = torch.ones(corner[0].shape, dtype=torch.bool), torch.zeros(corner[0].shape, dtype=torch.int64)
    for c, size in zip(corner, sizes):
        within = (c >= 0) & (c < size)
        inside, at = inside & within, at * size + torch.where(within, c, 0.0).to(torch.int64)
    flat = x.reshape(n, channels, -1)
    taken = flat.gather(2, at.reshape(n, 1, -1).expand(n, channels, -1)).reshape(n, channels, *at.shape[1:])
    return torch.where(inside.unsqueeze(1), taken, 0.0), inside


def _corners(places: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the corners around positions, and how much each counts."""
    lower = [torch.floor(p) for p in places]
    for corner in range(1 << len(places)):
        steps = [corner >> k & 1 for k in range(len(places))]
        weight = torch.ones_like(places[0])
        for p, low, step in zip(places, lower, steps):
            weight = weight * (p - low if step else low + 1 - p)
        yield [low + step for low, step in zip(lower, steps)], weight


@decomposition("grid_sampler_3d.default")
def grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Read a volume at positions: trilinearly (0) or the nearest (1); what is not a number is nowhere, or at the end."""
    places = [_source(grid[..., 2 - k], size, padding_mode, align_corners, size - 1.0) for k, size in enumerate(x.shape[2:])]
    if interpolation_mode == 1:
        return _read(x, [torch.round(p) for p in places])[0]
    result = torch.zeros(())
    for corner, weight in _corners(places):
        taken, inside = _read(x, corner)
        result = result + taken * torch.where(inside, weight, 0.0).unsqueeze(1)
    return result


@decomposition("grid_sampler_2d.default")
def grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Read an image at positions: bilinearly (0), the nearest (1) or bicubically (2); what is no number gives none, or is at the begin."""
    padding = 0 if interpolation_mode == 2 else padding_mode
    places = [_source(grid[..., 1 - k], size, padding, align_corners, 0.0) for k, size in enumerate(x.shape[2:])]
    if interpolation_mode == 1:
        return _read(x, [torch.round(p) for p in places])[0]
    result = torch.zeros(())
    for corner, weight in _corners(places) if interpolation_mode == 0 else _taps(x, places, padding_mode, align_corners):
        result = result + _read(x, corner)[0] * weight.unsqueeze(1)
    return result


def _taps(x: Tensor, places: list[Tensor], padding: int, align_corners: bool) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the four by four pixels around positions, and how much each counts in cubic convolution."""
    lower = [torch.floor(p) for p in places]
    factors = [_cubic_factors(p - low) for p, low in zip(places, lower)]
    sizes = x.shape[2:]
    for i in range(4):
        for j in range(4):
            taps = [_placed(low + k - 1, n, padding, align_corners, 0.0) for low, k, n in zip(lower, (i, j), sizes)]
            yield taps, factors[0][i] * factors[1][j]


def _cubic_factors(t: Tensor, a: float = -0.75) -> list[Tensor]:
    return [_far(t + 1, a), _near(t, a), _near(1 - t, a), _far(2 - t, a)]
