# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Images whose sizes are known only at run time: their pixels in channels, their windows as columns, what is read between pixels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import equalized_buffers, extent_at
from dycl_tvm.frontend.trace.values.extents import Extent, as_number
from dycl_tvm.frontend.trace.values.grown import Grown, rank_of
from dycl_tvm.frontend.trace.values.grown_composed import composed, refuse_here
from dycl_tvm.frontend.trace.values.grown_math import Handler, dtype_of, new_in, refuse_call
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.recorder import to_tensor


# -- pixels and channels ---------------------------------------------------------------------------------------------------------
def _pixel_shuffle(t: Tensor, upscale_factor: int) -> Tensor:
    r = upscale_factor
    *batch, channels, h, w = t.shape
    if not batch or type(channels) is not int or type(r) is not int or r < 1 or channels % r**2:
        return refuse_here("pixel_shuffle() of such channels")  # type: ignore[no-any-return]
    made = t.reshape([*batch, channels // r**2, r, r, h, w]).permute([*range(len(batch) + 1), *[len(batch) + k for k in (3, 1, 4, 2)]])
    return made.reshape([*batch, channels // r**2, h * r, w * r])


def _pixel_unshuffle(t: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor
    *batch, channels, h, w = t.shape
    if not batch or type(r) is not int or r < 1:
        return refuse_here("pixel_unshuffle() by such a factor")  # type: ignore[no-any-return]
    for size in (*batch, h, w):
        if (scalars.bounds_of(size) or (0, 0))[0] < 1:
            limit(scalars.operand_of(size > 0), "pixel_unshuffle() of no pixels leaves their number as it is")
    for size in (h, w):
        if type(size % r) is not int or size % r:
            require(size % r == 0, RuntimeError("pixel_unshuffle expects height and width to be divisible by the factor"))
    made = t.reshape([*batch, channels, h // r, r, w // r, r]).permute([*range(len(batch) + 1), *[len(batch) + k for k in (2, 4, 1, 3)]])
    return made.reshape([*batch, channels * r**2, h // r, w // r])


def _channel_shuffle(t: Tensor, groups: int) -> Tensor:
    batch, channels, *around = t.shape
    if type(channels) is not int or type(groups) is not int or groups < 1 or channels % groups:
        return refuse_here("channel_shuffle() of such channels")  # type: ignore[no-any-return]
    return t.reshape([batch, groups, channels // groups, *around]).transpose(1, 2).reshape(t.shape)


def _columns(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """``F.unfold``: the windows of an image, one after the other."""
    numbers = [n if isinstance(n, (tuple, list)) else (n, n) for n in (kernel_size, dilation, padding, stride)]
    if input.dim() != 4 or any(len(n) != 2 or type(n[0]) is not int or type(n[1]) is not int for n in numbers):
        return refuse_here("unfold() with such arguments")  # type: ignore[no-any-return]
    sizes, apart, pads, steps = numbers
    for size in input.shape[1:]:
        if (scalars.bounds_of(size) or (0, 0))[0] < 1:
            require(size > 0, RuntimeError("unfold() of images without channels or pixels"))
    t = F.pad(input, (pads[1], pads[1], pads[0], pads[0]))
    for k in range(2):
        t = t.unfold(2 + k, (sizes[k] - 1) * apart[k] + 1, steps[k])[..., :: apart[k]]
    batch, channels, rows, columns = t.shape[:4]
    return t.permute(0, 1, 4, 5, 2, 3).reshape([batch, channels * sizes[0] * sizes[1], rows * columns])


def _fold(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """``F.fold``: each pixel is the sum of what the windows that reach it have there, added up along one dimension after the other."""
    sizes, apart, pads, steps = [n if isinstance(n, (tuple, list)) else (n, n) for n in (kernel_size, dilation, padding, stride)]
    plain = all(len(n) == 2 and type(n[0]) is type(n[1]) is int for n in (sizes, apart, pads, steps))
    if input.dim() != 3 or not plain or not isinstance(output_size, (tuple, list)) or type(input.size(1)) is not int:
        return refuse_here("fold() with such arguments")  # type: ignore[no-any-return]
    if input.size(1) % (sizes[0] * sizes[1]):
        return refuse_here("fold() of columns that are no windows")  # type: ignore[no-any-return]
    counts = [(n + 2 * pads[k] - apart[k] * (sizes[k] - 1) - 1) // steps[k] + 1 for k, n in enumerate(output_size)]
    for count in counts:
        if (scalars.bounds_of(count) or (0, 0))[0] < 1:
            require(count > 0, RuntimeError("fold() of no windows"))
    t = input.reshape([input.size(0), input.size(1) // (sizes[0] * sizes[1]), *sizes, *counts])
    for k, (size, count) in enumerate(zip(output_size, counts)):
        made: Any = 0
        for i in range(sizes[k]):
            at = torch.arange(size) + (pads[k] - i * apart[k])
            inside = (at % steps[k] == 0) & (at >= 0) & (at < steps[k] * count)
            part = t.select(2, i).index_select(3, torch.where(inside, at // steps[k], 0))
            made = made + torch.where(inside if k else inside.unsqueeze(1), part, torch.zeros((), dtype=part.dtype))
        t = made
    return t


# -- between pixels --------------------------------------------------------------------------------------------------------------
def _affine_grid(theta: Tensor, size: Any, align_corners: Any = None) -> Tensor:
    if len(size) != 4 or theta.dim() != 3 or type(align_corners) not in (bool, type(None)):
        return refuse_here("affine_grid() of such sizes")  # type: ignore[no-any-return]
    batch, _, height, width = size
    for n in size:
        if (scalars.bounds_of(n) or (0, 0))[0] < 1:
            require(n > 0, ValueError("Expected non-zero, positive output size."))
    x, y = [_centres(n, bool(align_corners), theta.dtype) for n in (width, height)]
    x, y = x.expand(height, -1), y.unsqueeze(1).expand(-1, width)
    base = torch.stack([x, y, torch.ones_like(x)], 2).reshape(1, height * width, 3)
    return torch.matmul(base, theta.transpose(1, 2)).reshape([batch, height, width, 2])


def _centres(n: Any, align_corners: bool, dtype: torch.dtype) -> Tensor:
    """Return the places of pixels, of which the whole image goes from -1 to 1."""
    at, count = torch.arange(n).to(dtype), to_tensor(n, dtype)
    if not align_corners:
        return (2 * at + 1) / count - 1
    return 2 * at / (count - 1).clamp(min=1) - (count > 1).to(dtype)


def grid_sample(func: Any, x: Tensor, grid: Tensor, mode: Any = "bilinear", padding_mode: Any = "zeros", align_corners: Any = None) -> Any:
    """Read images at positions: each position is by itself, and so are channels and images. Where an image ends it has an edge."""
    rank, own, lengths = rank_of(x), _lengths(x), _lengths(grid)
    if rank != rank_of(grid) or rank - 1 in lengths:
        return refuse_call(func, x, grid)
    (images, places), batch = equalized_buffers([x, grid], [0, 0])
    extents: dict[int, Extent] = {0: batch, **{d: n for d, n in own.items() if d == 1}}
    extents |= {d + 1: n for d, n in lengths.items() if d}  # where the images have their channels
    if not any(d > 1 for d in own):
        return new_in(func(images, places, mode, padding_mode, align_corners), extents)
    fine = mode == "bilinear" and padding_mode in ("zeros", "border") and type(align_corners) in (bool, type(None))
    if not fine or rank != 4 or dtype_of(x) not in (torch.float32, torch.float64) or dtype_of(x) != dtype_of(grid) or places.shape[3] != 2:
        return refuse_call(func, x, grid)
    for d in (2, 3):
        if d in own and own[d].bounds[0] < 1:
            require(as_number(own[d]) > 0, RuntimeError("grid_sample() of images without pixels"))
    sizes = [to_tensor(as_number(extent_at(x, 4 - d)), torch.int64) for d in (3, 2)]  # type: ignore[arg-type]  # it has both
    return new_in(_between(images, places, sizes, padding_mode == "border", bool(align_corners)), extents)


def _between(images: Tensor, places: Tensor, sizes: list[Tensor], border: bool, aligned: bool) -> Tensor:
    """Read bilinearly at places, as PyTorch computes with them, in images of which there is so much, by width and height."""
    batch, channels, height, width = map(int, images.shape)
    taps: list[list[tuple[Tensor, Tensor]]] = []
    for k, size in enumerate(sizes):
        at, n = places.select(3, k), size.to(places.dtype)
        at = (at + 1) / 2 * (n - 1) if aligned else ((at + 1) * n - 1) / 2
        if border:
            at = torch.minimum(torch.where(at > 0, at, torch.zeros((), dtype=at.dtype)), n - 1)  # NaN is zero there
        low = at.floor()
        taps.append([(low, 1 - (at - low)), (low + 1, at - low)])
    pixels, made = images.reshape(batch, channels, height * width), None
    last = [(size - 1).clamp(min=0) for size in sizes]
    for y, part_y in taps[1]:
        for x, part_x in taps[0]:
            inside = (x >= 0) & (x < sizes[0]) & (y >= 0) & (y < sizes[1])
            column, row = [torch.minimum(torch.where(inside, p, 0).to(torch.int64), end) for p, end in zip((x, y), last)]
            at = (row * width + column).reshape(batch, 1, -1).expand(-1, channels, -1)
            taken = pixels.gather(2, at).reshape(batch, channels, *places.shape[1:3])
            part = torch.where(inside.unsqueeze(1), taken, torch.zeros((), dtype=taken.dtype)) * (part_x * part_y).unsqueeze(1)
            made = part if made is None else made + part
    assert made is not None
    return made


def _lengths(t: Tensor) -> dict[int, Length]:
    return t.lengths if isinstance(t, Grown) else {}


HANDLERS: dict[Any, Handler] = {
    torch.pixel_shuffle: composed(_pixel_shuffle),
    torch.pixel_unshuffle: composed(_pixel_unshuffle),
    torch.channel_shuffle: composed(_channel_shuffle),
    F.unfold: composed(_columns),
    F.fold: composed(_fold),
    F.affine_grid: composed(_affine_grid),
    F.grid_sample: grid_sample,
}
#: Of a tensor of fixed shape, where a size is known only at run time.
SIZED: dict[Any, Handler] = {F.affine_grid: HANDLERS[F.affine_grid]}
