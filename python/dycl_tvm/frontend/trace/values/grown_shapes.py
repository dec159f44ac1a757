# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shapes of tensors whose length is known only at run time: joined, turned, padded, and made by sizes that are such lengths."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import all_of_a_split, broadcast, dims_of, equalized_in, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import (
    Extent,
    as_number,
    bounds_of,
    difference,
    extent_of,
    largest_of,
    least_of,
    summed,
)
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_formats import laid_out, order_of_joined, suggested_order
from dycl_tvm.frontend.trace.values.grown_math import (
    as_exact_as,
    buffer_of,
    converted,
    dtype_of,
    filled,
    flat,
    is_contiguous,
    left_of,
    masked,
    new,
    new_in,
    refuse_call,
)
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.recorder import to_tensor

_T = torch.Tensor


def may_be_size(x: Any, sized: bool) -> bool:
    return x.node.length is not None or (sized and x.node.is_int())


def length_of_size(x: Any) -> Any:
    """Return a number of the run as a length: one that grows in a loop, or of which bounds are known, or given; None for anything else."""
    if not scalars.is_symbolic(x) or not x.node.is_int():
        return None
    if x.node.length is not None:
        return x.node.length
    low, high = bounded(x)
    if low < 0:
        require(x >= 0, RuntimeError("a tensor cannot have a negative dimension"))
    return extent_of(x, max(low, 0), max(high, 0))


def bounded(x: Any, least: int = 0) -> tuple[int, int]:
    """Return the bounds of a number that decides a size: they are known, or the user gave one; ``least`` is it where none is known.

    A number above that bound ends the call.
    """
    low, high = scalars.bounds_of(x) or (-(2**63), 2**63 - 1)
    if high <= MOST_ELEMENTS:
        return low, high
    current().decisions.count_trips()
    most = current().limits.length
    if most is None:
        raise UnsupportedError("a size is known only at run time, and nothing bounds it", current().origin(), _TO_BOUND)
    if high > most:
        limit(scalars.operand_of(x <= most), f"a size is above max_length = {most}")
    return low, min(high, most)


_TO_BOUND = "bound the number, as with torch._check(n <= 1000) or min(n, 1000), or give all such sizes a bound: build(..., max_length=1000)"


#: Up to which number a dimension may be as long as a number of the run says.
MOST_ELEMENTS = 1 << 16


def cat(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = next(t for t in tensors if isinstance(t, Grown))
    rest = [t for t in tensors if isinstance(t, Grown) or t.dim() != 1 or t.shape[0]]  # PyTorch leaves out what is empty and of rank 1
    if any(rank_of(t) != first.dim_() for t in rest):
        return refuse_call(func, first)
    dim = dim % first.dim_()
    order, dtype = order_of_joined(tensors), functools.reduce(torch.promote_types, map(dtype_of, tensors))
    rest = [t if dtype_of(t) == dtype else converted(_T.to, t, dtype) for t in rest]
    parts: list[Extent] = [extent_at(t, first.dim_() - dim) for t in rest]  # type: ignore[misc]  # all have the dimension
    buffers, extents = equalized_in(rest, [d for d in dims_of(rest) if d != dim])
    if all(isinstance(n, int) for n in parts):
        return laid_out(cut(func(buffers, dim), extents), order, first)
    others = {tuple(n for d, n in enumerate(t.shape) if d != dim) for t in buffers}
    if len(others) > 1:
        return refuse_call(func, first)
    if len(rest) == 1:
        return laid_out(cut(buffers[0].clone(), first.lengths), order, first)
    whole, length, total = buffers[0], parts[0], all_of_a_split(parts)
    for added, more in zip(buffers[1:], parts[1:]):
        whole, length = _with_behind(whole, length, added, more, dim, None if total is None else bounds_of(total)[1])
    return laid_out(cut(whole, {**extents, dim: length if total is None else total}), order, first)


def _with_behind(
    whole: torch.Tensor, length: Extent, added: torch.Tensor, more: Extent, dim: int, room: int | None = None
) -> tuple[torch.Tensor, Extent]:
    """Return a buffer with another one behind what there is in it, and how much there is then; ``room`` is how much there is at most.

    Behind that there are zeros, which cost nothing here: attention and products need them there, and would write another buffer.
    """
    total = summed(length, more)
    if isinstance(length, int):
        return torch.cat([whole, added], dim), total
    size = max(bounds_of(total)[1], whole.shape[dim]) if room is None else room
    buffer = fitted(whole, dim, size)
    start, positions = to_tensor(number(length), torch.int64), torch.arange(size)
    shape = [size if d == dim else 1 for d in range(buffer.dim())]
    if added.shape[dim] == 0:
        return buffer, total
    if added.shape[dim] == 1:
        return _zero_behind(torch.where(positions.reshape(shape) == start, added, buffer), dim, total), total
    shifted = positions - start
    moved = torch.index_select(added, dim, shifted.clamp(0, added.shape[dim] - 1))
    inside = ((shifted >= 0) & (shifted < added.shape[dim])).reshape(shape)
    return _zero_behind(torch.where(inside, moved, buffer), dim, total), total


def _zero_behind(t: torch.Tensor, along: int, length: Extent) -> torch.Tensor:
    """Return a buffer with zeros behind a length."""
    return masked(t, along, length, 0) if isinstance(length, Length) else t


def stack(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = next(t for t in tensors if isinstance(t, Grown))
    if any(rank_of(t) != first.dim_() for t in tensors):
        return refuse_call(func, first)
    dim = dim % (first.dim_() + 1)
    buffers, extents = equalized_in(tensors, dims_of(tensors))
    in_order = first.dim_() < 3 or all(map(is_contiguous, tensors))  # images may suggest another order
    return cut_anew(func(buffers, dim), {d + (dim <= d): n for d, n in extents.items()}, in_order)


def pad_sequence(
    func: Any, sequences: Sequence[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    """Stack tensors behind which there are numbers up to the longest."""
    first = next(t for t in sequences if isinstance(t, Grown))
    if padding_side != "right" or any(rank_of(t) != first.dim_() or (isinstance(t, Grown) and t.along) for t in sequences):
        return refuse_call(func, first)
    lengths: list[Extent] = [t.length if isinstance(t, Grown) else int(t.shape[0]) for t in sequences]
    ends = [max(column) for column in zip(*map(bounds_of, lengths))]
    total = extent_of(functools.reduce(largest_of, map(as_number, lengths)), ends[0], ends[1])
    rows = [masked(t.padded(), 0, t.length, padding_value) if isinstance(t, Grown) else t for t in sequences]
    whole = torch.stack([fitted(row, 0, ends[1], padding_value) for row in rows], 0 if batch_first else 1)
    return grown_or_plain(whole, 1 if batch_first else 0, total, True)


def grown_or_plain(t: torch.Tensor, along: int, length: Extent, known: bool) -> torch.Tensor:
    """Return as much of a tensor as there is; whether it is ``known`` to be contiguous."""
    return cut_anew(t, {along: length}, known)


def cut_anew(t: torch.Tensor, extents: Mapping[int, Extent], known: bool) -> torch.Tensor:
    """Return as much of a tensor that was made anew as there is along dimensions; whether it is ``known`` to be contiguous."""
    made = cut(t, extents)
    if isinstance(made, Grown):
        made.contiguous_ = known
    return made


def buffer_and_count(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor of fixed shape that begins with the rows of another, and how many rows there are."""
    if isinstance(t, Grown) and t.along == 0:
        return t.padded(), to_tensor(number(t.length), torch.int64)
    return t, torch.tensor(t.shape[0])


def as_long_as(t: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Return as much of the front of a row as there are rows of a tensor."""
    return new(row, 0, t.length) if isinstance(t, Grown) and t.along == 0 else row


# -- shapes -------------------------------------------------------------------------------------------------------------------
def transpose(func: Any, t: Grown, dim0: int = -2, dim1: int = -1) -> Any:
    order = list(range(t.dim_()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(_T.permute, t, order)


def matrix_transpose(func: Any, t: Grown) -> Any:
    return transpose(func, t) if t.dim_() == 2 else refuse_call(func, t)


def permute(func: Any, t: Grown, *sizes: Any, dims: Any = None) -> Any:
    order = [d % t.dim_() for d in flat(sizes if dims is None else (dims,))]
    made: Grown = cut(t.padded().permute(order), {order.index(d): n for d, n in t.lengths.items()})  # type: ignore[assignment]  # it grows
    made.order = None if t.order is None else tuple(map(order.index, t.order))
    made.orders = tuple([tuple(map(order.index, other)) for other in t.orders])
    made.gaps, made.exact = t.gaps, t.exact
    return made


def with_parts(func: Any, t: Grown) -> Any:
    """View pairs of numbers as complex ones, or the other way round."""
    if (t.dim_() - 1 in t.lengths and func is torch.view_as_complex) or not t.contiguous_:
        return refuse_call(func, t)
    made: Grown = cut(func(t.padded()), t.lengths)  # type: ignore[assignment]  # it grows
    made.contiguous_ = True
    return made


def unsqueeze(func: Any, t: Grown, dim: int) -> Any:
    dim = dim % (t.dim_() + 1)
    made = as_exact_as(t, new_in(t.padded().unsqueeze(dim), {d + (dim <= d): n for d, n in t.lengths.items()}, t.contiguous_))
    if isinstance(made, Grown) and any(n.bounds[0] < 1 for n in t.lengths.values()):
        made.exact = min(made.exact, 1)  # where there is nothing, the stride of the new dimension is none of a tensor made anew
    return made


def without_open_size(wanted: Sequence[Any], meaning: str) -> None:
    """End a call in which a number of the run is -1, where that is no length but means something."""
    for n in wanted:
        if scalars.is_symbolic(n) and n.node.length is None and (scalars.bounds_of(n) or (-1, 0))[0] < 0:
            limit(scalars.operand_of(n != -1), f"a size is -1, known only at run time, by which {meaning}")


def expand(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    wanted = flat(sizes)
    more, lengths = len(wanted) - rank_of(x), {}
    if more < 0:
        return NotImplemented if not isinstance(x, Grown) else refuse_call(func, x)
    if isinstance(x, Grown):
        for d, length in x.lengths.items():
            size = wanted[d + more]
            if not (type(size) is int and size == -1) and not is_same(length_of_size(size), length):
                return _spread(func, x, wanted)
            wanted[d + more], lengths[d + more] = -1, length
    without_open_size(wanted, "expand() means the tensor's own")
    rooms, asked = rooms_and_lengths(wanted) or (None, {})
    if rooms is None or not (asked or lengths) or any(d >= more and buffer_of(x).shape[d - more] != 1 for d in asked):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    made: Grown = cut(buffer_of(x).expand(rooms), lengths | asked)  # type: ignore[assignment]  # it has lengths
    order = x.order if isinstance(x, Grown) else tuple(range(x.dim())) if is_contiguous(x) else None
    if order is not None:
        made.order = (*range(more), *[d + more for d in order])
        again = [d < more or (buffer_of(x).shape[d - more] == 1 and made.buffer.shape[d] != 1) for d in made.order]
        made.gaps = frozenset(place + k for place, is_repeated in enumerate(again) for k in (0, 1) if is_repeated)
        made.gaps |= {place + more for place in x.gaps} if isinstance(x, Grown) else set()
    return made


def _spread(func: Any, x: Grown, wanted: list[Any]) -> Any:
    """Expand to lengths that may be other ones, where there is one element."""
    more, fixed = len(wanted) - x.dim_(), [type(n) is int and n == -1 for n in wanted]
    if any(own and d < more for d, own in enumerate(fixed)):
        return refuse_call(func, x)
    sizes = [None if own else n if type(n) is int else length_of_size(n) for own, n in zip(fixed, wanted)]
    extents = {d: extent_at(x, len(wanted) - d) if n is None and fixed[d] else n for d, n in enumerate(sizes)}
    if None in extents.values():
        return refuse_call(func, x)
    lengths: dict[int, Extent] = {d: n for d, n in extents.items() if d - more in x.lengths or isinstance(n, Length)}  # type: ignore[misc]
    first = min(lengths)
    room = [bounds_of(lengths[d])[1] if d in lengths else 1 for d in range(first, len(wanted))]
    like = cut_anew(torch.zeros(room), {d - first: n for d, n in lengths.items()}, True)
    agreed = broadcast([x, like])
    if agreed is None:
        return refuse_call(func, x)
    for d, length in lengths.items():
        found = agreed[1].get(len(wanted) - d, length)
        if not is_same(found, length):
            require(as_number(found) == as_number(length), RuntimeError("the expanded size of a tensor must match its own"))
    whole = agreed[0][id(x)]
    for d in x.lengths:
        whole = fitted(whole, d, bounds_of(lengths[d + more])[1])
    sizes = [-1 if d - more in x.lengths else bounds_of(n)[1] if d in lengths else wanted[d] for d, n in extents.items()]  # type: ignore[arg-type]
    made = cut(whole.expand(sizes), lengths)  # type: ignore[arg-type]  # all are numbers here
    stands_for_a_view(made, x)
    return made


def stands_for_a_view(made: torch.Tensor, t: Grown) -> None:
    """Let a copy of what lies in a tensor stand for a view of it: neither is changed in place any more."""
    if made.storage_ is not t.storage_:  # type: ignore[attr-defined]  # one of staging's
        made.storage_.growing = t.storage_.growing = t.decision  # type: ignore[attr-defined]


def are_plain(sizes: Sequence[Any]) -> bool:
    return all(type(n) is int for n in sizes)


def one_length(sizes: Sequence[Any]) -> tuple[int | None, Any]:
    """Return which size is a length, and the length; None if none is, or another is a number of the run."""
    at = [i for i, n in enumerate(sizes) if scalars.is_symbolic(n)]
    if len(at) != 1 or not are_plain([n for n in sizes if not scalars.is_symbolic(n)]):
        return None, None
    length = length_of_size(sizes[at[0]])
    return (at[0], length) if isinstance(length, Length) else (None, None)


def rooms_and_lengths(sizes: Sequence[Any]) -> tuple[list[int], dict[int, Length]] | None:
    """Return how large a buffer for some sizes is, and which of them are lengths; None if one is no size that is known so far."""
    found = [length_of_size(n) if scalars.is_symbolic(n) else n for n in sizes]
    if not all(type(n) is int or isinstance(n, Length) for n in found):
        return None
    return [most_of(n) if isinstance(n, Length) else n for n in found], {d: n for d, n in enumerate(found) if isinstance(n, Length)}


def squeeze(func: Any, t: Grown, dim: Any = None) -> Any:
    dims = [d % t.dim_() for d in flat((dim,))] if dim is not None else list(range(t.dim_()))
    ones = [d for d in dims if d in t.lengths and as_number(t.lengths[d]) == 1]  # the paths part
    gone = [d for d in dims if d in ones or (d not in t.lengths and t.buffer.shape[d] == 1)]
    whole: torch.Tensor = t.padded()
    for d in sorted(gone, reverse=True):
        whole = whole.narrow(d, 0, 1).squeeze(d)
    return new_in(whole, left_of(t, gone), t.contiguous_)


def pad_with(func: Any, t: Grown, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Pad with a number, along dimensions whose lengths are known only at run time too, and by such lengths."""
    entries = list(pad)
    around = {}
    for d in t.lengths:
        behind = 2 * (t.dim_() - 1 - d)
        around[d] = entries[behind : behind + 2] or (0, 0)
        entries[behind : behind + 2] = [0, 0] if entries[behind:] else []
    if mode != "constant" or scalars.is_symbolic(value) or not are_plain(entries) or len(pad) % 2:
        return refuse_call(func, t)
    made: torch.Tensor = filled(t, value or 0)
    made = func(made, entries, mode, value) if any(entries) else made
    extents: dict[int, Extent] = {}
    for d, (left, right) in around.items():
        made, extents[d] = _padded(made, d, t.lengths[d], left, right, value or 0)
    made = laid_out(cut(made, extents), suggested_order(t), t)
    if isinstance(made, Grown):
        made.exact = 2 if t.dim_() < 4 else 0
    return made


def pad_plain(func: Any, x: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Pad a tensor of fixed shape by numbers of the run, one dimension after another."""
    pairs = [pad[k : k + 2] for k in range(0, len(pad), 2)]
    of_run = [any(map(scalars.is_symbolic, pair)) for pair in pairs]
    if mode != "constant" or scalars.is_symbolic(value) or not any(of_run) or len(pad) % 2:
        return NotImplemented
    fixed = [n for pair, open_ in zip(pairs, of_run) for n in ((0, 0) if open_ else pair)]
    whole, extents = func(x, fixed, mode, value) if any(fixed) else x, {}
    for k, (left, right) in enumerate(pairs):
        if of_run[k]:
            along = x.dim() - 1 - k
            whole, extents[along] = _padded(whole, along, int(x.shape[along]), left, right, value or 0)
    return laid_out(cut(whole, extents), suggested_order(x), x)


def _padded(whole: torch.Tensor, along: int, length: Extent, left: Any, right: Any, value: Any) -> tuple[torch.Tensor, Extent]:
    """Return a padded buffer, which holds the number behind its length already, and its length; what is negative takes something off."""
    (low_left, high_left), (low_right, high_right) = [bounded(n) if scalars.is_symbolic(n) else (n, n) for n in (left, right)]
    least, most = bounds_of(length)
    size, taken = as_number(length) + left + right, least_of(left, 0) + least_of(right, 0)
    for n in (size, as_number(length) + taken):  # what is taken off has to be there before something is put to the other end
        require(n >= 0, RuntimeError("padding would give a tensor a negative size"))
    total = extent_of(largest_of(size, 0), max(least + low_left + low_right, 0), max(most + high_left + high_right, 0))
    room = bounds_of(total)[1]
    if type(left) is int and left == 0:
        return fitted(whole, along, room, value), total
    places = torch.arange(room) - to_tensor(left, torch.int64)
    shape = [room if d == along else 1 for d in range(whole.dim())]
    size = int(whole.shape[along])
    moved = fitted(whole, along, max(size, 1)).index_select(along, places.clamp(0, max(size - 1, 0)))
    inside = ((places >= 0) & (places < to_tensor(as_number(length), torch.int64))).reshape(shape)
    return torch.where(inside, moved, torch.full((), value, dtype=whole.dtype)), total


# -- making tensors ------------------------------------------------------------------------------------------------------------
def arange(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Count up to, or between, numbers of the run."""
    if any(map(scalars.is_symbolic, kwargs.values())):
        return NotImplemented
    args = tuple(flat(args))
    start, end, step = args if len(args) == 3 else (*args, 1) if len(args) == 2 else (0, *args, 1)
    whole = kwargs.get("dtype") in (None, torch.int64, torch.int32)
    if type(step) is float and step.is_integer() and whole and "dtype" in kwargs:  # which PyTorch takes as an integer of that type
        step = int(step)
    if len(args) == 3 and (not whole or type(step) is not int or step == 0):
        return NotImplemented
    from_zero = type(start) is int and start == 0 and step == 1
    if whole and not from_zero:
        count = _steps(start, end, step)
        if count is None:
            return NotImplemented
        made = torch.arange(count if isinstance(count, int) else most_of(count), **kwargs) * step
        made = made + (to_tensor(start, made.dtype) if scalars.is_symbolic(start) else start)
        return made if isinstance(count, int) else new(made, 0, count)
    length = length_of_size(end) if from_zero else None
    if not isinstance(length, Length):
        return NotImplemented
    made = new(func(most_of(length), **kwargs).clone(), 0, length)
    made.below = length if whole else None
    return made


def linspace(func: Any, start: Any, end: Any, steps: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    """Return so many numbers between two, as PyTorch computes them: from both ends."""
    dtype, length = dtype or torch.get_default_dtype(), length_of_size(steps)
    if not isinstance(length, Length) or dtype not in (torch.float32, torch.float64) or any(kwargs.values()):
        return NotImplemented
    if not all(type(x) in (int, float) for x in (start, end)):
        return NotImplemented
    at, last = torch.arange(most_of(length)), to_tensor(number(length) - 1, torch.int64)
    step = (torch.tensor(end, dtype=dtype) - torch.tensor(start, dtype=dtype)) / last.clamp(min=1).to(dtype)
    made = torch.where(at < (last + 1) // 2, start + step * at, end - step * (last - at))
    return new(torch.where(last > 0, made, torch.tensor(start, dtype=dtype)), 0, length)


def _steps(start: Any, end: Any, step: int) -> Extent | None:
    """Return how many steps there are between two numbers; None if they have no bounds. There must not be fewer than none."""
    if not all(type(n) is int or (scalars.is_symbolic(n) and n.node.is_int()) for n in (start, end)):
        return None
    (first, last), each = ((start, end) if step > 0 else (end, start)), abs(step)
    own = [scalars.length_of(n) for n in (last, first)]
    known = combine("sub", *own) if None not in own else None  # type: ignore[arg-type]  # both are lengths
    if known is None or (isinstance(known, Length) and known.bounds[0] < 0):  # a number that has left 64 bits lies before
        require(last >= first, RuntimeError("upper bound and lower bound inconsistent with step sign"))
    known = difference(last, first) if known is None else known
    if isinstance(known, int):
        return None if known < 0 else -(-known // each)
    if known is not None and each == 1:
        return known  # type: ignore[return-value]  # a difference is a length
    low, high = bounded(way := last - first)
    ends = [max(-(-n // each), 0) for n in (low, high)]
    return extent_of((way + (each - 1)) // each if each > 1 else way, *ends)


def most_of(length: Length) -> int:
    """Return the largest length, of a tensor that has to have one in all trips."""
    if length.bounds[0] < 0:
        current().decisions.fork(length.counter.loop, "a tensor is made whose length may be negative in some trips of a loop")
    return length.bounds[1]


def like(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    form = kwargs.pop("memory_format", None) or torch.preserve_format
    if form not in (torch.preserve_format, torch.contiguous_format):
        return refuse_call(func, t)
    return new_in(func(t.padded(), *args, **kwargs).clone(), t.lengths, t.contiguous_ or form is torch.contiguous_format)


def full(func: Any, *args: Any, **kwargs: Any) -> Any:
    like, sizes = (args[:1], args[1:]) if func in _LIKE_ANOTHER else ((), args)
    buffers = tuple(map(buffer_of, like))
    sized, rest = (sizes[:1], sizes[1:]) if func in _WITH_NUMBER else (sizes, ())
    wanted = flat(sized) if sized else None
    if wanted is None:
        return func(*buffers, *sizes, **kwargs)
    if are_plain(wanted):
        return func(*buffers, wanted, *rest, **kwargs)
    found = rooms_and_lengths(wanted)
    if found is None:
        return NotImplemented
    rooms, lengths = found
    return new_in(func(*buffers, rooms, *rest, **kwargs).clone(), lengths)


_LIKE_ANOTHER = (_T.new_ones, _T.new_zeros, _T.new_full, _T.new_empty)
_WITH_NUMBER = (torch.full, _T.new_full)
