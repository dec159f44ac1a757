# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What masks and positions pick of tensors: as many elements as a mask has true ones, or as there are positions.

The positions of a mask's true elements are a buffer as long as the mask. What lies behind the positions that there are is never used as an
index: reading there gives the first element, and writing goes to a row that is taken off again.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import broadcast, equalized, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.data_errors import refuse_if_caught
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    at_front,
    buffer_of,
    dtype_of,
    filled,
    masked,
    multiplied,
    new,
    new_in,
    refuse_call,
    valid,
)
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.overlaps import check_apart
from dycl_tvm.frontend.trace.values.recorder import item, known_bounds, to_tensor
from dycl_tvm.frontend.trace.values.tensors import as_constant, read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import INT

_INDICES = (torch.int64, torch.int32)


def is_mask(x: Any) -> bool:
    """Whether an entry of an index is a mask whose elements are known only at run time."""
    return isinstance(x, torch.Tensor) and dtype_of(x) == torch.bool and rank_of(x) > 0 and (isinstance(x, Grown) or as_constant(x) is None)


def is_positions(x: Any) -> bool:
    """Whether an entry of an index is a row of positions of which there is a number of the run."""
    return isinstance(x, Grown) and x.dim_() == 1 and dtype_of(x) in _INDICES


def _places_in(entries: list[Any], of: Any) -> list[int]:
    """Return which entries of an index are rows of positions: of a tensor whose length is known only at run time, one of any row."""
    at = [i for i, e in enumerate(entries) if isinstance(e, torch.Tensor)]
    if isinstance(of, Grown) and len(at) == 1 and rank_of(entries[at[0]]) == 1 and dtype_of(entries[at[0]]) in _INDICES:
        return at
    return [i for i in at if is_positions(entries[i])]


class _Counted(OfOneRun):
    """The first count of the true elements of each mask: others of the same mask are as large."""

    def __init__(self) -> None:
        self.first: dict[tuple[Any, ...], Value] = {}


def found(mask: torch.Tensor, of: torch.Tensor) -> tuple[torch.Tensor, Extent]:
    """Return the positions of the true elements of a mask in one row, and how many there are; ``of`` is the mask as the program has it."""
    flat = mask.reshape(-1)
    size = int(flat.shape[0])
    if not size:
        return torch.zeros(0, dtype=torch.int64), 0
    total = flat.sum()
    known = as_constant(total)
    count: Any = scalars.emit("item", read(total), type_=INT, text=OF_SHAPE) if known is None else int(known.data)
    if scalars.is_symbolic(count):
        key = (read(buffer_of(of)), tuple(of.lengths.items()) if isinstance(of, Grown) else None)
        count.node.base = (current().get(_Counted).first.setdefault(key, count.node.value), 0)
    places = torch.nonzero_static(flat, size=size, fill_value=0)
    known_bounds()[read(places)] = (0, size - 1)
    return places[:, 0], extent_of(count, 0, size)


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
        _check_mask(t, dim, mask)
        rows = nonzero(func, mask, as_tuple=True)
        return Rows(func, t, {dim + d: row for d, row in enumerate(rows)}).take()
    whole, extent = _under(func, t, dim, mask)
    given = mask
    mask = there_of(mask) if isinstance(mask, Grown) else mask
    if isinstance(extent, Length):
        mask = fitted(mask, 0, whole.shape[dim]) & valid(extent, whole.shape[dim], 1, 0)
    places, count = found(mask, given)
    shape = list(whole.shape)
    flat = whole.reshape([*shape[:dim], math.prod(shape[dim : dim + rank]), *shape[dim + rank :]])
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
    return picked(torch.stack(columns, 1), 0, count)


def columns_of(mask: torch.Tensor, of: torch.Tensor) -> tuple[list[torch.Tensor], Extent]:
    """Return the positions of the true elements of a mask, a row for each dimension, and how many there are."""
    places, count = found(mask, of)
    shape = list(mask.shape)
    rows = [places // math.prod(shape[d + 1 :]) if places.shape[0] and d < len(shape) - 1 else places for d in range(len(shape))]
    columns = [row - rows[d - 1] * shape[d] if d and places.shape[0] else row for d, row in enumerate(rows)]
    for column in columns:
        known_bounds()[read(column)] = (0, max(*shape, 1) - 1)
    return columns, count


class Rows:
    """Rows of positions, one for each of some dimensions of a tensor, which are all as long as each other.

    Parameters
    ----------
    func : callable
        What is called, for messages.
    t : Tensor
        What they are positions in.
    rows : dict
        By the dimensions.
    """

    def __init__(self, func: Any, t: torch.Tensor, rows: dict[int, torch.Tensor]) -> None:
        self.func, self.t, self.dims = func, t, list(rows)
        self.whole = t.padded() if isinstance(t, Grown) else t
        at, self.length = equalized(list(rows.values()), [0] * len(rows), IndexError)
        for d, row in rows.items():
            if current().handlers and (not isinstance(row, Grown) or row.below is None):
                refuse_if_caught(torch.index_select, (self.whole, d, buffer_of(row)), {})
        self.at = [self._within(d, row, x) for (d, row), x in zip(rows.items(), at)]
        adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        #: The dimension of the result along which the positions lie, and its rank.
        self.along, self.rank = self.dims[0] if adjacent else 0, rank_of(t) - len(rows) + 1

    def _within(self, dim: int, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return positions counted from the front; in a dimension whose length is known only at run time others are an IndexError."""
        if isinstance(self.length, Length):
            at = masked(at, 0, self.length, 0)
        below = row.below if isinstance(row, Grown) else None
        own = self.t.lengths.get(dim) if isinstance(self.t, Grown) else None
        if own is None:
            return torch.where(at < 0, at + self.whole.shape[dim], at) if below is None else at
        if below is not None and combine("le", below, own) is True:
            return at
        there = to_tensor(number(own), torch.int64)
        inside = (at >= -there) & (at < there)
        if isinstance(self.length, Length):
            inside = inside | ~valid(self.length, at.shape[0], 1, 0)
        require(item(inside.all()), IndexError("index out of range of a dimension whose length is known only at run time"))
        return torch.where(at < 0, at + there, at).clamp(0, max(int(self.whole.shape[dim]) - 1, 0))

    def _index(self, first: torch.Tensor, others: list[torch.Tensor]) -> tuple[Any, ...]:
        rows = dict(zip(self.dims, [first, *others]))
        return tuple([rows.get(d, slice(None)) for d in range(rank_of(self.t))])

    def take(self) -> torch.Tensor:
        """Return what lies there."""
        others = {d: n for d, n in self.t.lengths.items() if d not in self.dims} if isinstance(self.t, Grown) else {}
        if not self.whole.numel() and others:
            return refuse_call(self.func, self.t)  # type: ignore[no-any-return]
        if not self.whole.numel():  # there are none
            shape = [0 if d == self.along else n for d, n in enumerate(self._shape())]
            return torch.zeros(shape, dtype=self.whole.dtype)
        made = torch.Tensor.__getitem__(self.whole, self._index(self.at[0], self.at[1:]))
        if not others:
            return picked(made, self.along, self.length)
        extents: dict[int, Extent] = {}
        for d, n in others.items():
            along = d - sum(r < d for r in self.dims)
            extents[along + (self.along <= along)] = n
        return new_in(made, {**extents, self.along: self.length})

    def _shape(self) -> list[int]:
        rest = [n for d, n in enumerate(self.whole.shape) if d not in self.dims]
        return [*rest[: self.along], self.at[0].shape[0], *rest[self.along :]]

    def put(self, value: torch.Tensor) -> None:
        """Put a tensor there that broadcasts to what lies there. Positions that there are not lead to a row that is taken off again."""
        first, length, from_end = self.at[0], self.length, self.rank - self.along
        check_apart(self.t, value)
        across = isinstance(self.t, Grown) and any(d not in self.dims for d in self.t.lengths)
        if across and (isinstance(value, Grown) or value.numel() != 1):
            return refuse_call(self.func, self.t, value)  # type: ignore[no-any-return]
        others = self.at[1:]
        if isinstance(value, Grown) or (isinstance(length, Length) and extent_at(value, from_end) not in (None, 1)):
            places = first.reshape([-1] + [1] * (from_end - 1))
            marked = new(places, 0, length) if isinstance(length, Length) else places
            agreed = broadcast([marked, value])
            if agreed is None or list(agreed[1]) != [from_end]:
                return refuse_call(self.func, value, self.t)  # type: ignore[no-any-return]
            if not is_same(agreed[1][from_end], length):  # positions are not repeated
                fine = as_number(agreed[1][from_end]) == as_number(length)
                require(fine, RuntimeError("as many elements must be assigned as there are positions"))
            value, first = agreed[0].get(id(value), value), agreed[0].get(id(marked), marked).reshape(-1)
            others = [fitted(x, 0, first.shape[0]) for x in others]
        if self.whole.numel() and first.shape[0]:
            torch.Tensor.__setitem__(self.whole, Ellipsis, self._written(first, others, length, value.to(self.whole.dtype)))
        return None

    def _written(self, first: torch.Tensor, others: list[torch.Tensor], length: Extent, value: torch.Tensor) -> torch.Tensor:
        """Return all that there is, with a value for each position: which one goes where is found before the elements are moved."""
        shape, count = list(self.whole.shape), int(first.shape[0])
        rest = [d for d in range(len(shape)) if d not in self.dims]
        space = [shape[d] for d in self.dims]
        if isinstance(length, Length):
            first = masked(first, 0, length, space[0])
        numbered = torch.zeros([space[0] + 1, *space[1:]], dtype=torch.int64)
        torch.Tensor.__setitem__(numbered, (first, *others), torch.arange(1, count + 1))
        numbered = numbered.narrow(0, 0, space[0])
        order = [*self.dims, *rest]
        before = [shape[d] for d in rest]
        value = value.expand([*before[: self.along], count, *before[self.along :]]) if value.numel() != 1 else value.reshape([])
        if value.dim():
            rows = value.movedim(self.along, 0).index_select(0, (numbered.reshape(-1) - 1).clamp(min=0))
            value = rows.reshape([*space, *before])
        there = (numbered > 0).reshape([*space, *[1] * len(rest)])
        return torch.where(there, value, self.whole.permute(order)).permute([order.index(d) for d in range(len(shape))])


def rows_in(entries: list[Any], of: Any = None) -> dict[int, torch.Tensor] | None:
    """Return the rows of positions of an index, by the dimensions of what the rest of it gives; None if it has none, or other tensors."""
    at = _places_in(entries, of)
    numbers = [i for i, e in enumerate(entries) if type(e) is int]
    if not at or not all(e is None or type(e) in (int, slice) or i in at for i, e in enumerate(entries)):
        return None
    before = any(e is None or type(e) is slice for e in entries[: at[0]])
    if numbers and before and max(at + numbers) - min(at + numbers) >= len(at + numbers):  # PyTorch takes them for positions too
        return None
    return {sum(e is None or type(e) is slice or k in at for k, e in enumerate(entries[:i])): entries[i] for i in at}


def without_rows(entries: list[Any], of: Any = None) -> tuple[Any, ...]:
    """Return an index with all of the dimensions in the place of rows of positions."""
    at = _places_in(entries, of)
    return tuple([slice(None) if i in at else e for i, e in enumerate(entries)])


def masked_select(func: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Return the elements at which a mask is true."""
    if isinstance(x, Grown) or isinstance(mask, Grown):
        rank = rank_of(x)
        alike = rank == rank_of(mask) and all(is_same(extent_at(x, d), extent_at(mask, d)) for d in range(1, rank + 1))
        return by_mask(func, x, 0, mask) if alike or rank == rank_of(mask) == 1 else refuse_call(func, x, mask)
    x, mask = torch.broadcast_tensors(x, mask)
    return by_mask(func, x, 0, mask)


def masked_scatter(func: Any, target: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Put the elements of a tensor, in their order, where a mask that broadcasts is true."""
    if isinstance(target, Grown) or isinstance(mask, Grown) or not isinstance(source, Grown):
        return refuse_call(func, target, mask, source)
    mask = mask.expand(target.shape)
    flat, room = at_front(source).reshape(-1), math.prod(n for d, n in enumerate(source.buffer.shape) if d not in source.lengths)
    few = RuntimeError("masked_scatter: expected the source to have at least as many elements as the mask has true ones")
    require(as_number(found(mask, mask)[1]) <= multiplied(source.lengths.values()) * room, few)
    made = _scattered(target, mask, flat)
    return made


def put_by_mask(func: Any, t: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> None:
    """Assign to what a mask picks of the first dimensions of a tensor, of which one has a length of the run, or the mask, or the value."""
    rank, whole, given = rank_of(mask), buffer_of(t), mask
    check_apart(t, value)
    behind = isinstance(t, Grown) and any(d >= rank for d in t.lengths)
    extents = {d: n for d, n in t.lengths.items() if d < rank} if isinstance(t, Grown) else {}
    extents |= mask.lengths if isinstance(mask, Grown) else {}
    if extents:
        _check_mask(t, 0, mask)
        mask = buffer_of(mask)
        for d, length in extents.items():
            mask = fitted(mask, d, int(whole.shape[d])) & valid(length, int(whole.shape[d]), rank, d)
    tail = rank_of(t) - rank
    one_for_all = not isinstance(value, Grown) and (value.dim() <= tail or (value.dim() == tail + 1 and value.shape[0] == 1))
    if behind and (isinstance(value, Grown) or value.numel() != 1):
        return refuse_call(func, t, value)  # type: ignore[no-any-return]
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


def _scattered(t: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a tensor with rows, in their order, in the place of what a mask picks of the first dimensions."""
    source = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(0, max(int(rows.shape[0]) - 1, 0))
    moved = rows.index_select(0, source).reshape([*mask.shape, *rows.shape[1:]]).to(t.dtype)
    return torch.where(mask.reshape([*mask.shape, *[1] * (t.dim() - mask.dim())]), moved, t)
