# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is read and written at places that a tensor holds, where the places or the tensor have a length that is known only at run time.

A place behind the length of the places is none: reading there gives the first element, and writing goes to one more row, which is taken
off again. A place beyond the length of what it is in is the error of PyTorch's, at run time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import apart
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.aligned import dims_of, equalized_buffers, equalized_in, extent_at, fitted
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    buffer_of,
    dtype_of,
    filled,
    masked,
    new_in,
    refuse_call,
    there_is,
    valid,
)
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.grown_shapes import grown_or_plain
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.positions import from_front
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor

_T = torch.Tensor


def check_places(length: Length, index: torch.Tensor, error: Exception, from_end: bool = False, unless: Iterable[Length] = ()) -> None:
    """Raise at run time what PyTorch raises of places that do not lie in a dimension of a length; some may count from its end.

    Nothing is asked where one of other lengths is zero that are given.
    """
    below = index.below if isinstance(index, Grown) else None
    if below is not None and combine("le", below, length) is True:
        return
    at, there = buffer_of(index), to_tensor(number(length), torch.int64)
    inside = (at >= (-there if from_end else 0)) & (at < there)
    inside = (inside | ~there_is(index) if isinstance(index, Grown) else inside).all()
    for n in unless:
        inside = inside | (to_tensor(number(n), torch.int64) == 0)
    require(item(inside), error)


def _with_room(whole: torch.Tensor, t: torch.Tensor, index: torch.Tensor, dims: list[int], error: Exception) -> torch.Tensor:
    """Return the buffer of a tensor, as long as that of places along dimensions; the places must not be longer than it is there."""
    rank, room = rank_of(t), buffer_of(index).shape
    for d in dims:
        own, asked = extent_at(t, rank - d), extent_at(index, rank - d)
        assert own is not None and asked is not None
        if combine("le", asked, own) is not True:
            require(as_number(asked) <= as_number(own), error)
        whole = fitted(whole, d, max(int(room[d]), int(whole.shape[d])))
    return whole


def _longer(func: Any) -> RuntimeError:
    return RuntimeError(f"the index of {func.__name__}() is longer than a tensor in a dimension whose length is known only at run time")


def gather(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool = False) -> Any:
    """Take the elements at places along a dimension."""
    rank = rank_of(x)
    if type(dim) is not int or rank_of(index) != rank:
        return refuse_call(func, x, index)
    dim, whole, at = dim % rank, buffer_of(x), buffer_of(index)
    if isinstance(index, Grown):
        at = filled(index, 0)
    if isinstance(x, Grown) and dim in x.lengths:
        check_places(
            x.lengths[dim],
            index,
            RuntimeError("an index of gather() is out of bounds of a dimension whose length is known only at run time"),
        )
        at = at.clamp(0, max(int(whole.shape[dim]) - 1, 0))  # where there are no rows there are no places
    if not whole.shape[dim]:
        return refuse_call(func, x, index)
    whole = _with_room(whole, x, index, [d for d in range(rank) if d != dim], _longer(func))
    made = func(whole, dim, at)
    return new_in(made, index.lengths) if isinstance(index, Grown) else made


def _spare(whole: torch.Tensor, dim: int, at: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor with one more row behind it, and places, of which those that there are not lead there, and no others do."""
    more, size = list(whole.shape), int(whole.shape[dim])
    more[dim] = 1
    at = torch.where(there, torch.where(at < size, at, at + 1), torch.full((), size, dtype=at.dtype))
    return torch.cat([whole, torch.zeros(more, dtype=whole.dtype)], dim), at


def scatter(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *args: Any, **kwargs: Any) -> Any:
    """Put or add elements at places along a dimension."""
    rank = rank_of(x)
    if type(dim) is not int or rank_of(index) != rank or (isinstance(src, torch.Tensor) and rank_of(src) not in (0, rank)):
        return refuse_call(func, x, index, src)
    dim, whole, at = dim % rank, buffer_of(x), buffer_of(index)
    shape = whole.shape
    if isinstance(x, Grown) and dim in x.lengths:
        error = RuntimeError("an index of scatter() is out of bounds of a dimension whose length is known only at run time")
        check_places(x.lengths[dim], index, error)
    if isinstance(index, Grown):
        whole, at = _spare(whole, dim, at, there_is(index))
    if isinstance(src, torch.Tensor) and rank_of(src):
        src = _with_room(buffer_of(src), src, index, list(range(rank)), _longer(func))
    whole = _with_room(whole, x, index, [d for d in range(rank) if d != dim], _longer(func))
    made = func(whole, dim, at, src, *args, **kwargs)
    for d in range(rank):
        made = made.narrow(d, 0, int(shape[d])) if made.shape[d] > shape[d] else made
    made = made.clone(memory_format=torch.contiguous_format)
    return new_in(made, x.lengths) if isinstance(x, Grown) else made


def _row_of(index: torch.Tensor) -> torch.Tensor:
    """Return places in a row: PyTorch takes one place without a dimension, as ``squeeze()`` leaves it of one, for a row of one."""
    return index if rank_of(index) else index.reshape(1)


def into_rows(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> Any:
    """Put, add or fill rows at places along a dimension: ``index_add``, ``index_copy``, ``index_fill``."""
    index, fills = _row_of(index), func in (torch.index_fill, _T.index_fill)
    if type(dim) is not int or rank_of(index) != 1 or not rank_of(x) or not (fills or rank_of(source) == rank_of(x)):
        return refuse_call(func, x, index, source)
    if fills and isinstance(source, Grown):
        return refuse_call(func, x, index, source)
    dim = dim % rank_of(x)
    whole, at = buffer_of(x), buffer_of(index)
    extent: Extent = index.length if isinstance(index, Grown) else int(index.shape[0])
    if not fills:
        extent = equalized_buffers([index, source], [0, dim])[1]
    if isinstance(x, Grown) and dim in x.lengths:
        error = IndexError("an index is out of range of a dimension whose length is known only at run time")
        empty = [n for d, n in x.lengths.items() if fills and d != dim and n.bounds[0] < 1]
        check_places(x.lengths[dim], index, error, from_end=fills, unless=empty)
        at = torch.where(at < 0, at + to_tensor(number(x.lengths[dim]), torch.int64), at)
    elif fills:
        at = from_front(at, int(whole.shape[dim]))
    if not fills:
        (whole, source), _ = equalized_in([x, source], [d for d in dims_of([x, source]) if d != dim])
        at, source = [fitted(t, d, bounds_of(extent)[1]) for t, d in ((at, 0), (source, dim))]
    size = int(whole.shape[dim])
    if isinstance(extent, Length):
        whole, at = _spare(whole, dim, at, valid(extent, int(at.shape[0]), 1, 0))
    made = func(whole, dim, at, source, *args, **kwargs).narrow(dim, 0, size).clone()
    if not isinstance(x, Grown):
        return made
    for d in x.lengths:
        made = fitted(made, d, x.buffer.shape[d])
    return new_in(made, x.lengths, x.contiguous_ or not fills)  # what is filled is a copy that lies as the tensor does


def _out_of_range(x: Grown, dim: int) -> Exception:
    """Return what PyTorch raises of a place beyond the end, which it is asked for: it depends on the shape."""
    raised: type[Exception] = IndexError
    try:
        with apart(), plainly():
            torch.zeros(tuple(x.buffer.shape), dtype=dtype_of(x)).index_select(dim, torch.tensor([x.buffer.shape[dim]]))
    except RuntimeError:
        raised = RuntimeError
    except IndexError:
        pass
    return raised("an index is out of range of a dimension whose length is known only at run time")


def index_select(func: Any, x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Take rows at places."""
    rank, index = rank_of(x), _row_of(index)
    if type(dim) is not int or rank_of(index) != 1 or not rank:
        return refuse_call(func, x, index)
    dim, at = dim % rank, buffer_of(index)
    length = index.length if isinstance(index, Grown) else int(index.shape[0])
    if isinstance(index, Grown):
        at = masked(at, 0, index.length, 0)
    if isinstance(x, Grown):
        whole, extents = x.padded(), {**x.lengths, dim: length}
        if dim in x.lengths:
            check_places(x.lengths[dim], index, _out_of_range(x, dim))
            size = int(x.buffer.shape[dim])
            if not size:
                return refuse_call(func, x, index)
            at = at.clamp(0, size - 1)
        made = whole.index_select(dim, at)
        return grown_or_plain(made, dim, length, True) if list(x.lengths) == [dim] else new_in(made, extents)
    return grown_or_plain(x.index_select(dim, at), dim, length, True)


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(named("gather", torch, _T), gather),
    **dict.fromkeys(named("scatter scatter_add scatter_reduce", torch, _T), scatter),
    **dict.fromkeys(named("index_add index_copy index_fill index_reduce", torch, _T), into_rows),
    **dict.fromkeys(named("index_select", torch, _T), index_select),
}
