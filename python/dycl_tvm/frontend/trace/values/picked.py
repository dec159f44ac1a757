# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What masks and positions pick of tensors: as many elements as a mask has true ones, or as there are positions.

The positions of a mask's true elements are a buffer as long as the mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import broadcast, equalized, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.counts import count
from dycl_tvm.frontend.trace.values.extents import INTEGERS, Extent, as_number, extent_of, is_number_of_run
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    at_front,
    buffer_of,
    count_in,
    dtype_of,
    filled,
    new,
    new_in,
    refuse_call,
    valid,
)
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.overlaps import check_apart
from dycl_tvm.frontend.trace.values.positions import Positions, check_dtype, is_positions
from dycl_tvm.frontend.trace.values.recorder import known_bounds
from dycl_tvm.frontend.trace.values.tensors import as_constant, read


def is_mask(x: Any, of: Any = None) -> bool:
    """Whether an entry of an index is a mask whose elements are known only at run time, or any mask of a tensor that has such lengths."""
    return _is_any_mask(x) and (isinstance(x, Grown) or isinstance(of, Grown) or as_constant(x) is None)


def _is_any_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and dtype_of(x) == torch.bool and rank_of(x) > 0


def selects(entry: Any) -> bool:
    """Whether an entry of an index is a run-time number: a host scalar, or an integer tensor of rank 0, which PyTorch reads like one."""
    if isinstance(entry, torch.Tensor):
        return not isinstance(entry, Grown) and is_number_of_run(entry) and as_constant(entry) is None
    return scalars.is_symbolic(entry)


def known_entry(entry: Any, beside: bool = True) -> Any:
    """Return an entry of an index, what is known of it as Python or PyTorch has it: a tensor of one number as that, a list as a tensor.

    ``beside`` is whether there are other entries: alone, a list of lists is a tuple for PyTorch.
    """
    if isinstance(entry, torch.Tensor) and not isinstance(entry, Grown) and entry.dim() == 0 and entry.dtype in INTEGERS:
        known = as_constant(entry)
        return entry if known is None else int(known.data)
    if type(entry) is list and entry and (beside or type(entry[0]) is not list):
        kinds = {type(n) for n in tree_leaves(entry)}
        return torch.tensor(entry) if kinds in ({int}, {bool}) else entry
    return entry


def picks_in(entries: list[Any], of: Any = None) -> tuple[tuple[Any, ...], dict[int, torch.Tensor]] | None:
    """Split an index that picks by positions and masks, of which the run decides how many elements they pick; see :func:`picks_of`.

    None if there are none of which it decides that, or something that is not known here.
    """
    found = picks_of(entries)
    return found if found is not None and any(isinstance(x, Grown) or is_mask(x) for x in (of, *found[1].values())) else None


def picks_of(entries: list[Any]) -> tuple[tuple[Any, ...], dict[int, torch.Tensor]] | None:
    """Split an index that picks by positions and masks: return it with all of the dimensions in their place, and what picks of these.

    PyTorch takes an index by these two steps too. None if nothing picks, or there is something that is not known here.
    """
    static: list[Any] = []
    picks: dict[int, torch.Tensor] = {}
    dim = 0
    for e in entries:
        e = known_entry(e, len(entries) > 1)
        if _is_any_mask(e) or is_positions(e):
            picks[dim] = e
            rank = rank_of(e) if _is_any_mask(e) else 1
            static += [slice(None)] * rank
            dim += rank
        elif e is None or type(e) in (int, slice) or selects(e):
            static.append(e)
            dim += e is None or type(e) is slice
        else:
            return None
    return (tuple(static), picks) if picks else None


def positions_of(func: Any, t: torch.Tensor, picks: dict[int, torch.Tensor]) -> Positions:
    """Return the positions in a tensor of what picks of its dimensions: those of the true elements of a mask."""
    rows: dict[int, torch.Tensor] = {}
    for dim, x in picks.items():
        if _is_any_mask(x):
            _check_mask(t, dim, x)
            rows |= {dim + d: row for d, row in enumerate(nonzero(func, x, as_tuple=True))}
        else:
            rows[dim] = x
    masks = [_is_any_mask(x) for x in picks.values()]
    return Positions(func, t, rows, masks == [True])


def found(mask: torch.Tensor, of: torch.Tensor) -> tuple[torch.Tensor, Extent]:
    """Return the positions of the true elements of a mask in one row, and how many there are; ``of`` is the mask as the program has it."""
    flat = mask.reshape(-1)
    size = int(flat.shape[0])
    if not size:
        return torch.zeros(0, dtype=torch.int64), 0
    there = extent_of(count(mask, of), 0, size)
    places = torch.nonzero_static(flat, size=size, fill_value=0)
    known_bounds()[read(places)] = (0, size - 1)
    return places[:, 0], there


def there_of(mask: Grown) -> torch.Tensor:
    """Return the buffer of a mask, false where there is nothing."""
    made: torch.Tensor = mask.padded()
    for d, length in mask.lengths.items():
        made = made & valid(length, mask.buffer.shape[d], mask.dim_(), d)
    return made


def by_mask(func: Any, t: torch.Tensor, dim: int, mask: torch.Tensor) -> torch.Tensor:
    """Return what a mask picks of the dimensions from ``dim`` on."""
    rank = rank_of(mask)
    if isinstance(t, Grown) and (rank > 1 or list(t.lengths) != [dim]):
        return positions_of(func, t, {dim: mask}).take()
    whole, extent = _under(func, t, dim, mask)
    given = mask
    mask = there_of(mask) if isinstance(mask, Grown) else mask
    if isinstance(extent, Length):
        mask = fitted(mask, 0, whole.shape[dim]) & valid(extent, whole.shape[dim], 1, 0)
    places, count = found(mask, given)
    shape = list(whole.shape)
    flat = whole if rank == 1 else whole.reshape([*shape[:dim], math.prod(shape[dim : dim + rank]), *shape[dim + rank :]])
    if isinstance(count, int) and not count:
        return flat.narrow(dim, 0, 0).clone()
    return picked(flat.index_select(dim, places), dim, count)


def _check_mask(t: torch.Tensor, dim: int, mask: torch.Tensor) -> None:
    """Raise at run time what PyTorch raises of a mask that is not as long as the dimensions of which it picks."""
    for d in range(rank_of(mask)):
        sizes = [extent_at(t, rank_of(t) - dim - d), extent_at(mask, rank_of(mask) - d)]
        if not is_same(*sizes):
            a, b = [as_number(n) for n in sizes if n is not None]
            require(a == b, IndexError("the shape of the mask does not match the shape of the indexed tensor"))


def _under(func: Any, t: torch.Tensor, dim: int, mask: torch.Tensor) -> tuple[torch.Tensor, Extent | None]:
    """Return a tensor of fixed shape of which a mask picks, and the length of the two where both, or one of them, has one of the run."""
    if not isinstance(t, Grown) and not isinstance(mask, Grown):
        if tuple(mask.shape) != tuple(t.shape[dim : dim + mask.dim()]):
            raise IndexError(f"the shape of the mask {list(mask.shape)} does not match the shape of the indexed tensor {list(t.shape)}")
        return t, None
    if rank_of(mask) != 1 or (isinstance(t, Grown) and list(t.lengths) != [dim]):
        return refuse_call(func, t, mask)  # type: ignore[no-any-return]
    (whole, _), extent = equalized([t, mask], [dim, 0], IndexError)
    return whole, extent


def picked(t: torch.Tensor, along: int, count: Extent) -> torch.Tensor:
    """Return as many elements of a new tensor as there are."""
    if isinstance(count, int):
        return t.narrow(along, 0, count)
    made = new(t, along, count)
    made.contiguous_ = along == 0
    return made


def nonzero(func: Any, x: torch.Tensor, as_tuple: bool = False) -> Any:
    """Return where the elements are that are not zero: a row of positions each, or a row for each dimension."""
    mask = x != 0 if not isinstance(x, Grown) else filled(cut(x.padded() != 0, x.lengths), False)  # type: ignore[arg-type]  # it has lengths
    columns, count = columns_of(mask, x)
    if as_tuple:
        rows = [picked(c, 0, count) for c in columns]
        for d, row in enumerate(rows):
            if isinstance(row, Grown):
                row.below = extent_at(x, rank_of(x) - d)
        return tuple(rows)
    made = picked(torch.stack(columns, 1), 0, count)
    if isinstance(made, Grown):  # PyTorch writes it a dimension after the other
        made.order = (1, 0)
    return made


def columns_of(mask: torch.Tensor, of: torch.Tensor) -> tuple[list[torch.Tensor], Extent]:
    """Return the positions of the true elements of a mask, a row for each dimension, and how many there are."""
    places, count = found(mask, of)
    shape = list(mask.shape)
    rows = [places // math.prod(shape[d + 1 :]) if places.shape[0] and d < len(shape) - 1 else places for d in range(len(shape))]
    columns = [row - rows[d - 1] * shape[d] if d and places.shape[0] else row for d, row in enumerate(rows)]
    for column in columns:
        known_bounds()[read(column)] = (0, max(*shape, 1) - 1)
    return columns, count


def masked_select(func: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Return the elements at which a mask is true."""
    if isinstance(x, Grown) or isinstance(mask, Grown):
        rank = rank_of(x)
        alike = rank == rank_of(mask) and all(is_same(extent_at(x, d), extent_at(mask, d)) for d in range(1, rank + 1))
        return by_mask(func, x, 0, mask) if alike or rank == rank_of(mask) == 1 else refuse_call(func, x, mask)
    x, mask = torch.broadcast_tensors(x, mask)
    return by_mask(func, x, 0, mask)


def masked_scatter(func: Any, target: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Put the elements of a tensor, in their order, where a mask is true, with which the target broadcasts."""
    agreed = broadcast([target, mask])
    if agreed is None or dtype_of(mask) != torch.bool:
        return refuse_call(func, target, mask, source)
    if dtype_of(source) != dtype_of(target):
        raise of_program(RuntimeError("masked_scatter: expected self and source to have same dtypes"))
    wholes, extents = agreed
    target, mask = torch.broadcast_tensors(*[wholes.get(id(t), t) for t in (target, mask)])
    lengths = {mask.dim() - from_end: n for from_end, n in extents.items() if isinstance(n, Length)}
    for d, length in lengths.items():
        mask = mask & valid(length, int(mask.shape[d]), mask.dim(), d)
    if isinstance(source, Grown):
        flat, there = at_front(source).reshape(-1), count_in(source, range(source.dim_()))
    else:
        flat, there = source.reshape(-1), source.numel()
    few = RuntimeError("masked_scatter: expected the source to have at least as many elements as the mask has true ones")
    require(as_number(found(mask, mask)[1]) <= there, few)
    return new_in(_scattered(target, mask, flat) if flat.shape[0] else target.clone(), lengths)


def put_by_mask(func: Any, t: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> None:
    """Assign to what a mask picks of the first dimensions of a tensor, of which one has a length of the run, or the mask, or the value."""
    rank, whole, given = rank_of(mask), buffer_of(t), mask
    check_apart(t, value)
    if isinstance(t, Grown) and any(d >= rank for d in t.lengths):
        return positions_of(func, t, {0: mask}).put(value)
    extents = dict(t.lengths) if isinstance(t, Grown) else {}
    extents |= mask.lengths if isinstance(mask, Grown) else {}
    check_dtype(func, whole, value, True)
    if extents:
        _check_mask(t, 0, mask)
        mask = buffer_of(mask)
        for d, length in extents.items():
            mask = fitted(mask, d, int(whole.shape[d])) & valid(length, int(whole.shape[d]), rank, d)
    tail = rank_of(t) - rank
    one_for_all = not isinstance(value, Grown) and (value.dim() <= tail or (value.dim() == tail + 1 and value.shape[0] == 1))
    if not one_for_all:
        places, count = found(mask, given)
        marked = picked(places.reshape([-1] + [1] * tail), 0, count)
        agreed = broadcast([marked, value]) if isinstance(count, Length) else None
        if agreed is None or list(agreed[1]) != [tail + 1] or rank_of(value) != tail + 1:
            return refuse_call(func, value, t, mask)  # type: ignore[no-any-return]
        if not is_same(agreed[1][tail + 1], count):
            fine = as_number(agreed[1][tail + 1]) == as_number(count)
            require(fine, RuntimeError("as many rows must be assigned as the mask has true elements"))
        rows = agreed[0].get(id(value), value)
        return torch.Tensor.__setitem__(whole, Ellipsis, _scattered(whole, mask, rows)) if rows.shape[0] else None
    value = value.reshape(value.shape[1:]) if value.dim() > tail else value
    there = mask.reshape([*mask.shape, *[1] * (rank_of(t) - rank)])
    return torch.Tensor.__setitem__(whole, Ellipsis, torch.where(there, value.to(whole.dtype), whole))


def fill_by_mask(t: torch.Tensor, dim: int, mask: torch.Tensor, value: torch.Tensor) -> None:
    """Assign one number to what a mask picks of the dimensions from ``dim`` on."""
    _under(torch.Tensor.__setitem__, t, dim, mask)
    there = mask.reshape([*mask.shape, *[1] * (t.dim() - dim - mask.dim())])
    torch.Tensor.__setitem__(t, Ellipsis, torch.where(there, value.to(t.dtype).reshape([]), t))


def _scattered(t: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a tensor with rows, in their order, in the place of what a mask picks of the first dimensions."""
    source = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(0, max(int(rows.shape[0]) - 1, 0))
    moved = rows.index_select(0, source).reshape([*mask.shape, *rows.shape[1:]]).to(t.dtype)
    return torch.where(mask.reshape([*mask.shape, *[1] * (t.dim() - mask.dim())]), moved, t)
