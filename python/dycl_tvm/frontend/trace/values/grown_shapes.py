# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shapes of tensors whose length is known only at run time: joined, turned, padded, and made by sizes that are such lengths."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import all_of_a_split, broadcast, equalized, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import (
    Extent,
    as_number,
    bounds_of,
    difference,
    extent_of,
    largest_of,
    summed,
)
from dycl_tvm.frontend.trace.values.grown import Grown, grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    at_front,
    buffer_of,
    dtype_of,
    flat,
    is_contiguous,
    masked,
    new,
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
    if any(rank_of(t) != first.dim_() or dtype_of(t) != dtype_of(first) for t in rest):
        return refuse_call(func, first)
    dim = dim % first.dim_()
    known = all(map(is_contiguous, tensors)) or first.dim_() not in (4, 5)  # PyTorch keeps the order of channels-last tensors
    if any(t.along != first.along for t in rest if isinstance(t, Grown)):
        return refuse_call(func, first)
    if dim != first.along:
        buffers, length = equalized(rest, [first.along] * len(rest))
        return grown_or_plain(func(buffers, dim), first.along, length, known)
    others = {tuple(n for d, n in enumerate(t.buffer.shape if isinstance(t, Grown) else t.shape) if d != dim) for t in rest}
    if len(others) > 1:
        return refuse_call(func, first)
    if len(rest) == 1:
        return as_known(known, first.padded().clone(), dim, first.length)
    whole, length = buffer_of(rest[0]), rest[0].length if isinstance(rest[0], Grown) else int(rest[0].shape[dim])
    total = all_of_a_split(rest)
    for t in rest[1:]:
        whole, length = _with_behind(whole, length, t, dim, None if total is None else bounds_of(total)[1])
    return grown_or_plain(whole, dim, length if total is None else total, known)


def _with_behind(whole: torch.Tensor, length: Extent, t: torch.Tensor, dim: int, room: int | None = None) -> tuple[torch.Tensor, Extent]:
    """Return a buffer with another tensor behind what there is in it, and how much there is then; ``room`` is how much there is at most."""
    added, more = (t.padded(), t.length) if isinstance(t, Grown) else (t, int(t.shape[dim]))
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
        return torch.where(positions.reshape(shape) == start, added, buffer), total
    shifted = positions - start
    moved = torch.index_select(added, dim, shifted.clamp(0, added.shape[dim] - 1))
    inside = ((shifted >= 0) & (shifted < added.shape[dim])).reshape(shape)
    return torch.where(inside, moved, buffer), total


def stack(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = next(t for t in tensors if isinstance(t, Grown))
    if any(rank_of(t) != first.dim_() or (isinstance(t, Grown) and t.along != first.along) for t in tensors):
        return refuse_call(func, first)
    dim = dim % (first.dim_() + 1)
    buffers, length = equalized(tensors, [first.along] * len(tensors))
    return grown_or_plain(func(buffers, dim), first.along + (dim <= first.along), length, True)


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
    return t.narrow(along, 0, length) if isinstance(length, int) else as_known(known, t, along, length)


def as_known(known: bool, t: torch.Tensor, along: int, length: Length) -> Grown:
    """Return what grows of a tensor; whether it is ``known`` to be contiguous."""
    made = new(t, along, length)
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
    made: Grown = grown(t.padded().permute(order), order.index(t.along), t.length)  # type: ignore[assignment]  # it grows
    made.order = None if t.order is None else tuple(map(order.index, t.order))
    return made


def unsqueeze(func: Any, t: Grown, dim: int) -> Any:
    dim = dim % (t.dim_() + 1)
    return as_known(t.contiguous_, t.padded().unsqueeze(dim), t.along + (dim <= t.along), t.length)


def expand(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    wanted = flat(sizes)
    if isinstance(x, Grown):
        along = x.along + len(wanted) - x.dim_()
        stays = type(wanted[along]) is int and wanted[along] == -1
        if not stays and not is_same(length_of_size(wanted[along]), x.length):
            return _spread(func, x, wanted, along)
        wanted[along] = -1
        return grown(x.padded().expand(wanted), along, x.length) if _are_plain(wanted) else refuse_call(func, x)
    for n in wanted:
        if scalars.is_symbolic(n) and (scalars.bounds_of(n) or (-1, 0))[0] < 0:
            limit(scalars.operand_of(n != -1), "a size is -1, known only at run time, by which expand() means the tensor's own")
    at, length = one_length(wanted)
    if at is None or (x.dim() >= len(wanted) - at and x.shape[at - len(wanted)] != 1):
        return NotImplemented
    wanted[at] = most_of(length)
    return grown(x.expand(wanted), at, length)


def _spread(func: Any, x: Grown, wanted: list[Any], along: int) -> Any:
    """Expand to a length that may be another one, if there is one element."""
    length: Extent | None = wanted[along] if type(wanted[along]) is int else length_of_size(wanted[along])
    if length is None or not _are_plain([n for d, n in enumerate(wanted) if d != along]):
        return refuse_call(func, x)
    room = bounds_of(length)[1]
    like = grown_or_plain(torch.zeros([room] + [1] * (len(wanted) - along - 1)), 0, length, True)
    agreed = broadcast([x, like])
    if agreed is None:
        return refuse_call(func, x)
    if not is_same(agreed[2], length):
        require(as_number(agreed[2]) == as_number(length), RuntimeError("the expanded size of a tensor must match its own"))
    wanted[along] = -1
    made = grown_or_plain(fitted(agreed[0][id(x)], x.along, room).expand(wanted), along, length, False)
    stands_for_a_view(made, x)
    return made


def stands_for_a_view(made: torch.Tensor, t: Grown) -> None:
    """Let a copy of what lies in a tensor stand for a view of it: neither is changed in place any more."""
    if made.storage_ is not t.storage_:  # type: ignore[attr-defined]  # one of staging's
        made.storage_.growing = t.storage_.growing = t.length.counter.loop  # type: ignore[attr-defined]


def _are_plain(sizes: Sequence[Any]) -> bool:
    return all(type(n) is int for n in sizes)


def one_length(sizes: Sequence[Any]) -> tuple[int | None, Any]:
    """Return which size is a length, and the length; None if none is, or another is a number of the run."""
    at = [i for i, n in enumerate(sizes) if scalars.is_symbolic(n)]
    if len(at) != 1 or not _are_plain([n for n in sizes if not scalars.is_symbolic(n)]):
        return None, None
    length = length_of_size(sizes[at[0]])
    return (at[0], length) if isinstance(length, Length) else (None, None)


def reshape(func: Any, t: Grown, *sizes: Any) -> Any:
    wanted, shape = flat(sizes), list(t.buffer.shape)
    at, length = one_length(wanted)
    others = math.prod(n for d, n in enumerate(shape) if d != t.along)
    if at is None and _are_plain(wanted) and wanted.count(-1) == 1 and math.prod(n for n in wanted if n != -1) == others:
        at, length = wanted.index(-1), t.length
    asked = [i for i, n in enumerate(wanted) if scalars.is_symbolic(n)]
    free = [i for i, n in enumerate(wanted) if i != at and type(n) is int and n == -1]
    if at is not None and len(free) == 1 and (rest := math.prod(n for i, n in enumerate(wanted) if i not in (at, *free))):
        left = t.length.bounds[1] * others // max(bounds_of(length)[1] * rest, 1)
        if is_same(combine("mul", t.length, others), combine("mul", length, rest * left)):
            if not t.length.bounds[0] * others:
                require(
                    number(t.length) * others != 0, RuntimeError("cannot reshape tensor of 0 elements into a shape with a size to be found")
                )
            wanted[free[0]] = left
    if len(asked) == 1 and -1 not in wanted and not is_same(length, t.length):
        if math.prod(n for i, n in enumerate(wanted) if i != asked[0]) != others:
            return _in_order(func, t, wanted)
        at, length = asked[0], t.length  # as many elements as there are
        require(number(t.length) == wanted[at], RuntimeError("the shape is invalid for the number of elements"))
    if at is None or not is_same(length, t.length):
        return _in_order(func, t, wanted)
    if -1 in (left := [n for i, n in enumerate(wanted) if i != at]):
        rest = math.prod(n for n in left if n != -1)
        if left.count(-1) > 1 or rest == 0 or others % rest:
            return _in_order(func, t, wanted)
        wanted = [others // rest if i != at and n == -1 else n for i, n in enumerate(wanted)]
    if math.prod(wanted[:at]) != math.prod(shape[: t.along]) or math.prod(wanted[at + 1 :]) != math.prod(shape[t.along + 1 :]):
        wanted[at] = -1
        return _in_order(func, t, wanted)
    wanted[at] = shape[t.along]
    splits = _splits(shape[: t.along], wanted[:at]) and _splits(shape[t.along + 1 :], wanted[at + 1 :])
    if not t.contiguous_ and not splits and (at, wanted) != (t.along, shape):  # it is a view, or a copy
        if func is _T.view:
            return refuse_call(func, t)
        t.storage_.growing = t.length.counter.loop
    return as_known(t.contiguous_, func(t.padded(), wanted), at, t.length)


def _in_order(func: Any, t: Grown, wanted: list[Any]) -> Any:
    """Give all elements, in their order, another shape, of which one size may follow from how many there are."""
    others = math.prod(n for d, n in enumerate(t.buffer.shape) if d != t.along)
    total, at = combine("mul", t.length, others), [d for d, n in enumerate(wanted) if type(n) is not int or n == -1]
    if not isinstance(total, Length) or len(at) > 1:
        return refuse_call(func, t)
    wrong, row = RuntimeError("the shape is invalid for the number of elements"), math.prod(n for d, n in enumerate(wanted) if d not in at)
    if not row or (func is _T.view and not t.contiguous_ and not _are_split(t, wanted, at)):
        return refuse_call(func, t)
    if not at or wanted[at[0]] != -1:
        require(number(total) == (row * wanted[at[0]] if at else row), wrong)
    if at and math.prod(wanted[: at[0]]) == math.prod(t.buffer.shape[: t.along]):
        return _in_rows(t, wanted, at[0], _divided(total, row, wrong))
    elements = at_front(t).reshape(-1)
    if not at:
        made = elements.narrow(0, 0, row).view(wanted) if row <= elements.shape[0] else refuse_call(func, t)
        stands_for_a_view(made, t)
        return made
    size = _divided(total, row, wrong)
    room, rows = bounds_of(size)[1], math.prod(wanted[: at[0]])
    if rows > 1:  # each row is as long as it is at run time
        most = room * (row // rows)
        places = torch.arange(rows)[:, None] * to_tensor(as_number(size) * (row // rows), torch.int64) + torch.arange(most)
        elements = elements.index_select(0, places.reshape(-1).clamp(max=max(int(elements.shape[0]) - 1, 0)))
    whole = elements.narrow(0, 0, room * row).view([room if d in at else n for d, n in enumerate(wanted)])
    made = grown_or_plain(whole, at[0], size, True)
    stands_for_a_view(made, t)
    return made


def _are_split(t: Grown, wanted: list[Any], at: list[int]) -> bool:
    """Whether dimensions are only split, also the one of unknown length."""
    shape, behind = t.buffer.shape, wanted[at[0] + 1 :] if at else []
    rest = math.prod(shape[t.along + 1 :])
    parts, left = divmod(math.prod(behind), rest) if rest else (0, 1)
    split = not left and parts > 0 and t.length.factor % parts == 0 and t.length.constant % parts == 0
    return bool(at) and split and _splits(shape[: t.along], wanted[: at[0]]) and _splits([parts, *shape[t.along + 1 :]], behind)


def _in_rows(t: Grown, wanted: list[Any], at: int, size: Extent) -> Any:
    """Give what lies in the dimension of unknown length, and behind it, another shape: it stays at the front of its row of the buffer."""
    rows, room, behind = math.prod(wanted[:at]), bounds_of(size)[1], math.prod(wanted[at + 1 :])
    each = math.prod(t.buffer.shape[t.along :])
    whole = t.padded().reshape(rows, each)
    whole = whole if room * behind == each else whole.narrow(1, 0, room * behind)
    made = grown_or_plain(whole.reshape([room if d == at else n for d, n in enumerate(wanted)]), at, size, t.contiguous_)
    stands_for_a_view(made, t)
    return made


def _divided(total: Length, by: int, wrong: Exception) -> Extent:
    """Return how often a number goes into a length; it is an error at run time if something is left."""
    if total.factor % by == 0 and total.constant % by == 0:
        return Length(total.counter, total.factor // by, total.constant // by)
    n = number(total)
    require(n % by == 0, wrong)
    return extent_of(n // by, total.bounds[0] // by, total.bounds[1] // by)


def repeat(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    """Repeat a tensor of fixed shape as often as a number of the run says, along one dimension."""
    wanted = flat(sizes)
    at, times = one_length(wanted)
    if at is None:
        return NotImplemented
    wanted[at] = 1
    once = func(x, wanted)
    size = int(once.shape[at])
    length = combine("mul", times, size)
    if not isinstance(length, Length):
        return once
    return new(once.index_select(at, torch.arange(size * most_of(times)) % size), at, length)


def _splits(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether dimensions are only split, or stay: that is a view, however a tensor lies in memory."""
    left = [n for n in wanted if n != 1]
    for size in sizes:
        while size > 1 and left and size % left[0] == 0:
            size //= left.pop(0)
        if size != 1:
            return False
    return not left


def flatten(func: Any, t: Grown, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % t.dim_(), end_dim % t.dim_()
    if first >= last:
        return t
    if math.prod(n for d, n in enumerate(t.buffer.shape) if first <= d <= last and d != t.along) == 1:
        return reshape(_T.reshape, t, [*t.sizes()[:first], -1, *t.sizes()[last + 1 :]])
    if first <= t.along <= last:
        return reshape(_T.reshape, t, [*t.sizes()[:first], -1, *t.sizes()[last + 1 :]])
    rows = math.prod(t.buffer.shape[first : last + 1])
    return reshape(_T.reshape, t, [*t.sizes()[:first], rows, *t.sizes()[last + 1 :]])


def squeeze(func: Any, t: Grown, dim: Any = None) -> Any:
    dims = [d % t.dim_() for d in flat((dim,))] if dim is not None else []
    if dim is None or t.along in dims:  # it depends on the length
        return refuse_call(func, t)
    gone = [d for d in dims if t.buffer.shape[d] == 1]
    whole: torch.Tensor = t.padded()
    for d in sorted(gone, reverse=True):
        whole = whole.squeeze(d)
    return as_known(t.contiguous_, whole, t.along - sum(d < t.along for d in gone), t.length)


def pad_with(func: Any, t: Grown, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Pad with a number, along the dimension whose length is known only at run time too, and by such lengths."""
    entries = list(pad)
    behind = 2 * (t.dim_() - 1 - t.along)
    left, right = entries[behind : behind + 2] or (0, 0)
    entries[behind : behind + 2] = [0, 0] if entries[behind:] else []
    if mode != "constant" or scalars.is_symbolic(value) or not _are_plain(entries) or len(pad) % 2:
        return refuse_call(func, t)
    whole = masked(t.padded(), t.along, t.length, value or 0)
    return _padded(func, func(whole, entries, mode, value) if any(entries) else whole, t.along, t.length, left, right, value or 0)


def pad_plain(func: Any, x: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Pad a tensor of fixed shape by numbers of the run along one dimension."""
    entries = list(pad)
    pairs = {k // 2 for k, n in enumerate(entries) if scalars.is_symbolic(n)}
    if mode != "constant" or scalars.is_symbolic(value) or len(pairs) != 1 or len(entries) % 2:
        return NotImplemented
    pair = pairs.pop()
    left, right = entries[2 * pair : 2 * pair + 2]
    entries[2 * pair : 2 * pair + 2] = [0, 0]
    along = x.dim() - 1 - pair
    whole = func(x, entries, mode, value) if any(entries) else x
    return _padded(func, whole, along, int(x.shape[along]), left, right, value or 0)


def _padded(func: Any, whole: torch.Tensor, along: int, length: Extent, left: Any, right: Any, value: Any) -> Any:
    """Pad a buffer, which holds the number behind its length already; what is negative takes something off."""
    (low_left, high_left), (low_right, high_right) = [bounded(n) if scalars.is_symbolic(n) else (n, n) for n in (left, right)]
    known = combine("add", length, known_right) if left == 0 and (known_right := scalars.length_of(right)) is not None else None
    least, most = bounds_of(length)
    if known is not None and combine("ge", known, 0) is True:
        total: Extent = known  # type: ignore[assignment]  # a sum is a length
    else:
        size = as_number(length) + left + right
        require(size >= 0, RuntimeError("padding would give a tensor a negative size"))
        total = extent_of(largest_of(size, 0), max(least + low_left + low_right, 0), max(most + high_left + high_right, 0))
    room = bounds_of(total)[1]
    if type(left) is int and left == 0:
        return grown_or_plain(fitted(whole, along, room, value), along, total, True)
    places = torch.arange(room) - to_tensor(left, torch.int64)
    shape = [room if d == along else 1 for d in range(whole.dim())]
    size = int(whole.shape[along])
    moved = fitted(whole, along, max(size, 1)).index_select(along, places.clamp(0, max(size - 1, 0)))
    inside = ((places >= 0) & (places < to_tensor(as_number(length), torch.int64))).reshape(shape)
    return grown_or_plain(torch.where(inside, moved, torch.full((), value, dtype=whole.dtype)), along, total, True)


# -- making tensors ------------------------------------------------------------------------------------------------------------
def arange(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Count up to, or between, numbers of the run."""
    if any(map(scalars.is_symbolic, kwargs.values())):
        return NotImplemented
    args = tuple(flat(args))
    if len(args) == 2 and type(args[0]) is int and args[0] == 0:
        args = args[1:]
    whole = kwargs.get("dtype") in (None, torch.int64, torch.int32)
    if len(args) == 2 and whole:
        start, end = map(scalars.length_of, args)
        count: Any = combine("sub", end, start) if start is not None and end is not None else None
        count = _steps(args[0], args[1]) if count is None else count
        if count is None or (isinstance(count, int) and count < 0):
            return NotImplemented
        made = torch.arange(count if isinstance(count, int) else most_of(count), **kwargs)
        made = made + (to_tensor(args[0], made.dtype) if scalars.is_symbolic(args[0]) else args[0])
        return made if isinstance(count, int) else new(made, 0, count)
    length = length_of_size(args[0]) if len(args) == 1 else None
    if not isinstance(length, Length):
        return NotImplemented
    made = new(func(most_of(length), **kwargs).clone(), 0, length)
    made.below = length if whole else None
    return made


def _steps(start: Any, end: Any) -> Extent | None:
    """Return how many numbers lie between two; None if they have no bounds. The second must not be smaller."""
    if not all(type(n) is int or (scalars.is_symbolic(n) and n.node.is_int()) for n in (start, end)):
        return None
    require(end >= start, RuntimeError("upper bound and lower bound inconsistent with step sign"))
    if (known := difference(end, start)) is not None:
        return known
    low, high = bounded(count := end - start)
    return extent_of(count, max(low, 0), high)


def most_of(length: Length) -> int:
    """Return the largest length, of a tensor that has to have one in all trips."""
    if length.bounds[0] < 0:
        current().decisions.fork(length.counter.loop, "a tensor is made whose length may be negative in some trips of a loop")
    return length.bounds[1]


def like(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    if "memory_format" in kwargs:
        return refuse_call(func, t)
    return as_known(t.contiguous_, func(t.padded(), *args, **kwargs).clone(), t.along, t.length)


def filled(func: Any, *args: Any, **kwargs: Any) -> Any:
    like, sizes = (args[:1], args[1:]) if func in _LIKE_ANOTHER else ((), args)
    buffers = tuple(map(buffer_of, like))
    sized, rest = (sizes[:1], sizes[1:]) if func in _WITH_NUMBER else (sizes, ())
    wanted = flat(sized) if sized else None
    if wanted is None or _are_plain(wanted):
        return func(*buffers, *sizes, **kwargs)
    at, length = one_length(wanted)
    if at is None:
        return NotImplemented
    wanted[at] = most_of(length)
    return new(func(*buffers, wanted, *rest, **kwargs).clone(), at, length)


_LIKE_ANOTHER = (_T.new_ones, _T.new_zeros, _T.new_full, _T.new_empty)
_WITH_NUMBER = (torch.full, _T.new_full)
