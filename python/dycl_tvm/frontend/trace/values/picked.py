# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What masks and positions pick of tensors: as many elements as a mask has true ones, or as there are positions.

The positions of a mask's true elements are a buffer as long as the mask. What lies behind the positions that there are is never used as an
index: reading there gives the first element, and writing goes to a row that is taken off again.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import equalized, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, bounds_of, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, rank_of
from dycl_tvm.frontend.trace.values.grown_math import dtype_of, masked, new, refuse_call, valid
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.tensors import as_constant, read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.types import INT

_INDICES = (torch.int64, torch.int32)


def is_mask(x: Any) -> bool:
    """Whether an entry of an index is a mask whose elements are known only at run time."""
    return isinstance(x, torch.Tensor) and dtype_of(x) == torch.bool and rank_of(x) > 0 and (isinstance(x, Grown) or as_constant(x) is None)


def is_positions(x: Any) -> bool:
    """Whether an entry of an index is a row of positions of which there is a number of the run."""
    return isinstance(x, Grown) and x.dim_() == 1 and dtype_of(x) in _INDICES


def found(mask: torch.Tensor) -> tuple[torch.Tensor, Extent]:
    """Return the positions of the true elements of a mask in one row, and how many there are."""
    flat = mask.reshape(-1)
    size = int(flat.shape[0])
    if not size:
        return torch.zeros(0, dtype=torch.int64), 0
    total = flat.sum()
    known = as_constant(total)
    count = scalars.emit("item", read(total), type_=INT, text=OF_SHAPE) if known is None else int(known.data)
    return torch.nonzero_static(flat, size=size, fill_value=0)[:, 0], extent_of(count, 0, size)


def there_of(mask: Grown) -> torch.Tensor:
    """Return the buffer of a mask, false where there is nothing."""
    return mask.padded() & valid(mask.length, mask.buffer.shape[mask.along], mask.dim_(), mask.along)


def by_mask(func: Any, t: torch.Tensor, dim: int, mask: torch.Tensor) -> torch.Tensor:
    """Return what a mask picks of the dimensions from ``dim`` on."""
    rank = rank_of(mask)
    whole, extent = _under(func, t, dim, mask)
    mask = there_of(mask) if isinstance(mask, Grown) else mask
    if isinstance(extent, Length):
        mask = fitted(mask, 0, whole.shape[dim]) & valid(extent, whole.shape[dim], 1, 0)
    places, count = found(mask)
    shape = list(whole.shape)
    flat = whole.reshape([*shape[:dim], math.prod(shape[dim : dim + rank]), *shape[dim + rank :]])
    if isinstance(count, int) and not count:
        return flat.narrow(dim, 0, 0).clone()
    return picked(flat.index_select(dim, places), dim, count)


def _under(func: Any, t: torch.Tensor, dim: int, mask: torch.Tensor) -> tuple[torch.Tensor, Extent | None]:
    """Return a tensor of fixed shape of which a mask picks, and the length of the two where both, or one of them, has one of the run."""
    if not isinstance(t, Grown) and not isinstance(mask, Grown):
        if tuple(mask.shape) != tuple(t.shape[dim : dim + mask.dim()]):
            raise IndexError(f"the shape of the mask {list(mask.shape)} does not match the shape of the indexed tensor {list(t.shape)}")
        return t, None
    if rank_of(mask) != 1 or (isinstance(t, Grown) and t.along != dim):
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
    if isinstance(x, Grown):
        if x.dim_() != 1:
            return refuse_call(func, x)
        mask = masked(x.padded() != 0, 0, x.length, False)
    else:
        mask = x != 0
    places, count = found(mask)
    shape = list(mask.shape)
    rows = [places // math.prod(shape[d + 1 :]) if places.shape[0] and d < len(shape) - 1 else places for d in range(len(shape))]
    columns = [row - rows[d - 1] * shape[d] if d and places.shape[0] else row for d, row in enumerate(rows)]
    if as_tuple:
        return tuple([picked(c, 0, count) for c in columns])
    return picked(torch.stack(columns, 1), 0, count)


def by_positions(func: Any, t: torch.Tensor, entries: list[Any]) -> torch.Tensor:
    """Return what an index picks that has rows of positions, and slices."""
    rows = [(i, e) for i, e in enumerate(entries) if isinstance(e, Grown)]
    along = t.along if isinstance(t, Grown) else None
    dims = [sum(e is not None for e in entries[:i]) for i, _ in rows]
    if along is not None and along in dims:
        return refuse_call(func, t)  # type: ignore[no-any-return]
    adjacent = rows[-1][0] - rows[0][0] == len(rows) - 1
    at = sum(True for e in entries[: rows[0][0]]) if adjacent else 0
    buffers, length = equalized([e for _, e in rows], [0] * len(rows), IndexError)
    if isinstance(length, Length):
        buffers = [masked(b, 0, length, 0) for b in buffers]
    static = list(entries)
    for (i, _), b in zip(rows, buffers):
        static[i] = b
    if isinstance(t, Grown):
        return refuse_call(func, t)  # type: ignore[no-any-return]
    return picked(torch.Tensor.__getitem__(t, tuple(static)), at, length)


def row_of(index: Grown, size: int) -> torch.Tensor:
    """Return positions of which those that there are not lead to a row behind the last."""
    at = index.padded()
    return masked(torch.where(at < 0, at + size, at), 0, index.length, size)


def index_add(func: Any, target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, alpha: Any = 1) -> Any:
    """Add rows at positions: those that there are not go to a row that is taken off again."""
    rows = [x for x in (index, source) if isinstance(x, Grown)]
    if isinstance(target, Grown) or any(r.along != (0 if r is index else dim % target.dim()) for r in rows):
        return refuse_call(func, target, index, source)
    dim = dim % target.dim()
    (at, rows_of), length = equalized([index, source], [0, dim])
    more = list(target.shape)
    more[dim] = 1
    whole = torch.cat([target, torch.zeros(more, dtype=target.dtype)], dim)
    if isinstance(length, Length):
        at = masked(at, 0, length, int(target.shape[dim]))
    made = whole.index_add(dim, at, rows_of, alpha=alpha).narrow(dim, 0, int(target.shape[dim]))
    if func in (torch.Tensor.index_add_,):
        return target.copy_(made)
    return made.clone()


def index_select(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Take rows at positions."""
    rank = rank_of(x)
    dim = dim % rank
    if isinstance(index, Grown):
        if isinstance(x, Grown):
            return refuse_call(func, x, index)
        return picked(x.index_select(dim, masked(index.padded(), 0, index.length, 0)), dim, index.length)
    assert isinstance(x, Grown)
    if dim == x.along:
        return refuse_call(func, x, index)
    return new(func(x.padded(), dim, index), x.along, x.length)


def masked_select(func: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Return the elements at which a mask is true."""
    if isinstance(x, Grown) or isinstance(mask, Grown):
        if rank_of(x) != 1 or rank_of(mask) != 1:
            return refuse_call(func, x, mask)
        return by_mask(func, x, 0, mask)
    x, mask = torch.broadcast_tensors(x, mask)
    return by_mask(func, x, 0, mask)


def put_by_mask(t: torch.Tensor, mask: torch.Tensor, value: Grown) -> bool:
    """Assign rows to what a mask picks of the first dimensions; whether that could be done."""
    rank = mask.dim()
    if isinstance(mask, Grown) or isinstance(t, Grown) or value.along != 0 or value.dim_() != t.dim() - rank + 1:
        return False
    flat = mask.reshape(-1)
    places, count = found(flat)
    (rows, _), length = equalized([value, picked(places, 0, count)], [0, 0])
    if bounds_of(length)[1]:
        source = (flat.to(torch.int64).cumsum(0) - 1).clamp(0, int(rows.shape[0]) - 1)
        moved = rows.index_select(0, source).reshape([*mask.shape, *rows.shape[1:]]).to(t.dtype)
        torch.Tensor.__setitem__(t, Ellipsis, torch.where(mask.reshape([*mask.shape, *[1] * (t.dim() - rank)]), moved, t))
    return True


def put_at_positions(t: torch.Tensor, index: Grown, value: torch.Tensor) -> bool:
    """Assign to rows at positions; whether that could be done."""
    if isinstance(t, Grown):
        return False
    size = int(t.shape[0])
    length: Extent = index.length
    at = row_of(index, size)
    if isinstance(value, Grown):
        if value.along != 0 or value.dim_() != t.dim() or not is_same(value.length, index.length):
            return False
        room = min(int(at.shape[0]), value.buffer.shape[0])
        at, value = at.narrow(0, 0, room), value.padded().narrow(0, 0, room)
    elif value.dim() == t.dim() and value.shape[0] != 1:
        return False
    assert length is not None
    more = torch.zeros([1, *t.shape[1:]], dtype=t.dtype)
    whole = torch.cat([t, more])
    torch.Tensor.__setitem__(whole, at, value.to(t.dtype))
    torch.Tensor.__setitem__(t, Ellipsis, whole.narrow(0, 0, size))
    return True
