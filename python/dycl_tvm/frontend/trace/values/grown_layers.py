# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Layers that mix neighbours along the dimension whose length is known only at run time, and random numbers of such a length.

What lies behind the length is made what PyTorch takes to be there: the zeros of a convolution's padding. How long a result is follows from
the length, and so does which lengths PyTorch refuses: that is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.aligned import equalized_buffers, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_formats import laid_out
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    buffer_of,
    count_in,
    dtype_of,
    flat,
    masked,
    multiplied,
    new,
    new_in,
    refuse_call,
)
from dycl_tvm.frontend.trace.values.grown_shapes import bounded, cut_anew, most_of, one_length, pad_with
from dycl_tvm.frontend.trace.values.grown_windows import Window, check_lengths, layer_along, number_at
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.numbers import is_symbolic, select
from dycl_tvm.frontend.trace.values.random import draw_some
from dycl_tvm.frontend.trace.values.recorder import to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor

_T = torch.Tensor


def _lengths(t: torch.Tensor) -> dict[int, Length]:
    """Return the lengths of a tensor that are known only at run time, by their dimensions."""
    return t.lengths if isinstance(t, Grown) else {}


# -- convolutions ----------------------------------------------------------------------------------------------------------------
def convolution(
    func: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve: behind the length there are the zeros of the padding."""
    channel = rank_of(x) - rank_of(weight) + 1
    if not isinstance(x, Grown) or isinstance(weight, Grown) or isinstance(bias, Grown) or channel in x.lengths:
        return _of_picked(func, x, weight, bias, channel, stride, padding, dilation, groups)

    def layer(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return func(x, others[0], others[1] if others[1:] else None, stride, padding, dilation, groups)  # type: ignore[no-any-return]

    def window(size: int, at: int) -> Window:
        step, reach = number_at(stride, at), number_at(dilation, at) * (size - 1)
        around = reach if padding == "same" else 0 if padding == "valid" else 2 * number_at(padding, at)
        return Window(1, around - reach - 1 + step, step)

    # kernels of one element read nothing else, by whatever algorithm; others may compute neighbours together
    alone = all(n == 1 for n in weight.shape[2:])
    alone = alone and (isinstance(padding, str) or not any(number_at(padding, d) for d in range(weight.dim() - 2)))
    return _convolved(func, x, weight, bias, layer, window, alone=alone)


def _of_picked(func: Any, t: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, channel: int, *options: Any) -> Any:
    """Convolve with some of the filters, or some of the channels: there are as many as the run says."""
    if channel not in (0, 1) or options[-1] != 1 or any(d > 1 for d in _lengths(weight)):
        return refuse_call(func, t, weight, bias)
    others = {d: n for d, n in _lengths(t).items() if d != channel}
    whole, out = None, extent_at(weight, rank_of(weight))
    if bias is None:
        filters = buffer_of(weight)
    else:
        (filters, whole), out = equalized_buffers([weight, bias], [0, 0])
    assert out is not None
    if bounds_of(out)[0] < 1:
        require(as_number(out) >= 1, RuntimeError("a convolution without a filter"))
    x = buffer_of(t)
    if channel in _lengths(t) or 1 in _lengths(weight):
        given = cut(filters, {1: _lengths(weight)[1]}) if 1 in _lengths(weight) else filters
        (x, filters), among = equalized_buffers([t, given], [channel, 1])
        if isinstance(among, Length):
            x, filters = masked(x, channel, among, 0), masked(filters, 1, among, 0)
        if bounds_of(among)[0] < 1:  # of no channels PyTorch makes none
            out = extent_of(select(as_number(among) == 0, 0, as_number(out)), 0, bounds_of(out)[1])
    made = convolution(func, cut(x, others), filters, whole, *options) if others else func(x, filters, whole, *options)
    return cut_anew(buffer_of(made), {**_lengths(made), channel: out}, False)


def transposed(
    func: Any,
    t: Grown,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Convolve the other way round: what is behind the length gives nothing."""

    def layer(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = func(x, others[0], others[1] if others[1:] else None, stride, padding, output_padding, groups, dilation)
        return found

    def window(size: int, at: int) -> Window:
        step, reach = number_at(stride, at), number_at(dilation, at) * (size - 1)
        return Window(step, reach + number_at(output_padding, at) + 1 - step - 2 * number_at(padding, at))

    # one row that may lie otherwise PyTorch takes for an image with the channels innermost
    surely = (t.contiguous_ and t.exact == 2) or all(n.bounds[0] > 1 for n in t.lengths.values())
    return _convolved(func, t, weight, bias, layer, window, surely)


def _convolved(
    func: Any,
    t: Grown,
    weight: torch.Tensor,
    bias: Any,
    layer: Any,
    window: Callable[[int, int], Window],
    in_order: bool = True,
    alone: bool = False,
) -> Any:
    """Convolve along dimensions whose lengths are known only at run time; ``alone`` if a result is of one place of the input."""
    others = [x for x in (weight, bias) if x is not None]
    if any(isinstance(x, Grown) for x in others):
        return refuse_call(func, t)
    around, batched = weight.dim() - 2, t.dim_() - (weight.dim() - 2) == 2
    first = t.dim_() - around
    if not (batched or first == 1) or any(d < first and not (d == 0 and batched) for d in t.lengths):
        return refuse_call(func, t)
    windows = {d: window(int(weight.shape[2 + d - first]), d - first) for d in t.lengths if d >= first}
    in_order = in_order and batched and around == 1  # which PyTorch puts in order before
    return layer_along(func, t, layer, windows, *others, in_order=in_order, beyond=() if alone else None)


# -- padding ---------------------------------------------------------------------------------------------------------------------
def pad_by(func: Any, t: Grown, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """Pad with a number, or with elements that the last dimensions have, one of them after the other."""
    if mode == "constant":
        return pad_with(func, t, pad, mode, value)
    dims = [t.dim_() - 1 - k for k in range(len(pad) // 2)]
    empty = {d for d, n in t.lengths.items() if n.bounds[0] < 1}
    ends = [bounded(n) if is_symbolic(n) else (n, n) for n in pad]
    if mode not in ("reflect", "replicate", "circular") or not dims or any(is_symbolic(n) and low < 0 for n, (low, _) in zip(pad, ends)):
        return refuse_call(func, t)
    if dims[-1] not in (1, 2) or dims[-1] - 1 in empty:  # PyTorch takes no others, and of these only the batch may be empty
        return refuse_call(func, t)
    made: Any = t
    for k, d in enumerate(dims):
        left, right = pad[2 * k : 2 * k + 2]
        if is_symbolic(left) or is_symbolic(right):
            made = _padded_by_numbers(func, made, d, left, right, mode)
        elif left or right or d in empty:
            made = _padded_along(func, made, d, left, right, mode)
    return made


def _padded_along(func: Any, t: Grown, along: int, left: int, right: int, mode: str) -> Any:
    size = int(t.buffer.shape[along])

    def layer(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, StagedTensor):
            # PyTorch does not pad one dimension of several; what it says of one does not depend on the others
            row = torch.zeros(1, 1, int(x.shape[along]))
            return x.new_zeros(()).expand([n if d != along else func(row, (left, right), mode).shape[2] for d, n in enumerate(x.shape)])
        return _read(x, along, size + left + right, left, t.lengths.get(along, size), mode)

    if along not in t.lengths:
        func(torch.zeros(1, 1, size), (left, right), mode)  # raises what PyTorch raises of it
    return layer_along(func, t, layer, {along: Window(1, left + right)})


def _read(x: torch.Tensor, along: int, room: int, left: Any, length: Extent, mode: str) -> torch.Tensor:
    """Return so many elements of a buffer from so far before the first on; what there is not is read of what there is, by the mode."""
    places, last = torch.arange(room) - to_tensor(left, torch.int64), to_tensor(as_number(length), torch.int64) - 1
    if mode == "reflect":
        places = places.abs()
        places = torch.where(places > last, 2 * last - places, places)
    elif mode == "circular":
        places = torch.remainder(places, (last + 1).clamp(min=1))
    return x.index_select(along, torch.minimum(places, last).clamp(0, max(int(x.shape[along]) - 1, 0)))


def _padded_by_numbers(func: Any, t: Grown, along: int, left: Any, right: Any, mode: str) -> Any:
    """Pad by numbers of the run, none of which is negative."""
    length: Extent = t.lengths.get(along, int(t.buffer.shape[along]))
    most = as_number(length) - (mode == "reflect") if mode != "replicate" else None
    if bounds_of(length)[0] < 1:
        require(as_number(length) > 0, RuntimeError(f"{mode} padding of no elements"))
    for n in (left, right):
        if most is not None:
            require(n <= most, RuntimeError(f"{mode} padding that is wider than the dimension allows"))
    total = as_number(length) + left + right
    extent = extent_of(total, *bounded(total))
    made = _read(t.padded(), along, bounds_of(extent)[1], left, length, mode)
    return laid_out(cut(made, {**t.lengths, along: extent}), t.order if t.contiguous_ else None, t)


# -- normalisation ----------------------------------------------------------------------------------------------------------------
def batch_norm(
    func: Any,
    t: Grown,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    *rest: Any,
    **kw: Any,
) -> Any:
    """Normalise by means that are known: element by element."""
    given = [running_mean, running_var, weight, bias]
    picked, channels = 1 in t.lengths or any(isinstance(x, Grown) for x in given), extent_at(t, t.dim_() - 1)
    if training or running_mean is None or (picked and not all(x is None or is_same(extent_at(x, 1), channels) for x in given)):
        return refuse_call(func, t)
    if picked and t.lengths[1].bounds[0] < 1:
        require(number(t.lengths[1]) >= 1, IndexError("a normalisation of no channels"))
    wholes = [fitted(buffer_of(x), 0, int(t.buffer.shape[1])) if isinstance(x, Grown) else x for x in given]
    return new_in(func(t.padded(), *wholes, False, *rest, **kw), t.lengths, t.contiguous_)


def instance_norm(
    func: Any,
    t: Grown,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    """Normalise each channel by itself."""
    if use_input_stats is not True or running_mean is not None or t.dim_() < 3:
        return refuse_call(func, t)
    _check_not(1, count_in(t, range(2, t.dim_())), "spatial element")
    return _normalised(func, t, int(t.buffer.shape[1]), weight, bias, eps)


def group_norm(func: Any, t: Grown, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalise groups of channels."""
    _check_not(num_groups, count_in(t, range(t.dim_())), "value per channel")
    return _normalised(func, t, num_groups, weight, bias, eps)


def _check_not(single: int, count: Any, what: str) -> None:
    """Raise, as PyTorch does, where each mean would be that of a single element; of no elements it says nothing."""
    if is_symbolic(count) and ((known := count.node.bounds) is None or known[0] <= single <= known[1]):
        require(count != single, ValueError(f"Expected more than 1 {what} when training"))


def _normalised(func: Any, t: Grown, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Normalise groups of channels by the mean and the variance of what there is of them."""
    shape = t.buffer.shape
    mixed = {d: n for d, n in t.lengths.items() if d >= 2}
    if 1 in t.lengths or dtype_of(t) not in (torch.float32, torch.float64) or shape[1] % groups:
        return refuse_call(func, t)
    if not mixed:  # each row of the batch by itself; of single elements PyTorch says that there are too few
        if math.prod(shape[2:]) < 2:
            return refuse_call(func, t)
        return new_in(F.group_norm(t.padded(), groups, weight, bias, eps), t.lengths, t.contiguous_)
    for d in mixed:
        check_lengths(func, t, d, lambda x: func(x, groups) if func is F.group_norm else func(x), Window(1, 0), ())
    dims, parts = [2, *range(3, len(shape) + 1)], [shape[0], groups, shape[1] // groups, *shape[2:]]
    whole = t.padded().reshape(parts).double()  # the mean may be far larger than what is about it
    count = to_tensor(multiplied(mixed.values()), whole.dtype) * math.prod(parts[d] for d in dims if d - 1 not in mixed)

    def there(x: torch.Tensor) -> torch.Tensor:
        for d, length in mixed.items():
            x = masked(x, d + 1, length, 0)
        return x

    middle = there(whole).sum(dims, True) / count
    variance = there((whole - middle) ** 2).sum(dims, True) / count
    made = ((whole - middle) / torch.sqrt(variance + eps)).to(dtype_of(t)).reshape(shape)
    by_channel = [1, shape[1], *[1] * (len(shape) - 2)]
    made = made if weight is None else made * weight.reshape(by_channel)
    made = made if bias is None else made + bias.reshape(by_channel)
    return new_in(made, t.lengths, t.contiguous_)


def gated(func: Any, t: Grown, dim: int = -1) -> Any:
    """``F.glu``: one half of a dimension multiplied with the other half, as a gate."""
    if dim % t.dim_() not in t.lengths:
        return new_in(func(t.padded(), dim), t.lengths, t.contiguous_)
    with current().functions:
        half = t.size(dim) // 2
        require(t.size(dim) % 2 == 0, RuntimeError("Halving dimension must be even, but a dimension has a size that is not"))
        return t.narrow(dim, 0, half) * t.narrow(dim, half, half).sigmoid()


# -- random numbers --------------------------------------------------------------------------------------------------------------
def drawn_like(func: Any, t: Grown, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: Any = False) -> Any:
    """Draw as many numbers as there are elements, which lie in memory as those do."""
    if t.order is None or requires_grad or _is_elsewhere(layout, device):
        return refuse_call(func, t)
    return _drawn(_LIKE[func], t.buffer.shape, t.order, t.along, t.length, dtype or dtype_of(t), None)


def drawn(
    func: Any, *sizes: Any, dtype: Any = None, generator: Any = None, layout: Any = None, device: Any = None, requires_grad: Any = False
) -> Any:
    """Draw as many numbers as sizes say of which one is known only at run time."""
    wanted = flat(sizes)
    at, length = one_length(wanted)
    if at is None or requires_grad or _is_elsewhere(layout, device):
        return NotImplemented
    wanted[at] = most_of(length)
    return _drawn(_SIZED[func], tuple(wanted), tuple(range(len(wanted))), at, length, dtype or torch.get_default_dtype(), generator)


def _is_elsewhere(layout: Any, device: Any) -> bool:
    """Whether something else is asked for than a plain tensor of the CPU."""
    return layout not in (None, torch.strided) or (device is not None and torch.device(device).type != "cpu")


def _drawn(
    name: str, shape: tuple[int, ...], order: tuple[int, ...], along: int, length: Length, dtype: torch.dtype, generator: Any
) -> Any:
    """Draw numbers in the order in which they lie in memory: those of each row that there are, not those of the buffer."""
    place = order.index(along)
    sizes = [shape[d] for d in order]
    rows, room, behind = math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :])
    there = to_tensor(number(length), torch.int64)
    count = there * (rows * behind)
    flags = [_is_scattered(shape, order, along, there)] if name == "normal" else []
    row = draw_some(name, count, rows * room * behind, dtype, generator, *flags)
    if rows > 1 and room and behind:
        source = (torch.arange(rows)[:, None] * there + torch.arange(room)).reshape(-1)
        row = row.reshape(rows * room, behind).index_select(0, source.clamp(max=rows * room - 1))
    made = row.reshape(sizes).permute([order.index(d) for d in range(len(order))])
    made = new(made, along, length)
    made.order = order
    return made


def _is_scattered(shape: tuple[int, ...], order: tuple[int, ...], along: int, there: torch.Tensor) -> torch.Tensor:
    """Return whether elements are no contiguous tensor in PyTorch's sense, for which dimensions of one element do not count."""

    def is_scattered(n: int) -> bool:
        counted = [d for d in order if (n if d == along else shape[d]) != 1]
        return counted != sorted(counted)

    return torch.where(there == 1, torch.tensor(is_scattered(1)), torch.tensor(is_scattered(2)))


_CONVOLUTIONS = [torch.conv1d, torch.conv2d, torch.conv3d]
_TRANSPOSED = [torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d]
_LIKE = {torch.rand_like: "uniform", torch.randn_like: "normal"}
_SIZED = {torch.rand: "uniform", torch.randn: "normal"}
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(_CONVOLUTIONS, convolution),
    **dict.fromkeys(_TRANSPOSED, transposed),
    **dict.fromkeys([F.pad, torch._C._nn.pad], pad_by),
    F.batch_norm: batch_norm,
    F.instance_norm: instance_norm,
    F.group_norm: group_norm,
    F.glu: gated,
    **dict.fromkeys(_LIKE, drawn_like),
}
SIZED: dict[Any, Handler] = dict.fromkeys(_SIZED, drawn)
