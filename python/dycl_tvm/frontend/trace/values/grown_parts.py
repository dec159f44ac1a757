# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Items and parts of tensors whose length is known only at run time, and what is assigned to them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extents import (
    Extent,
    as_size,
    check_narrow,
    decided_length,
    extent_of,
    is_number_of_run,
    is_size,
    narrow_at,
    narrowed_at,
    selected,
    sliced,
)
from dycl_tvm.frontend.trace.values.grown import Grown, cut, grown, number, placed, rank_of
from dycl_tvm.frontend.trace.values.grown_math import dtype_of, refuse_call
from dycl_tvm.frontend.trace.values.indexing import entries_of, getitem, setitem
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import meta_of
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.overlaps import check_overlap
from dycl_tvm.frontend.trace.values.picked import by_mask, is_mask, known_entry, picks_in, positions_of, put_by_mask, selects
from dycl_tvm.frontend.trace.values.put import put_all
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, home, peek, read, select_at, view_of

_T = torch.Tensor


def indexed(func: Any, x: torch.Tensor, index: Any) -> Any:
    return part_of(func, x, index) if isinstance(x, Grown) else getitem(x, index)


def assigned(func: Any, x: torch.Tensor, index: Any, value: Any) -> Any:
    if not isinstance(x, Grown):
        return setitem(x, index, value)
    dtype = dtype_of(x)
    if not isinstance(value, torch.Tensor):
        value = to_tensor(value, dtype) if scalars.is_symbolic(value) else torch.tensor(value, dtype=dtype)
    entries = _entries(x, index)
    if len(entries) == 1 and is_mask(entries[0], x):
        return put_by_mask(func, x, entries[0], value)
    if (found := picks_in(entries, x)) is not None:
        return positions_of(func, part_of(func, x, found[0]), found[1]).put(value)
    part = part_of(func, x, index)
    if not isinstance(part, StagedTensor) or part.storage_ is not x.storage_:
        return refuse_call(func, x)
    check_overlap(part, value)
    if isinstance(part, Grown):
        return put_all(func, part, value)
    # how it lies in memory is not known, and does not matter
    part = StagedTensor(meta_of(tuple(part.shape), None, part.dtype), part.storage_, part.chain, peek(part))
    return _T.__setitem__(part, Ellipsis, value)


def _entries(t: Grown, index: Any) -> list[Any]:
    entries = entries_of(t.dim_(), index)
    return [known_entry(e, len(entries) > 1) for e in entries]


def part_of(func: Any, t: Grown, index: Any) -> Any:
    entries = _entries(t, index)
    masks = [i for i, e in enumerate(entries) if is_mask(e, t)]
    if len(masks) == 1 and all(e is None or type(e) in (int, slice) or selects(e) for i, e in enumerate(entries) if i not in masks):
        before, mask, behind = entries[: masks[0]], entries[masks[0]], entries[masks[0] + 1 :]
        whole = t if len(entries) == 1 else part_of(func, t, (*before, *[slice(None)] * rank_of(mask), *behind))
        return by_mask(func, whole, sum(e is None or type(e) is slice for e in before), mask)
    if (found := picks_in(entries, t)) is not None:
        return positions_of(func, part_of(func, t, found[0]), found[1]).take()
    if any(not (e is None or type(e) in (int, slice) or selects(e)) for e in entries):
        return refuse_call(func, t)
    taken = sum(e is not None for e in entries)
    if taken > t.dim_():
        return refuse_call(func, t)
    entries += [slice(None)] * (t.dim_() - taken)
    places = [i for i, e in enumerate(entries) if e is not None]
    at = {places[d]: length for d, length in t.lengths.items()}
    whole = getitem(t.padded(), tuple([slice(None) if i in at else e for i, e in enumerate(entries)]))
    extents: dict[int, Extent] = dict(whole.lengths) if isinstance(whole, Grown) else {}
    made, dims, plain = whole.padded() if isinstance(whole, Grown) else whole, {}, not extents
    around = made
    for i in sorted(at, reverse=True):  # what is picked last leaves the dimensions before it where they are
        mine, along = entries[i], sum(e is None or type(e) is slice or k in at for k, e in enumerate(entries[:i]))
        part = _slice(t, made, along, mine, at[i]) if type(mine) is slice else _select(made, along, mine, at[i])
        dims[along] = type(mine) is slice
        if not dims[along]:
            extents = {d - (d > along): n for d, n in extents.items()}
        if isinstance(part, Grown):
            extents[along] = part.length
        made = part.padded() if isinstance(part, Grown) else part
    if extents:
        made = cut(made, extents)
    if isinstance(made, Grown):
        if all(entries[i] == slice(None) for i in at if type(entries[i]) is slice) and plain:
            made.below = t.below if all(type(entries[i]) is slice for i in at) else None
        made.order, made.gaps = _order_after(t, entries)
        made.exact = t.exact
    return _as_part(t, made, around, dims)


def _order_after(t: Grown, entries: list[Any]) -> tuple[tuple[int, ...] | None, frozenset[int]]:
    """Return in which order the dimensions of a part lie in memory, and where there are gaps."""
    if t.order is None:
        return None, frozenset()
    stays = [e is None or type(e) is slice for e in entries]
    own = [i for i, e in enumerate(entries) if e is not None]
    places: list[int | None] = []  # the dimensions that stay, and None where there is a gap
    for place, d in enumerate(t.order):
        e, at = entries[own[d]], sum(stays[: own[d]])
        # a number of the run is asked for its type first: what it is would be a question to the run
        whole = type(e) is slice and (e.start is None or (type(e.start) is int and e.start == 0)) and e.stop is None and e.step in (None, 1)
        places += [None] * (place in t.gaps or not whole)
        places += [at, *[None] * (e.step not in (None, 1))] if type(e) is slice else []
    places += [None] * (len(t.order) in t.gaps)
    for at in sorted((sum(stays[:i]) for i, e in enumerate(entries) if e is None), reverse=True):  # of one element: they lie anywhere
        places.insert(places.index(at + 1) if at + 1 in places else len(places), at)
    before = [sum(d is not None for d in places[:i]) for i in range(len(places))]
    return tuple([d for d in places if d is not None]), frozenset([n for n, d in zip(before, places) if d is None and n])


def _as_part(t: Grown, part: torch.Tensor, whole: torch.Tensor, dims: dict[int, bool]) -> torch.Tensor:
    """Return a part as a view; ``dims`` are where the lengths of the tensor are in ``whole``, and whether the part has these dimensions."""
    assert isinstance(part, StagedTensor)
    if part.storage_ is not t.storage_:  # a copy stands for a view
        part.storage_.growing = t.storage_.growing = t.decision
    if not isinstance(part, Grown):
        part = part if t.contiguous_ and list(t.lengths) == [0] else placed(t, part, whole, dims)
    return view_of(t, part)


def row_of(t: Grown, index: Any) -> torch.Tensor:
    """Return a row at an index of the run that is known to be one of the rows that there are."""
    whole = t.padded()
    part = select_at(whole, *home(whole), 0, read(to_tensor(index, torch.int64).reshape(1)))
    if not t.storage_.cut:  # a copy stands for a view
        t.storage_.growing = t.decision
    if len(t.lengths) > 1:
        return view_of(t, cut(part, {d - 1: n for d, n in t.lengths.items() if d}))  # type: ignore[arg-type]  # one of staging's
    return view_of(t, part if t.contiguous_ else placed(t, part, whole, {0: False}))


def _select(whole: torch.Tensor, along: int, index: Any, length: Length) -> torch.Tensor:
    at = scalars.length_of(index)
    if isinstance(at, int):
        if 0 <= at < length.bounds[0]:
            return whole.select(along, at)
        at = length.plus(at) if -length.bounds[0] <= at < 0 else None
    known = at is not None and combine("ge", at, 0) is True and combine("lt", at, length) is True
    place = number(at) if known else selected(whole, along, length, index)  # type: ignore[arg-type]  # it is known
    return select_at(whole, *home(whole), along, read(to_tensor(place, torch.int64).reshape(1)))


def _slice(t: Grown, whole: torch.Tensor, along: int, part: slice, length: Length) -> torch.Tensor:
    if type(part.step) is int and part.step > 1:
        return _every(_slice(t, whole, along, slice(part.start, part.stop), length), along, part.step)
    made = _slice_by_lengths(whole, along, part, length)
    if made is not None:
        return made
    if part.step not in (None, 1) or not all(b is None or type(b) is int or is_number_of_run(b) for b in (part.start, part.stop)):
        return refuse_call(torch.narrow, t)  # type: ignore[no-any-return]
    return sliced(whole, along, length, part)


def _every(t: torch.Tensor, along: int, step: int) -> torch.Tensor:
    """Return every so many-th element along a dimension."""
    index = (*[slice(None)] * along, slice(None, None, step))
    if not isinstance(t, Grown):
        return getitem(t, index)  # type: ignore[no-any-return]
    least, most = [(n + step - 1) // step for n in t.length.bounds]
    return grown(getitem(t.padded(), index), along, extent_of((number(t.length) + step - 1) // step, least, most))


def _slice_by_lengths(whole: torch.Tensor, along: int, part: slice, length: Length) -> torch.Tensor | None:
    """Return a slice whose bounds are known to lie in a dimension of a length in all trips; None if they are not."""
    least = length.bounds[0]
    start = 0 if part.start is None else scalars.length_of(part.start)
    stop = length if part.stop is None else scalars.length_of(part.stop)
    if isinstance(start, Length) and stop == length and combine("ge", start, 0) is True:
        behind = combine("sub", length, start)
        start = -behind if isinstance(behind, int) and behind > 0 else start
    if part.step not in (None, 1) or not isinstance(start, int) or stop is None or abs(start) > least:
        return None
    if isinstance(stop, int):
        if stop >= 2**62 or stop >= length.bounds[1]:
            stop = length
        elif 0 <= stop <= least and 0 <= start <= stop:
            return whole.narrow(along, start, stop - start)
        elif -least <= stop < 0:
            stop = length.plus(stop)
    if isinstance(stop, int) or (stop != length and combine("le", stop, length) is not True):
        return None
    if start < 0 and stop == length:
        return narrow_at(whole, along, number(length.plus(start)), -start)
    if start < 0 or combine("ge", stop, start) is not True:
        return None
    rest = whole.narrow(along, start, whole.shape[along] - start)
    return grown(rest, along, combine("sub", stop, start))  # type: ignore[arg-type]  # a length


def selected_by(func: Any, t: Grown, dim: int, index: Any) -> Any:
    return part_of(func, t, (*[slice(None)] * (dim % t.dim_()), index))


def narrowed(func: Any, t: Grown, dim: int, start: Any, length: Any) -> Any:
    start, length = [as_size(x) if is_size(x) else item(x) if isinstance(x, torch.Tensor) else x for x in (start, length)]
    if not all(type(x) is int or is_number_of_run(x) for x in (start, length)):
        return refuse_call(func, t)
    dim = dim % t.dim_()
    there = t.lengths.get(dim, t.buffer.shape[dim])
    start = check_narrow(start, length, there)
    part = slice(start, start + length)
    if isinstance(there, int):
        return part_of(func, t, (*[slice(None)] * dim, part))
    whole = t.padded()
    made = _slice_by_lengths(whole, dim, part, there)
    made = narrowed_at(whole, dim, there, start, length) if made is None else made
    extents: dict[int, Extent] = {d: n for d, n in t.lengths.items() if d != dim}
    if extents:
        made = cut(made.padded(), {**extents, dim: made.length}) if isinstance(made, Grown) else cut(made, extents)
    return _as_part(t, made, whole, dict.fromkeys(t.lengths, True))


def one_item(func: Any, t: Grown) -> Any:
    others = math.prod(n for d, n in enumerate(t.buffer.shape) if d not in t.lengths)
    one = functools.reduce(operator.and_, [number(n) == 1 for n in t.lengths.values()])
    require(one & (others == 1), RuntimeError("only a tensor of one element can be converted to a number"))
    return item(cut(t.padded(), dict.fromkeys(t.lengths, 1)).reshape(()))


# -- items, one by one: how many there are is decided, so each number of them is a path of its own ---------------------------------
def _settled(t: Grown, dim: int) -> torch.Tensor:
    """Return the tensor with a plain size in the place of the length of a dimension."""
    part = t.padded().narrow(dim, 0, decided_length(t, dim))
    return cut(part, {d: n for d, n in t.lengths.items() if d != dim})


def split_up(t: Grown, dim: int, parts: Callable[[torch.Tensor], Any]) -> Any:
    """Return as many parts as follow from the length of a dimension."""
    return parts(_settled(t, dim))


def unbind(func: Any, t: Grown, dim: int = 0) -> Any:
    dim = dim % t.dim_()
    if dim in t.lengths:
        part = _settled(t, dim)
        return unbind(func, part, dim) if isinstance(part, Grown) else part.unbind(dim)
    return tuple([part_of(func, t, (*[slice(None)] * dim, i)) for i in range(t.buffer.shape[dim])])


def iterated(func: Any, t: Grown) -> Any:
    return iter(unbind(func, t))


def to_list(func: Any, t: Grown) -> Any:
    return _listed(_settled(t, t.along))


def _listed(t: torch.Tensor) -> Any:
    if t.numel() > _MOST_ITEMS:
        raise UnsupportedError(f"tolist() of up to {t.numel()} elements known only at run time", current().origin(), "work on the tensor")
    return item(t) if t.dim() == 0 else [_listed(row) for row in t.unbind(0)]


_MOST_ITEMS = 4096
