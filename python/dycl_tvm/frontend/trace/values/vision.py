# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of ``torchvision`` on regions and deformed windows of images, made of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.recorder import item

#: What operators of PyTorch's registry are, ``torch.ops.aten.add`` as well as ``torch.ops.aten.add.Tensor``.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def substitute_of(func: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> Callable[..., Any] | None:
    """Return what computes an operator of ``torchvision``; None for any other."""
    namespace, _, name = str(func).partition(".")
    return _TABLE.get(name.partition(".")[0]) if namespace == "torchvision" else None


def _bilinear(rows: Tensor, image: Tensor, y: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Read rows of channels, those of pixels of images one after the other, at positions within a pixel of an image; else zeros.

    Parameters
    ----------
    rows : Tensor
        Of shape (images * height * width, channels).
    image, y, x : Tensor
        Of any shapes that broadcast to one.
    size : tuple of int
        Height and width.
    """
    height, width = size
    y, x = torch.broadcast_tensors(y, x)
    outside = (y < -1) | (y > height) | (x < -1) | (x > width)
    (y0, y1, fy), (x0, x1, fx) = _neighbours(y, height), _neighbours(x, width)
    made: Any = 0
    for at_y, part_y in ((y0, 1 - fy), (y1, fy)):
        for at_x, part_x in ((x0, 1 - fx), (x1, fx)):
            at = (image * height + at_y) * width + at_x
            taken = rows.index_select(0, at.reshape(-1)).reshape(*at.shape, rows.shape[1])
            made = made + taken * (part_y * part_x).unsqueeze(-1)
    return torch.where(outside.unsqueeze(-1), 0.0, made)


def _neighbours(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels before and behind positions, and how far the positions are from the first."""
    x = x.clamp(0, size - 1)
    low = torch.where(x.isnan(), 0.0, x.floor()).to(torch.int64)
    return low, (low + 1).clamp(max=size - 1), x - low


def _samples(start: Tensor, step: Tensor, bins: int, count: int) -> Tensor:
    """Return positions of samples, of shape (regions, bins, count)."""
    at = torch.arange(bins).unsqueeze(1) + (torch.arange(count) + 0.5) / count
    return start.reshape(-1, 1, 1) + at.to(start.dtype) * step.reshape(-1, 1, 1)


def _regions(input: Tensor, rois: Tensor, scale: float, offset: float, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the image of each region, where it begins, and its extents."""
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise of_program(RuntimeError("rois must have shape as Tensor[K, 5]"))
    places = rois[:, 1:] * scale - offset
    extent = places[:, 2:] - places[:, :2]
    return rois[:, 0].to(torch.int64).clamp(0, input.shape[0] - 1), places[:, :2], extent.clamp(min=least) if least else extent


def _means(input: Tensor, regions: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], sampling_ratio: int, least: float) -> Tensor:
    """Return the mean of the samples of each bin, of shape (regions, height, width, channels).

    With no ``sampling_ratio`` a bin has as many samples as it has pixels, rounded up; their number counts as ``least`` at least.
    """
    image, start, extent = regions
    _, channels, *size = input.shape
    if sampling_ratio > 0:
        x, y = (_samples(start[:, k], extent[:, k] / shape[1 - k], shape[1 - k], sampling_ratio) for k in range(2))
        rows = input.permute(0, 2, 3, 1).reshape(-1, channels)
        taken = _bilinear(rows, image.reshape(-1, 1, 1, 1, 1), y[:, :, :, None, None], x[:, None, None], (size[0], size[1]))
        return taken.sum((2, 4)).div(sampling_ratio**2)
    across, down = (_weights(start[:, k], extent[:, k], shape[1 - k], size[1 - k]) for k in range(2))
    images = input if input.shape[0] == 1 else input.index_select(0, image)
    sums = down[0].unsqueeze(1) @ images @ across[0].transpose(1, 2).unsqueeze(1)
    count = (down[1] * across[1]).clamp(min=least)
    return (sums / count.reshape(-1, 1, 1, 1)).permute(0, 2, 3, 1)


def _weights(start: Tensor, extent: Tensor, bins: int, size: int) -> tuple[Tensor, Tensor]:
    """Return what each pixel along a dimension counts in each bin of regions, and how many samples their bins have.

    A sample counts for the pixel before it and the one behind it; one outside of the image counts for none.
    """
    count = (extent / bins).ceil()
    most = -(-_MAPS * size // bins)
    require(item((count <= most).all()), RuntimeError(f"a region is more than {_MAPS} times as large as the map that it is taken from"))
    place = torch.arange(most, dtype=extent.dtype)
    within = torch.arange(bins, dtype=extent.dtype).unsqueeze(1) + (place + 0.5) / count.reshape(-1, 1, 1)
    at = start.reshape(-1, 1, 1) + within * (extent / bins).reshape(-1, 1, 1)
    counts = (place < count.reshape(-1, 1, 1)) & (at >= -1) & (at <= size)
    near = (1 - (at.clamp(0, size - 1).unsqueeze(3) - torch.arange(size)).abs()).clamp(min=0)
    return torch.where(counts.unsqueeze(3), near, 0.0).sum(2), count


#: Regions with as many samples as their size asks for may be so many times as large as the map.
_MAPS = 2


def _roi_align(input: Tensor, rois: Tensor, spatial_scale: float, h: int, w: int, sampling_ratio: int, aligned: bool) -> Tensor:
    given, input, rois = input.dtype, _wide(input), _wide(rois)
    regions = _regions(input, rois, spatial_scale, 0.5 if aligned else 0.0, 0.0 if aligned else 1.0)
    return _means(input, regions, (h, w), sampling_ratio, 1.0).permute(0, 3, 1, 2).contiguous().to(given)


def _ps_roi_align(input: Tensor, rois: Tensor, spatial_scale: float, h: int, w: int, sampling_ratio: int) -> tuple[Tensor, Tensor]:
    given, channels = input.dtype, input.shape[1]
    if channels % (h * w):
        raise of_program(RuntimeError("input channels must be a multiple of pooling height * pooling width"))
    input, rois = _wide(input), _wide(rois)
    means = _means(input, _regions(input, rois, spatial_scale, 0.5, 0.0), (h, w), sampling_ratio, 0.0)
    means = means.reshape(-1, h, w, channels // (h * w), h * w)
    own = torch.arange(h * w).reshape(1, h, w, 1, 1).expand(means.shape[0], h, w, means.shape[3], 1)
    mapping = torch.arange(channels, dtype=torch.int32).reshape(1, -1, h, w).repeat(rois.shape[0], 1, 1, 1)
    return means.gather(4, own).squeeze(4).permute(0, 3, 1, 2).contiguous().to(given), mapping


def _deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    n, channels, height, width = input.shape
    out, _, kh, kw = weight.shape
    taps, (oh, ow) = kh * kw, offset.shape[2:]
    windows = ((height, pad_h, dilation_h, kh, stride_h), (width, pad_w, dilation_w, kw, stride_w))
    sizes = [(size + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for size, pad, dilation, k, stride in windows]
    shapes = [(offset.shape, (n, offset_groups * taps * 2, *sizes)), (mask.shape, (n, offset_groups * taps, *sizes))]
    for given, wanted in shapes[: 2 if use_mask else 1]:
        if given != wanted:  # one of other windows would be taken for theirs
            raise of_program(RuntimeError(f"a tensor of offsets or of a mask has the shape {[*given]}, but the windows need {[*wanted]}"))
    moved = offset.reshape(n, offset_groups, taps, 2, oh, ow)
    tap_y, tap_x = (t.reshape(taps, 1, 1) for t in torch.meshgrid(torch.arange(kh), torch.arange(kw), indexing="ij"))
    y = moved[:, :, :, 0] + (torch.arange(oh).unsqueeze(1) * stride_h - pad_h + tap_y * dilation_h)
    x = moved[:, :, :, 1] + (torch.arange(ow) * stride_w - pad_w + tap_x * dilation_w)
    images = input.reshape(n * offset_groups, channels // offset_groups, height * width)
    counts = mask.reshape(n * offset_groups, 1, taps * oh * ow) if use_mask else None
    made: Any = 0
    y, x = y.reshape(n * offset_groups, -1), x.reshape(n * offset_groups, -1)
    y0, x0 = y.floor(), x.floor()
    for at_y, part_y in ((y0, y0 + 1 - y), (y0 + 1, y - y0)):
        for at_x, part_x in ((x0, x0 + 1 - x), (x0 + 1, x - x0)):
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            at = torch.where(inside, at_y * width + at_x, 0.0).to(torch.int64)
            taken = images.gather(2, at.unsqueeze(1).expand(-1, images.shape[1], -1))
            made = made + taken * torch.where(inside, part_y * part_x, 0.0).unsqueeze(1)
    columns = (made if counts is None else made * counts).reshape(n, groups, -1, oh * ow)
    products = weight.reshape(1, groups, out // groups, -1) @ columns
    return products.reshape(n, out, oh, ow) + bias.reshape(1, -1, 1, 1)


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype == torch.float16 else t


_TABLE: dict[str, Callable[..., Any]] = {"roi_align": _roi_align, "ps_roi_align": _ps_roi_align, "deform_conv2d": _deform_conv2d}
