# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of ``torchvision`` on regions and deformed windows of images, made of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.blame import of_program

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


def _regions(input: Tensor, rois: Tensor, scale: float, shape: tuple[int, int], sampling_ratio: int, offset: float, least: float) -> Any:
    """Return the image of each region, and the samples of its bins in both directions."""
    if sampling_ratio <= 0:
        raise UnsupportedError(
            "regions with as many samples as their size asks for, which is known only at run time",
            current().origin(),
            "give a number: sampling_ratio=2",
        )
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise of_program(RuntimeError("rois must have shape as Tensor[K, 5]"))
    places = rois[:, 1:] * scale - offset
    extent = places[:, 2:] - places[:, :2]
    extent = extent.clamp(min=least) if least else extent
    x, y = (_samples(places[:, k], extent[:, k] / shape[1 - k], shape[1 - k], sampling_ratio) for k in range(2))
    image = rois[:, 0].to(torch.int64).clamp(0, input.shape[0] - 1)
    return image, y, x


def _roi_align(input: Tensor, rois: Tensor, spatial_scale: float, h: int, w: int, sampling_ratio: int, aligned: bool) -> Tensor:
    given, (_, channels, height, width) = input.dtype, input.shape
    input, rois = _wide(input), _wide(rois)
    image, y, x = _regions(input, rois, spatial_scale, (h, w), sampling_ratio, 0.5 if aligned else 0.0, 0.0 if aligned else 1.0)
    rows = input.permute(0, 2, 3, 1).reshape(-1, channels)
    y, x = y[:, :, :, None, None], x[:, None, None]
    taken = _bilinear(rows, image.reshape(-1, 1, 1, 1, 1), y, x, (height, width))
    return taken.sum((2, 4)).div(sampling_ratio**2).permute(0, 3, 1, 2).contiguous().to(given)


def _ps_roi_align(input: Tensor, rois: Tensor, spatial_scale: float, h: int, w: int, sampling_ratio: int) -> tuple[Tensor, Tensor]:
    given, (_, channels, height, width) = input.dtype, input.shape
    if channels % (h * w):
        raise of_program(RuntimeError("input channels must be a multiple of pooling height * pooling width"))
    input, rois = _wide(input), _wide(rois)
    image, y, x = _regions(input, rois, spatial_scale, (h, w), sampling_ratio, 0.5, 0.0)
    rows = input.permute(0, 2, 3, 1).reshape(-1, channels)
    y, x = y[:, :, :, None, None], x[:, None, None]
    taken = _bilinear(rows, image.reshape(-1, 1, 1, 1, 1), y, x, (height, width))
    means = taken.sum((2, 4)).div(sampling_ratio**2).reshape(-1, h, w, channels // (h * w), h * w)
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
