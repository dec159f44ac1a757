# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Positions by which an index picks of dimensions of a tensor: tensors of integers, which PyTorch broadcasts with each other.

How many there are may be known only at run time, along any of their dimensions. What lies behind the positions that there are is never
used as an index: reading there gives the first element, and writing goes to a row that is taken off again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.aligned import broadcast, fitted, is_same
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.data_errors import refuse_if_caught
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import buffer_of, dtype_of, masked, new_in, refuse_call, valid
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.overlaps import check_apart
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor

_INDICES = (torch.int64, torch.int32)


def is_positions(x: Any) -> bool:
    """Whether an entry of an index is a tensor of positions."""
    return isinstance(x, torch.Tensor) and rank_of(x) > 0 and dtype_of(x) in _INDICES


def from_front(at: torch.Tensor, size: int) -> torch.Tensor:
    """Return positions in a dimension counted from the front; one out of range is out of range of a few more too, not counted again."""
    return torch.where(at < 0, torch.where(at < -size, size + _FAR, at + size), torch.where(at < size, at, at + _FAR))


#: Dimensions get no more elements than these for positions that there are not.
_FAR = 2


def check_dtype(func: Any, t: torch.Tensor, value: torch.Tensor, of_one_mask: bool) -> None:
    """Raise what PyTorch raises of a value of another type; it fills with a single element where one mask is true, and converts that."""
    if dtype_of(value) == t.dtype or (of_one_mask and not isinstance(value, Grown) and value.numel() == 1):
        return
    if of_one_mask and isinstance(value, Grown):
        refuse_call(func, value)
    raise of_program(RuntimeError("Index put requires the source and destination dtypes match"))


class Positions:
    """Tensors of positions, one for each of some dimensions of a tensor.

    Parameters
    ----------
    func : callable
        What is called, for messages.
    t : Tensor
        What they are positions in.
    positions : dict
        By the dimensions.
    of_one_mask : bool
        Whether they are those of the true elements of one mask, and of nothing beside it.
    """

    def __init__(self, func: Any, t: torch.Tensor, positions: Mapping[int, torch.Tensor], of_one_mask: bool = False) -> None:
        self._of_one_mask, self._inside = of_one_mask, list[torch.Tensor]()
        self.func, self.t, self.dims = func, t, list(positions)
        self.whole = buffer_of(t)
        agreed = broadcast(list(positions.values()), error=IndexError)
        buffers, extents = ({}, {}) if agreed is None else agreed
        if agreed is None:
            refuse_call(func, *positions.values(), t)
        for d, at in positions.items():
            if current().handlers and (not isinstance(at, Grown) or at.below is None):
                refuse_if_caught(torch.index_select, (self.whole, d, buffer_of(at).reshape(-1)), {})
        wholes = torch.broadcast_tensors(*[buffers.get(id(at), at) for at in positions.values()])
        #: The shape of the buffers of positions, and how many there are along those of their dimensions where the run decides.
        self.shape = list(wholes[0].shape)
        self.extents = {len(self.shape) - from_end: n for from_end, n in extents.items()}
        self.lengths = {d: n for d, n in self.extents.items() if isinstance(n, Length)}
        self.at = [self._within(d, at, x) for (d, at), x in zip(positions.items(), wholes)]
        adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        #: The dimension of the result from which on the positions lie.
        self.along = self.dims[0] if adjacent else 0
        self.rest = [d for d in range(rank_of(t)) if d not in self.dims]
        #: The lengths of dimensions that have no positions.
        self.across = {d: n for d, n in t.lengths.items() if d in self.rest} if isinstance(t, Grown) else {}

    def _within(self, dim: int, positions: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return positions counted from the front; in a dimension whose length is known only at run time others are an IndexError."""
        for d, n in self.lengths.items():
            at = masked(at, d, n, 0)
        below = positions.below if isinstance(positions, Grown) else None
        own = self.t.lengths.get(dim) if isinstance(self.t, Grown) else None
        if own is None:
            size = int(self.whole.shape[dim])
            return at if below is not None and bounds_of(below)[1] <= size else from_front(at, size)
        if below is not None and combine("le", below, own) is True:
            return at
        there = to_tensor(number(own), torch.int64)
        inside = (at >= -there) & (at < there)
        for d, n in self.lengths.items():
            inside = inside | ~valid(n, self.shape[d], len(self.shape), d)
        self._inside.append(inside.all())
        return torch.where(at < 0, at + there, at).clamp(0, max(int(self.whole.shape[dim]) - 1, 0))

    def _check_inside(self) -> None:
        for inside in self._inside:
            require(item(inside), IndexError("index out of range of a dimension whose length is known only at run time"))

    def take(self) -> torch.Tensor:
        """Return what lies there."""
        self._check_inside()
        if not all(self.whole.shape[d] for d in self.dims):
            return self._take_none()
        rows = dict(zip(self.dims, self.at))
        if self.whole.numel():
            made = torch.Tensor.__getitem__(self.whole, tuple([rows.get(d, slice(None)) for d in range(rank_of(self.t))]))
        else:
            made = torch.zeros(self._shape(self.shape), dtype=self.whole.dtype)
        extents: dict[int, Extent] = {self.along + d: n for d, n in self.extents.items()}
        extents |= {self._place_of(d): n for d, n in self.across.items()}
        return new_in(made, extents, bool(self.across) or self.along == 0)

    def _take_none(self) -> torch.Tensor:
        """Return nothing, of a tensor that has no elements along a dimension in which there are positions: there must be none."""
        if self.across or len(self.lengths) != 1:
            return refuse_call(self.func, self.t, *self.at)  # type: ignore[no-any-return]
        ((along, length),) = self.lengths.items()
        require(number(length) == 0, IndexError("index out of range of a dimension that has no elements"))
        return torch.zeros(self._shape([0 if d == along else n for d, n in enumerate(self.shape)]), dtype=self.whole.dtype)

    def _shape(self, positions: list[int]) -> list[int]:
        """Return the shape of what lies at positions of a shape."""
        rest = [int(self.whole.shape[d]) for d in self.rest]
        return [*rest[: self.along], *positions, *rest[self.along :]]

    def put(self, value: torch.Tensor) -> None:
        """Put a tensor there that broadcasts to what lies there. Positions that there are not lead to a row that is taken off again."""
        check_apart(self.t, value)
        check_dtype(self.func, self.whole, value, self._of_one_mask)
        at = self.at
        if isinstance(value, Grown) or ((self.lengths or self.across) and value.numel() != 1):
            value, at = self._agreed(value)
        self._check_inside()
        if self.whole.numel() and at[0].numel():
            torch.Tensor.__setitem__(self.whole, Ellipsis, self._written(at, value.to(self.whole.dtype)))

    def _agreed(self, value: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return a buffer of what is assigned, and of positions, that are as long as each other; others than eager takes are an error."""
        rank = len(self.shape) + len(self.rest)
        extents: dict[int, Extent] = {rank - self._place_of(d): n for d, n in self.across.items()}
        extents |= {rank - self.along - d: n for d, n in self.extents.items()}
        shape = self._shape(self.shape)
        varied = [(isinstance(value, Grown) and rank_of(value) - rank + d in value.lengths) or rank - d in extents for d in range(rank)]
        marked = self.at[0].reshape([1] * self.along + self.shape + [1] * (len(self.rest) - self.along))
        marked = marked.expand(
            [n if one or self.along <= d < self.along + len(self.shape) else 1 for d, (n, one) in enumerate(zip(shape, varied))]
        )
        cuts = {rank - from_end: n for from_end, n in extents.items() if isinstance(n, Length)}
        marked = cut(marked, cuts) if cuts else marked
        agreed = broadcast([marked, value])
        if agreed is None or any(from_end > rank for from_end in agreed[1]):
            return refuse_call(self.func, value, self.t)  # type: ignore[no-any-return]
        for from_end, n in agreed[1].items():
            if not is_same(n, mine := extents.get(from_end, shape[rank - from_end])):  # what is assigned to is not repeated
                require(as_number(n) == as_number(mine), RuntimeError("as many elements must be assigned as there are positions"))
        value, first = agreed[0].get(id(value), value), agreed[0].get(id(marked), marked)
        for d in self.across:
            if rank_of(value) >= (from_end := rank - self._place_of(d)) and value.shape[-from_end] != 1:
                value = fitted(value, rank_of(value) - from_end, int(self.whole.shape[d]))
        at = self.at
        for d, n in enumerate(first.shape[self.along : self.along + len(self.shape)]):
            at = [fitted(x, d, int(n)) for x in at]
        return value, at

    def _place_of(self, d: int) -> int:
        """Return which dimension of the result is one of the tensor that has no positions."""
        place = self.rest.index(d)
        return place + len(self.shape) if self.along <= place else place

    def _written(self, at: list[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
        """Return all that there is, with a value for each position: which one goes where is found before the elements are moved."""
        places, count = list(at[0].shape), at[0].numel()
        space, before = ([int(self.whole.shape[d]) for d in dims] for dims in (self.dims, self.rest))
        first = at[0]
        for d, n in self.lengths.items():
            first = masked(first, d, n, space[0])
        numbered = torch.zeros([space[0] + 1, *space[1:]], dtype=torch.int64)
        torch.Tensor.__setitem__(numbered, (first, *at[1:]), torch.arange(1, count + 1).reshape(places))
        numbered = numbered.narrow(0, 0, space[0])
        order = [*self.dims, *self.rest]
        if value.numel() != 1:
            value = value.expand(self._shape(places))
            value = value.movedim(list(range(self.along, self.along + len(places))), list(range(len(places)))).reshape([count, *before])
            value = value.index_select(0, (numbered.reshape(-1) - 1).clamp(min=0)).reshape([*space, *before])
        else:
            value = value.reshape([])
        there = (numbered > 0).reshape([*space, *[1] * len(before)])
        for d, n in self.across.items():  # behind the length may lie what another tensor has there
            there = there & valid(n, int(self.whole.shape[d]), len(order), order.index(d))
        return torch.where(there, value, self.whole.permute(order)).permute([order.index(d) for d in range(len(order))])
