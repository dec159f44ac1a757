# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pooling along dimensions whose lengths are known only at run time: windows of one size, or as many windows as are asked for.

What lies behind a length is made neutral, so that windows that reach beyond it have what PyTorch sees of them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values.aligned import dims_of, equalized_in, extent_at, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of
from dycl_tvm.frontend.trace.values.grown_formats import laid_out, suggested_order
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, dtype_of, extreme, mean, refuse_call, valid
from dycl_tvm.frontend.trace.values.grown_shapes import cut_anew, length_of_size
from dycl_tvm.frontend.trace.values.grown_windows import Window, layer_along, number_at
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor


def max_pool(
    func: Any,
    t: Grown,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
) -> Any:
    """Take the largest of neighbours, and where they are if the function gives that too."""
    places = func in _WITH_PLACES
    if type(ceil_mode) is not bool or bool(return_indices) != places or not t.is_floating():
        return refuse_call(func, t)
    if _is_whole(func, t, kernel_size, padding, dilation):
        return refuse_call(func, t) if places else _largest(t, _around(func, t))

    def of(part: int | None) -> torch.Tensor:
        def layer(x: torch.Tensor) -> torch.Tensor:
            made = func(x, kernel_size, stride, padding, dilation, ceil_mode)
            return made if part is None else made[part]  # type: ignore[no-any-return]

        return _pooled(func, t, layer, kernel_size, stride, padding, dilation, ceil_mode, -math.inf)  # type: ignore[no-any-return]

    return (of(0), _of_what_there_is(of(1), t, _around(func, t))) if places else of(None)


def _of_what_there_is(places: torch.Tensor, t: Grown, around: range) -> torch.Tensor:
    """Return places in an image for places in its buffer."""
    left, made, step = buffer_of(places), torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.int64)
    for d in reversed(around):
        room = int(t.buffer.shape[d])
        made, left = made + left % room * step, left // room
        step = step * to_tensor(as_number(t.lengths.get(d, room)), torch.int64)
    return laid_out(cut(made, places.lengths if isinstance(places, Grown) else {}), suggested_order(t), t)


def max_unpool(func: Any, x: torch.Tensor, indices: torch.Tensor, output_size: Any, *rest: Any) -> Any:
    """Put elements at places of an image of zeros, where ``max_pool`` found them."""
    around = _UNPOOLED[func]
    sizes = [length_of_size(n) if is_symbolic(n) else n for n in output_size]
    if rank_of(x) != around + 2 or None in sizes or len(sizes) != around or dims_of([x]) != dims_of([indices]):
        return refuse_call(func, x, indices) if isinstance(x, Grown) else NotImplemented
    (values, places), own = equalized_in([x, indices], dims_of([x, indices]))
    for d, n in own.items():
        if d and bounds_of(n)[0] < 1:
            require(as_number(n) > 0, RuntimeError("max_unpool() of no channels or pixels"))
    rooms = [bounds_of(n)[1] for n in sizes]
    count, left, at = functools.reduce(operator.mul, map(as_number, sizes)), places, torch.zeros((), dtype=torch.int64)
    masks = [valid(n, int(values.shape[d]), rank_of(x), d) for d, n in own.items() if isinstance(n, Length)]
    there = functools.reduce(operator.and_, masks, torch.ones((), dtype=torch.bool))
    total = to_tensor(count, torch.int64)
    fine = ((places >= 0) & (places < total)) | (total == 0)  # PyTorch looks at no place of nothing
    require(item((fine | ~there).all()), RuntimeError("max_unpool() to an invalid place"))
    for k in reversed(range(around)):
        size = to_tensor(as_number(sizes[k]), torch.int64).clamp(min=1)
        at, left = at + left % size * math.prod(rooms[k + 1 :]), left // size
    batch = [int(n) for n in values.shape[:2]]
    at = torch.where(there, at, math.prod(rooms)).reshape([*batch, -1])
    whole = torch.zeros([*batch, math.prod(rooms) + 1], dtype=values.dtype).scatter(2, at, values.reshape([*batch, -1]))
    extents = {**{d: n for d, n in own.items() if d < 2}, **{2 + k: n for k, n in enumerate(sizes)}}
    return cut_anew(whole[:, :, : math.prod(rooms)].reshape([*batch, *rooms]), extents, True)


def average_pool(
    func: Any,
    t: Grown,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
    divisor_override: Any = None,
) -> Any:
    """Take the mean of neighbours, of which the padding is part or not."""
    as_it_is = not ceil_mode and (count_include_pad or padding in (0, (0,), [0]))
    if divisor_override is not None or type(ceil_mode) is not bool or not (as_it_is or t.is_floating()):
        return refuse_call(func, t)
    if _is_whole(func, t, kernel_size, padding, 1):
        return mean(torch.mean, t, list(_around(func, t)), True)

    def layer(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = func(x, kernel_size, stride, padding, ceil_mode, count_include_pad)
        if as_it_is or not isinstance(x, StagedTensor):
            return made
        pads: list[int] = []
        shares = []
        for k, d in enumerate(_around(func, t)):
            size, pad, step = number_at(kernel_size, k), number_at(padding, k), number_at(stride or kernel_size, k)
            count, room = int(made.shape[d]), int(x.shape[d])
            pads = [pad, max((count - 1) * step + size - room - pad, 0), *pads]
            start, there = torch.arange(count) * step - pad, to_tensor(as_number(t.lengths.get(d, room)), torch.int64)
            if count_include_pad:
                counted = torch.minimum(start + size, there + pad) - start
            else:
                counted = torch.minimum(start + size, there) - start.clamp(min=0)
            shares.append((size / counted.clamp(min=1)).to(x.dtype).reshape([-1, *[1] * (t.dim_() - 1 - d)]))
        means: torch.Tensor = func(F.pad(x, pads), kernel_size, stride)
        for d in _around(func, t):
            means = means.narrow(d, 0, int(made.shape[d]))
        return means * functools.reduce(operator.mul, shares)

    return _pooled(func, t, layer, kernel_size, stride, padding, 1, ceil_mode, 0)


def _around(func: Any, t: torch.Tensor) -> range:
    """Return the dimensions that a layer mixes, which are the last ones."""
    return range(rank_of(t) - _AROUND[func], rank_of(t))


def _is_whole(func: Any, t: Grown, kernel_size: Any, padding: Any, dilation: Any) -> bool:
    """Whether a window is all that there is, as its size is that of the tensor; a size that is no number is refused elsewhere."""
    sizes = list(kernel_size) if isinstance(kernel_size, (tuple, list)) else [kernel_size]
    if not any(map(is_symbolic, sizes)):
        return False
    around = _around(func, t)
    sizes = sizes * len(around) if len(sizes) == 1 else sizes
    found = [length_of_size(n) if is_symbolic(n) else n for n in sizes]
    plain = all(number_at(padding, k) == 0 and number_at(dilation, k) == 1 for k in range(len(around)))
    if plain and around[0] in (1, 2) and len(found) == len(around):
        same = all(is_same(n, extent_at(t, t.dim_() - d)) for n, d in zip(found, around))
        if same and not any(0 < d < around[0] for d in t.lengths) and all(n.bounds[0] > 0 for n in t.lengths.values()):
            return True
    return refuse_call(func, t)  # type: ignore[no-any-return]


def _pooled(func: Any, t: Grown, layer: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, fill: float) -> Any:
    first, stride = t.dim_() - _AROUND[func], stride if stride not in (None, (), []) else kernel_size
    if first not in (1, 2) or any(d == first - 1 and n.bounds[0] < 1 for d, n in t.lengths.items()):
        return refuse_call(func, t)  # PyTorch does not pool images without channels

    def window(at: int) -> Window:
        step, pad, reach = number_at(stride, at), number_at(padding, at), number_at(dilation, at) * (number_at(kernel_size, at) - 1)
        # rounded up, but the last window begins before the padding behind ends
        return Window(1, (min(2 * pad - reach - 2 + step, pad - 1) if ceil else 2 * pad - reach - 1) + step, step)

    windows = {d: window(d - first) for d in t.lengths if d >= first}
    # without padding the last window ends where the elements do, or before
    beyond = [d for d in windows if ceil or number_at(padding, d - first)]
    return layer_along(func, t, layer, windows, fill=fill, beyond=beyond)


# -- as many windows as are asked for ------------------------------------------------------------------------------------------
def adaptive_average(func: Any, x: torch.Tensor, output_size: Any) -> Any:
    """Take the means of so many windows, which may overlap."""
    asked = _asked(func, x, output_size)
    if asked is None or dtype_of(x) not in (torch.float32, torch.float64):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    if isinstance(x, Grown) and all(n == 1 for n in asked.values()):
        return mean(torch.mean, x, list(asked), True)
    return windowed(x, asked, means_of)


def adaptive_largest(func: Any, x: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Take the largest of so many windows, which may overlap."""
    asked = None if return_indices else _asked(func, x, output_size)
    if asked is None or dtype_of(x) not in (torch.float32, torch.float64):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    if isinstance(x, Grown) and all(n == 1 for n in asked.values()):
        return _largest(x, asked)
    return windowed(x, asked, _largest_of)


def _largest(t: Grown, dims: Any) -> Any:
    made: Any = t
    for d in dims:
        made = extreme(lambda dtype: -math.inf)(torch.max, made, d, True)[0] if isinstance(made, Grown) else made.amax(d, True)
    return made


def _asked(func: Any, x: torch.Tensor, output_size: Any) -> dict[int, Extent] | None:
    """Return how many windows are asked for along the last dimensions; None if that is not known, or there may be none."""
    around = _around(func, x)
    sizes = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * len(around)
    own: list[Extent] = [extent_at(x, rank_of(x) - d) for d in around]  # type: ignore[misc]  # all are there
    if around[0] not in (1, 2) or len(sizes) != len(own) or (isinstance(x, Grown) and any(0 < d < around[0] for d in x.lengths)):
        return None
    found = [n if size is None else length_of_size(size) if is_symbolic(size) else size for n, size in zip(own, sizes)]
    if not all(n is not None and (bounds_of(n)[0] > 0 or is_same(n, there)) for n, there in zip(found, own)):
        return None
    for n in own:
        if bounds_of(n)[0] < 1:
            require(as_number(n) > 0, RuntimeError("pooling of no elements along a dimension"))
    return dict(zip(around, found))


def windowed(
    x: torch.Tensor,
    asked: dict[int, Extent],
    taken: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    longest: Mapping[int, int] = MappingProxyType({}),
) -> Any:
    """Take something of windows along dimensions, one of them after the other.

    ``taken`` is given the elements of the windows, which are those of one more dimension, how many each of them has, and the dimension;
    ``longest`` is how long windows are at most along dimensions of which that is known.
    """
    own: dict[int, Extent] = dict(x.lengths) if isinstance(x, Grown) else {}
    made = buffer_of(x)
    for d, count in asked.items():
        there = own.get(d, int(made.shape[d]))
        if not is_same(there, count):
            most, fewest = bounds_of(there)[1], bounds_of(count)[0]
            room = longest.get(d, min(most, -(-most // max(fewest, 1)) + 1))
            made = _windows(made, d, there, count, room, taken)
            own[d] = count
    order = tuple(range(rank_of(x)))
    of_images = rank_of(x) > 3 or not isinstance(x, Grown) or x.order == order  # of a row PyTorch makes an image, which may lie otherwise
    return laid_out(cut(made, own), suggested_order(x) if of_images else None, x)


def _windows(x: torch.Tensor, d: int, there: Extent, count: Extent, room: int, taken: Callable[..., torch.Tensor]) -> torch.Tensor:
    longest, most = bounds_of(there)[1], bounds_of(count)[1]
    n, m = [to_tensor(as_number(size), torch.int64).clamp(min=1) for size in (there, count)]
    at = torch.arange(most)
    start = at * n // m
    lengths = ((at + 1) * n + m - 1) // m - start
    places = (start.unsqueeze(1) + torch.arange(room)).clamp(0, max(longest - 1, 0))
    shape = list(x.shape)
    parts = x.index_select(d, torch.minimum(places, n - 1).reshape(-1)).reshape([*shape[:d], most, room, *shape[d + 1 :]])
    return taken(parts, lengths.reshape([-1, *[1] * (len(shape) - d)]), d + 1)


def _there(parts: torch.Tensor, lengths: torch.Tensor, d: int, fill: float) -> torch.Tensor:
    place = torch.arange(parts.shape[d]).reshape([-1, *[1] * (parts.dim() - d - 1)])
    return torch.where(place < lengths, parts, torch.full((), fill, dtype=parts.dtype))


def means_of(parts: torch.Tensor, lengths: torch.Tensor, d: int) -> torch.Tensor:
    """Return the means of windows."""
    return _there(parts, lengths, d, 0).sum(d) / lengths.squeeze(1).clamp(min=1).to(parts.dtype)


def _largest_of(parts: torch.Tensor, lengths: torch.Tensor, d: int) -> torch.Tensor:
    return _there(parts, lengths, d, -math.inf).amax(d)


_MEANS = {F.avg_pool1d: 1, torch.avg_pool1d: 1, torch._C._nn.avg_pool2d: 2, torch._C._nn.avg_pool3d: 3}
_LARGEST = {F.max_pool1d: 1, torch.max_pool1d: 1, F.max_pool2d: 2, F.max_pool3d: 3}
#: What gives the places of the largest too.
_WITH_PLACES = {F.max_pool1d_with_indices: 1, F.max_pool2d_with_indices: 2, F.max_pool3d_with_indices: 3}
_UNPOOLED = {torch._C._nn.max_unpool2d: 2, torch._C._nn.max_unpool3d: 3}
_SO_MANY_MEANS = {
    **dict.fromkeys([F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d], 1),
    torch._C._nn.adaptive_avg_pool2d: 2,
    torch._C._nn.adaptive_avg_pool3d: 3,
}
_SO_MANY_LARGEST = {F.adaptive_max_pool1d: 1, F.adaptive_max_pool2d: 2, F.adaptive_max_pool3d: 3}
#: How many dimensions a layer mixes.
_AROUND: dict[Any, int] = {**_MEANS, **_LARGEST, **_WITH_PLACES, **_SO_MANY_MEANS, **_SO_MANY_LARGEST}
SIZED: dict[Any, Handler] = {**dict.fromkeys(_SO_MANY_MEANS, adaptive_average), **dict.fromkeys(_SO_MANY_LARGEST, adaptive_largest)}
HANDLERS: dict[Any, Handler] = {
    **SIZED,
    **dict.fromkeys(_MEANS, average_pool),
    **dict.fromkeys([*_LARGEST, *_WITH_PLACES], max_pool),
    **dict.fromkeys(_UNPOOLED, max_unpool),
}
