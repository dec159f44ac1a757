# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is read and written at places that a tensor holds, where the places or the tensor have a length that is known only at run time.

A place behind the length of the places is none: reading there gives the first element, and writing goes to one more row, which is taken
off again. A place beyond the length of what it is in is the error of PyTorch's, at run time.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.aligned import equalized, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import as_number
from dycl_tvm.frontend.trace.values.grown import Grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, masked, new, refuse_call, valid
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.grown_shapes import grown_or_plain
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor

_T = torch.Tensor


def check_places(t: Grown, index: torch.Tensor, error: Exception, from_end: bool = False) -> None:
    """Raise at run time what PyTorch raises of places that do not lie in the dimension of unknown length; some may count from its end."""
    below = index.below if isinstance(index, Grown) else None
    if below is not None and combine("le", below, t.length) is True:
        return
    at, there = buffer_of(index), to_tensor(number(t.length), torch.int64)
    inside = (at >= (-there if from_end else 0)) & (at < there)
    if isinstance(index, Grown):
        inside = inside | ~valid(index.length, at.shape[index.along], at.dim(), index.along)
    require(item(inside.all()), error)


def gather(func: Any, t: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool = False) -> Any:
    """Take the elements at places along a dimension."""
    rank = rank_of(t)
    if type(dim) is not int or rank_of(index) != rank:
        return refuse_call(func, t, index)
    dim, whole, at = dim % rank, buffer_of(t), buffer_of(index)
    if isinstance(index, Grown):
        at = masked(at, index.along, index.length, 0)
    if isinstance(t, Grown) and t.along == dim:
        check_places(t, index, RuntimeError("an index of gather() is out of bounds of a dimension whose length is known only at run time"))
        at = at.clamp(0, max(int(whole.shape[dim]) - 1, 0))  # where there are no rows there are no places
    elif isinstance(t, Grown):
        if not isinstance(index, Grown) or t.along != index.along:
            return refuse_call(func, t, index)
        if not is_same(t.length, index.length):
            require(number(index.length) <= number(t.length), RuntimeError("the index of gather() is longer than what it is taken from"))
        whole = fitted(whole, t.along, int(at.shape[t.along]))
    if any(at.shape[d] > whole.shape[d] for d in range(rank) if d != dim) or not whole.shape[dim]:
        return refuse_call(func, t, index)
    made = func(whole, dim, at)
    return new(made, index.along, index.length) if isinstance(index, Grown) else made


def _spare(t: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a tensor with one more row behind it."""
    more = list(t.shape)
    more[dim] = 1
    return torch.cat([t, torch.zeros(more, dtype=t.dtype)], dim)


def scatter(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *args: Any, **kwargs: Any) -> Any:
    """Put or add elements at places along a dimension."""
    rank = rank_of(x)
    if type(dim) is not int or rank_of(index) != rank or (isinstance(src, torch.Tensor) and rank_of(src) not in (0, rank)):
        return refuse_call(func, x, index, src)
    dim, whole, at = dim % rank, buffer_of(x), buffer_of(index)
    size = int(whole.shape[dim])
    if isinstance(x, Grown) and x.along == dim:
        check_places(x, index, RuntimeError("an index of scatter() is out of bounds of a dimension whose length is known only at run time"))
    elif isinstance(x, Grown) and not (isinstance(index, Grown) and x.along == index.along and is_same(x.length, index.length)):
        return refuse_call(func, x, index, src)
    if isinstance(index, Grown):
        at = masked(at, index.along, index.length, size)
    if isinstance(src, torch.Tensor) and rank_of(src):
        if isinstance(src, Grown) and not (isinstance(index, Grown) and index.along == src.along):
            return refuse_call(func, x, index, src)
        if isinstance(index, Grown):
            room, own = int(at.shape[index.along]), extent_at(src, rank - index.along)
            if combine("ge", own, index.length) is not True:  # type: ignore[arg-type]  # it has the dimension
                few = RuntimeError("there are fewer elements than places for them, in a dimension whose length is known only at run time")
                require(as_number(own) >= number(index.length), few)  # type: ignore[arg-type]
            src = fitted(buffer_of(src), index.along, room)
    if any(at.shape[d] > whole.shape[d] for d in range(rank) if d != dim):
        return refuse_call(func, x, index, src)
    made = func(_spare(whole, dim), dim, at, src, *args, **kwargs).narrow(dim, 0, size).clone()
    return new(made, x.along, x.length) if isinstance(x, Grown) else made


def into_rows(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> Any:
    """Put, add or fill rows at places along a dimension: ``index_add``, ``index_copy``, ``index_fill``."""
    if type(dim) is not int or rank_of(index) != 1:
        return refuse_call(func, x, index, source)
    dim, fills = dim % rank_of(x), func in (torch.index_fill, _T.index_fill)
    whole, at, length = buffer_of(x), buffer_of(index), index.length if isinstance(index, Grown) else int(index.shape[0])
    if isinstance(x, Grown) and x.along == dim:
        error = IndexError("an index is out of range of a dimension whose length is known only at run time")
        check_places(x, index, error, from_end=fills)
        at = torch.where(at < 0, at + to_tensor(number(x.length), torch.int64), at)
    elif isinstance(x, Grown):
        return refuse_call(func, x, index, source)
    elif fills:
        at = torch.where(at < 0, at + int(whole.shape[dim]), at)
    if isinstance(source, Grown) and (fills or source.along != dim):
        return refuse_call(func, x, index, source)
    if not fills:
        (at, source), length = equalized([new(at, 0, length) if isinstance(length, Length) else at, source], [0, dim])
    size = int(whole.shape[dim])
    if isinstance(length, Length):
        at = masked(at, 0, length, size)
    made = func(_spare(whole, dim), dim, at, source, *args, **kwargs).narrow(dim, 0, size).clone()
    return new(made, x.along, x.length) if isinstance(x, Grown) else made


def index_select(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Take rows at places."""
    rank = rank_of(x)
    if type(dim) is not int or rank_of(index) != 1:
        return refuse_call(func, x, index)
    dim, at = dim % rank, buffer_of(index)
    length = index.length if isinstance(index, Grown) else int(index.shape[0])
    if isinstance(index, Grown):
        at = masked(at, 0, index.length, 0)
    if isinstance(x, Grown) and dim == x.along:
        check_places(x, index, IndexError("an index is out of range of a dimension whose length is known only at run time"))
        size = int(x.buffer.shape[dim])
        if not size:
            return refuse_call(func, x, index)
        return grown_or_plain(x.padded().index_select(dim, at.clamp(0, size - 1)), dim, length, True)
    if isinstance(x, Grown):
        return refuse_call(func, x, index) if isinstance(length, Length) else new(x.padded().index_select(dim, at), x.along, x.length)
    return grown_or_plain(x.index_select(dim, at), dim, length, True)


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(named("gather", torch, _T), gather),
    **dict.fromkeys(named("scatter scatter_add scatter_reduce", torch, _T), scatter),
    **dict.fromkeys(named("index_add index_copy index_fill index_reduce", torch, _T), into_rows),
    **dict.fromkeys(named("index_select", torch, _T), index_select),
}
