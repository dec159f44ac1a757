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
