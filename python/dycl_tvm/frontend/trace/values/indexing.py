# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Indices of tensors of fixed shape that hold numbers known only at run time: single items, and parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import extent_at
from dycl_tvm.frontend.trace.values.arrays import number_of
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.data_errors import refuse_if_caught
from dycl_tvm.frontend.trace.values.extents import (
    as_number,
    as_size,
    bounds_of,
    check_narrow,
    is_number_of_run,
    is_size,
    narrowed_at,
    sliced,
    span,
)
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of, refuse_here
from dycl_tvm.frontend.trace.values.indices import check_index, require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.overlaps import check_overlap
from dycl_tvm.frontend.trace.values.picked import by_mask, fill_by_mask, is_mask, picks_in, picks_of, positions_of, put_by_mask, selects
from dycl_tvm.frontend.trace.values.put import put_all
from dycl_tvm.frontend.trace.values.recorder import item, known_bounds, to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, home, read, select_at, storage_of, view_of


def _numbers_in(index: Any) -> Any:
    """Return an index with Python's numbers in place of NumPy's."""
    return tuple(map(number_of, index)) if type(index) is tuple else number_of(index)


def entries_of(rank: int, index: Any) -> list[Any]:
    """Return the parts of an index, an ellipsis as the slices that it stands for."""
    entries = list(index) if isinstance(index, tuple) else [index]
    position = next((i for i, e in enumerate(entries) if e is Ellipsis), None)
    if position is not None:
        missing = rank - sum(1 for e in entries if e is not None and e is not Ellipsis)
        entries[position : position + 1] = [slice(None)] * missing
    return entries


def _lower_index(t: torch.Tensor, index: Any) -> tuple[Any, list[tuple[int, Any]]]:
    """Split an index into a static part and the dimensions that a single number selects, counted after the static part."""
    entries = entries_of(t.dim(), index)
    if not any(map(selects, entries)):
        if any(_is_cut(e) for e in entries):
            _refuse_slice()
        return index, []
    if any(isinstance(e, (list, tuple, np.ndarray, bool)) for e in entries):
        raise UnsupportedError(
            "an index that mixes sequences with numbers known only at run time", current().origin(), "turn both into tensors"
        )
    static, selected, dim = [], [], 0
    for e in entries:
        if selects(e):
            static.append(slice(None))
            selected.append((dim, e))
            dim += 1
        else:
            static.append(e)
            dim += 0 if isinstance(e, int) and not isinstance(e, bool) else 1
    return tuple(static), selected


def _refuse_slice() -> None:
    rolling = current().decisions.rolling
    refuse_here(rolling[-1].loop if rolling else None, "a slice whose bounds are known only at run time has no fixed shape")


def _is_cut(entry: Any) -> bool:
    """Whether an entry of an index is a slice up to, or from, a number of the run."""
    return type(entry) is slice and any(map(selects, (entry.start, entry.stop, entry.step)))


def _position(t: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """Return a run-time number as an index tensor of one element, with Python's meaning of negative indices."""
    if isinstance(index, torch.Tensor):
        bounds = known_bounds().get(read(index))
        if bounds is not None and bounds[0] >= 0 and bounds[1] < int(t.shape[dim]):
            return index.to(torch.int64).reshape(1)  # needs no check, so it need not come to the host
        index = item(index)
    kind = scalars._kind(scalars.operand_of(index))
    if kind != "int":
        raise of_program(IndexError(f"only integers can index a tensor, not a {kind}"))
    size = int(t.shape[dim])
    checked = check_index(index, size)
    return to_tensor(checked, torch.int64).reshape(1)


def getitem(t: torch.Tensor, index: Any) -> Any:
    """``t[index]`` of a tensor of fixed shape."""
    index = _numbers_in(index)
    entries = entries_of(t.dim(), index)
    made = _picked(t, entries)
    made = _cut(t, entries) if made is NotImplemented else made
    if made is not NotImplemented:
        return made
    _refuse_grown(entries, "an index of a tensor holds")
    if (steps := _two_steps(entries)) is not None:
        return getitem(getitem(t, steps[0]), steps[1])
    static, selected = _lower_index(t, index)
    if not selected:
        if current().handlers:
            refuse_if_caught(torch.Tensor.__getitem__, (t, index), {})
        return torch.Tensor.__getitem__(t, index)
    return _select(torch.Tensor.__getitem__(t, static), selected)


def _refuse_grown(values: list[Any], what: str) -> None:
    for x in values:
        if isinstance(x, Grown):
            x.refuse(what)


def _cut(t: torch.Tensor, entries: list[Any]) -> Any:
    """Return what an index gives that has one slice with bounds of the run; NotImplemented if it has none, or is of another kind."""
    cuts = [i for i, e in enumerate(entries) if _is_cut(e)]
    if not cuts or not all(e is None or type(e) in (int, slice) or selects(e) for e in entries):
        return NotImplemented
    if any(type(e) is slice and not _is_known(e, i in cuts) for i, e in enumerate(entries)):
        return NotImplemented
    whole = getitem(t, tuple([slice(None) if i in cuts else e for i, e in enumerate(entries)]))
    extents: dict[int, Length] = {}
    for at in cuts:
        dim = sum(e is None or type(e) is slice for e in entries[:at])
        storage_of(whole).cut = True
        whole = sliced(whole, dim, int(whole.shape[dim]), entries[at])
        if isinstance(whole, Grown):
            extents[dim] = whole.length
            whole = whole if len(cuts) == 1 else whole.padded()
    return view_of(t, whole if len(cuts) == 1 else cut(whole, extents))  # type: ignore[arg-type]  # one of staging's


def _picked(t: torch.Tensor, entries: list[Any]) -> Any:
    """Return what an index gives that has masks, or positions; NotImplemented if it has none, or is of another kind."""
    masks = [i for i, e in enumerate(entries) if is_mask(e)]
    if len(masks) == 1 and all(e is None or type(e) in (int, slice) or selects(e) for i, e in enumerate(entries) if i not in masks):
        at = masks[0]
        dim, rank = sum(e is None or type(e) is slice for e in entries[:at]), rank_of(entries[at])
        if len(entries) == 1:
            return by_mask(torch.Tensor.__getitem__, t, 0, entries[at])
        whole = getitem(t, (*entries[:at], *[slice(None)] * rank, *entries[at + 1 :]))
        return by_mask(torch.Tensor.__getitem__, whole, dim, entries[at])
    if (found := picks_in(entries)) is None:
        return NotImplemented
    static, picks = found
    return positions_of(torch.Tensor.__getitem__, getitem(t, static), picks).take()


def _two_steps(entries: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return an index that picks beside numbers of the run as the two that PyTorch makes of it; None of any other.

    The first has the numbers and slices; the second what picks, and takes all of the other dimensions.
    """
    if not any(map(selects, entries)) or (found := picks_of(entries)) is None:
        return None
    static, picks = found
    picking: list[Any] = []
    dim = 0
    for at, x in picks.items():
        picking += [slice(None)] * (at - dim) + [x]
        dim = at + (rank_of(x) if x.dtype == torch.bool else 1)
    return static, tuple(picking)


def _is_known(part: slice, cut: bool) -> bool:
    """Whether a slice is one of PyTorch's; ``cut`` is whether its bounds may be numbers of the run."""
    if cut:
        return part.step in (None, 1) and all(b is None or type(b) is int or is_number_of_run(b) for b in (part.start, part.stop))
    return all(b is None or type(b) is int for b in (part.start, part.stop, part.step))


def _select(t: torch.Tensor, selected: list[tuple[int, Any]]) -> torch.Tensor:
    """Select at run-time indices, one dimension each; the result is a view, as it is in eager."""
    for dim, i in reversed(selected):
        position = read(_position(t, dim, i))
        t = select_at(t, *home(t), dim, position)
    return t


def select(t: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """``t.select(dim, index)``."""
    return _select(t, [(dim % t.dim(), index)]) if selects(index) else torch.select(t, dim, index)


def narrow(t: torch.Tensor, dim: int, start: Any, length: Any) -> torch.Tensor:
    """``t.narrow(dim, start, length)``."""
    start, length = [as_size(x) if is_size(x) else item(x) if isinstance(x, torch.Tensor) else x for x in (start, length)]
    if not selects(start) and not selects(length):
        return torch.narrow(t, dim, start, length)
    if not all(type(x) is int or is_number_of_run(x) for x in (start, length)):
        raise UnsupportedError("narrow() by a number that is no integer", current().origin(), "convert it before: int(n)")
    dim = dim % t.dim()
    size = int(t.shape[dim])
    start = check_narrow(start, length, size)
    storage_of(t).cut = True
    return view_of(t, narrowed_at(t, dim, size, start, length))  # type: ignore[arg-type]  # one of staging's


def setitem(t: torch.Tensor, index: Any, value: Any) -> Any:
    """``t[index] = value`` of a tensor of fixed shape."""
    index = _numbers_in(index)
    if scalars.is_symbolic(value):
        value = to_tensor(value, t.dtype)
    entries = entries_of(t.dim(), index)
    if len(entries) == 1 and is_mask(entries[0]) and (isinstance(entries[0], Grown) or _has_rows(value, t, entries[0])):
        return put_by_mask(torch.Tensor.__setitem__, t, entries[0], _as_value(value, t.dtype))
    if (found := picks_in(entries)) is not None and (len(entries) > 1 or _of_the_run(value) or isinstance(entries[0], Grown)):
        static, picks = found
        part, value = getitem(t, static), _as_value(value, t.dtype)
        ((dim, mask), *others) = picks.items()
        if not others and is_mask(mask) and not _of_the_run(value) and not isinstance(mask, Grown) and not isinstance(part, Grown):
            return fill_by_mask(part, dim, mask, value)
        return positions_of(torch.Tensor.__setitem__, part, picks).put(value)
    cuts = sum(map(_is_cut, entries))
    if cuts > 1 and isinstance(part := getitem(t, index), Grown):
        value = _as_value(value, t.dtype)
        check_overlap(part, value)
        put_all(torch.Tensor.__setitem__, part, value)
        return None
    if cuts:
        return _set_part(t, entries, value)
    _refuse_grown([*entries, value], "an assignment to items takes")
    if (steps := _two_steps(entries)) is not None:
        return setitem(getitem(t, steps[0]), steps[1], value)
    static, selected = _lower_index(t, index)
    if not selected:
        if current().handlers:
            refuse_if_caught(torch.Tensor.__setitem__, (t, index, value), {})
        return torch.Tensor.__setitem__(t, index, value)
    part = _select(torch.Tensor.__getitem__(t, static), selected)
    return torch.Tensor.__setitem__(part, Ellipsis, value)


def _has_rows(value: Any, t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether what is assigned to where a mask is true has a row for each place."""
    if isinstance(value, Grown):
        return True
    return isinstance(value, torch.Tensor) and value.dim() > t.dim() - mask.dim() and value.shape[0] != 1


def _of_the_run(value: Any) -> bool:
    """Whether what is assigned may have a row for each true element of a mask."""
    return isinstance(value, Grown) or (isinstance(value, torch.Tensor) and value.numel() != 1)


def _as_value(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)


def _set_part(t: torch.Tensor, entries: list[Any], value: Any) -> None:
    """Assign to a slice with bounds of the run: a new tensor takes what is in the slice from the value, and is stored in place of all."""
    cuts = [i for i, e in enumerate(entries) if _is_cut(e)]
    known = all(e is None or (type(e) is slice and _is_known(e, i in cuts)) or type(e) is int or selects(e) for i, e in enumerate(entries))
    if len(cuts) != 1 or not known:
        return _refuse_slice()
    if isinstance(value, StagedTensor) and value.storage_ is storage_of(t):
        check_overlap(getitem(t, tuple(entries)), value)
    whole = getitem(t, tuple([slice(None) if i in cuts else e for i, e in enumerate(entries)]))
    dim = sum(e is None or type(e) is slice for e in entries[: cuts[0]])
    size, rank = int(whole.shape[dim]), whole.dim()
    start, count = span(size, entries[cuts[0]])
    value = value if isinstance(value, torch.Tensor) else to_tensor(value, whole.dtype)
    places = torch.arange(size) - to_tensor(start, torch.int64)
    extent = extent_at(value, rank - dim)
    if extent is not None and extent != 1:
        fine = as_number(extent) == as_number(count)
        fine = fine | (as_number(extent) == 1) if bounds_of(extent)[0] <= 1 else fine
        require(fine, RuntimeError("an assignment to a slice whose length is known only at run time is of another length"))
        at, room = rank_of(value) - (rank - dim), bounds_of(extent)[1]
        source = places * (to_tensor(as_number(extent), torch.int64) != 1) if bounds_of(extent)[0] <= 1 else places
        if not room:
            return None
        whole_value = value.padded() if isinstance(value, Grown) else value
        value = whole_value.index_select(at, source.clamp(0, min(room, int(whole_value.shape[at])) - 1))
    elif isinstance(value, Grown):
        return value.refuse("an assignment along another dimension than its own of")  # type: ignore[no-any-return]
    inside = ((places >= 0) & (places < to_tensor(as_number(count), torch.int64))).reshape([size if d == dim else 1 for d in range(rank)])
    return torch.Tensor.__setitem__(whole, Ellipsis, torch.where(inside, value.to(whole.dtype), whole))
