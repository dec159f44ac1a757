# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's functions on tensors that grow in a loop: their parts, shapes and lengths, and which function is computed how.

What is computed of their elements is in :mod:`.grown_math`. A function that is not here unrolls the loop.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import equalized, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.arguments import leaves, map_tensors, tensors_of
from dycl_tvm.frontend.trace.values.data_errors import refuse_if_caught
from dycl_tvm.frontend.trace.values.extents import (
    Extent,
    bounds_of,
    check_narrow,
    decided_length,
    extent_of,
    is_number_of_run,
    largest_of,
    selected,
    sliced,
    summed,
)
from dycl_tvm.frontend.trace.values.grown import Grown, grown, number
from dycl_tvm.frontend.trace.values.grown_math import (
    FILLING,
    IN_PLACE,
    Handler,
    dtype_of,
    elementwise,
    flat,
    is_contiguous,
    masked,
    new,
    rank_of,
    refuse_call,
    valid,
)
from dycl_tvm.frontend.trace.values.grown_math import HANDLERS as MATH
from dycl_tvm.frontend.trace.values.indexing import entries_of, getitem, selects, setitem
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import meta_of, meta_with
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.picked import by_mask, index_add, index_select, is_mask, masked_select, nonzero
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, home, peek, read, select_at, view_of

_T = torch.Tensor
#: Names by which NumPy calls arguments, which PyTorch takes too.
_NUMPYS = {"axis": "dim", "keepdims": "keepdim", "axis0": "dim0", "axis1": "dim1"}


def takes_grown(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a tensor whose length is known only at run time is among arguments, or a size that is."""
    sized = func in _SIZED
    if not (sized or current().growing):
        return False
    return any(isinstance(leaf, Grown) or (scalars.is_symbolic(leaf) and _may_be_size(leaf, sized)) for leaf in leaves((args, kwargs)))


def _may_be_size(x: Any, sized: bool) -> bool:
    bounds = scalars.bounds_of(x)
    return x.node.length is not None or (sized and bounds is not None and bounds[1] <= _MOST_ELEMENTS)


def call_on_grown(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch on tensors that grow, or with lengths as sizes; NotImplemented if it is a call like any other."""
    found = [t for t in tensors_of(args, kwargs) if isinstance(t, Grown)]
    handler = HANDLERS.get(func) if found else _SIZED.get(func)
    if handler is not None and handler is not elementwise:
        kwargs = {_NUMPYS.get(name, name): x for name, x in kwargs.items()}
        args = (kwargs.pop("input"), *args) if "input" in kwargs else args
        handler = handler if _takes(handler, (func, *args), kwargs) else None
    if handler is not None:
        if func in MATH and current().handlers:
            refuse_if_caught(func, map_tensors(_buffer, args), map_tensors(_buffer, kwargs))
        return handler(func, *args, **kwargs)
    return found[0].refuse(f"{getattr(func, '__name__', func)}() of") if found else NotImplemented


def _buffer(t: torch.Tensor) -> torch.Tensor:
    return t.padded() if isinstance(t, Grown) else t


def _takes(handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function is called as its handler knows it: with these arguments, of which ``t`` is a tensor that grows."""
    try:
        given = inspect.signature(handler).bind(*args, **kwargs).arguments
    except TypeError:
        return False
    return "t" not in given or isinstance(given["t"], Grown)


def _length(x: Any) -> Any:
    """Return a number of the run as a length: one that grows in a loop, or of which bounds are known; None for anything else."""
    if not scalars.is_symbolic(x):
        return None
    if x.node.length is not None or not _may_be_size(x, True):
        return x.node.length
    bounds = scalars.bounds_of(x) or (0, 0)
    require(x >= 0, RuntimeError("a tensor cannot have a negative dimension"))
    return extent_of(largest_of(x, 0), max(bounds[0], 0), max(bounds[1], 0))


#: Up to which number a dimension may be as long as a number of the run says.
_MOST_ELEMENTS = 1 << 16


# -- questions ------------------------------------------------------------------------------------------------------------
def _size(func: Any, t: Grown, dim: int | None = None) -> Any:
    sizes = t.sizes()
    return torch.Size(sizes) if dim is None else sizes[dim]


def _numel(func: Any, t: Grown) -> Any:
    return math.prod(n for d, n in enumerate(t.buffer.shape) if d != t.along) * number(t.length)


def _of_buffer(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    return func(t.padded(), *args, **kwargs)


# -- parts ------------------------------------------------------------------------------------------------------------------
def _indexed(func: Any, x: torch.Tensor, index: Any) -> Any:
    return _getitem(func, x, index) if isinstance(x, Grown) else getitem(x, index)


def _assigned(func: Any, x: torch.Tensor, index: Any, value: Any) -> Any:
    if not isinstance(x, Grown):
        return setitem(x, index, value)
    if x.storage_.cut and not isinstance(value, Grown):
        part = _getitem(_T.__getitem__, x, index)
        if isinstance(part, StagedTensor) and not isinstance(part, Grown) and part.storage_ is x.storage_:
            return _T.__setitem__(part, Ellipsis, to_tensor(value, part.dtype) if scalars.is_symbolic(value) else value)
    return refuse_call(func, x)


def _getitem(func: Any, t: Grown, index: Any) -> Any:
    entries = entries_of(t.dim_(), index)
    if len(entries) == 1 and is_mask(entries[0]):
        return by_mask(func, t, 0, entries[0])
    if entries and all(isinstance(e, torch.Tensor) and not selects(e) for e in entries):
        return _gather(func, t, entries)
    if any(not (e is None or type(e) in (int, slice) or selects(e)) for e in entries):
        return refuse_call(func, t)
    taken = sum(e is not None for e in entries)
    if taken > t.dim_():
        return refuse_call(func, t)
    entries += [slice(None)] * (t.dim_() - taken)
    at = next(i for i, e in enumerate(entries) if e is not None and sum(o is not None for o in entries[:i]) == t.along)
    mine, along = entries[at], sum(e is None or type(e) is slice for e in entries[:at])
    whole = getitem(t.padded(), tuple([slice(None) if i == at else e for i, e in enumerate(entries)]))
    if isinstance(whole, Grown):
        return whole.refuse("a second dimension of unknown length is made by a slice of")
    part = _slice(t, whole, along, mine) if type(mine) is slice else _select(t, whole, along, mine)
    assert isinstance(part, StagedTensor)
    if part.storage_ is not t.storage_ or not t.storage_.cut:  # a copy stands for a view
        part.storage_.growing = t.storage_.growing = t.length.counter.loop
    if not isinstance(part, Grown):
        part = part if t.contiguous_ and t.along == 0 else _placed(t, part, whole, along, keeps=type(mine) is slice)
    elif type(mine) is slice and mine == slice(None):
        part.below = t.below
    return view_of(t, part)


def _placed(t: Grown, part: StagedTensor, whole: torch.Tensor, along: int, keeps: bool) -> StagedTensor:
    """Return a part of fixed shape that lies in memory as one does of a tensor whose length is not known."""
    shape, around = tuple(part.shape), list(whole.shape)
    around[along] += 1
    dense, strides = (list(meta_of(tuple(n), None, part.dtype).stride()) for n in (shape, around))
    if not keeps:
        del strides[along]
    turned = meta_of(shape[::-1], None, part.dtype).stride()[::-1]
    found = [tuple(dense), tuple(strides), *([] if t.contiguous_ else [turned, tuple(2 * n for n in dense)])]
    return StagedTensor(meta_with(shape, part.dtype, found, t.length.counter.loop), part.storage_, part.chain, peek(part))


def _gather(func: Any, t: Grown, indices: list[torch.Tensor]) -> Any:
    """Read at positions, one for every dimension; those along the dimension that grows are known to lie in it."""
    at = indices[t.along] if len(indices) == t.dim_() else None
    if not isinstance(at, Grown) or at.below is None or combine("le", at.below, t.length) is not True:
        return refuse_call(func, t)
    from_end = at.dim_() - at.along
    others = [i for i in indices if i is not at]
    if any(isinstance(i, Grown) or i.dtype == torch.bool or (i.dim() >= from_end and i.shape[-from_end] != 1) for i in others):
        return refuse_call(func, t)
    positions = torch.clamp(at.padded(), max=t.buffer.shape[t.along] - 1)
    result = func(t.padded(), tuple([positions if i is at else i for i in indices]))
    return new(result, result.dim() - from_end, at.length)


def _select(t: Grown, whole: torch.Tensor, along: int, index: Any) -> torch.Tensor:
    length = t.length
    at = scalars.length_of(index)
    if isinstance(at, int):
        if 0 <= at < length.bounds[0]:
            return whole.select(along, at)
        at = length.plus(at) if -length.bounds[0] <= at < 0 else None
    known = at is not None and combine("ge", at, 0) is True and combine("lt", at, length) is True
    place = number(at) if known else selected(whole, along, length, index)  # type: ignore[arg-type]  # it is known
    return select_at(whole, *home(whole), along, read(to_tensor(place, torch.int64).reshape(1)))


def _slice(t: Grown, whole: torch.Tensor, along: int, part: slice) -> torch.Tensor:
    made = _slice_by_lengths(t, whole, along, part)
    if made is not None:
        return made
    if part.step not in (None, 1) or not all(b is None or type(b) is int or is_number_of_run(b) for b in (part.start, part.stop)):
        return refuse_call(torch.narrow, t)  # type: ignore[no-any-return]
    return sliced(whole, along, t.length, part)


def _slice_by_lengths(t: Grown, whole: torch.Tensor, along: int, part: slice) -> torch.Tensor | None:
    """Return a slice whose bounds are known to lie in the tensor in all trips; None if they are not."""
    length, least = t.length, t.length.bounds[0]
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
        positions = torch.arange(-start) + to_tensor(number(length.plus(start)), torch.int64)
        return torch.index_select(whole, along, positions)
    if start < 0 or combine("ge", stop, start) is not True:
        return None
    rest = whole.narrow(along, start, whole.shape[along] - start)
    return grown(rest, along, combine("sub", stop, start))  # type: ignore[arg-type]  # a length


def _cat(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
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
        return _as_known(known, first.padded().clone(), dim, first.length)
    whole, length = rest[0], extent_at(rest[0], first.dim_() - dim)
    assert length is not None
    whole = whole.padded() if isinstance(whole, Grown) else whole
    for t in rest[1:]:
        whole, length = _with_behind(whole, length, t, dim)
    return grown_or_plain(whole, dim, length, known)


def _with_behind(whole: torch.Tensor, length: Extent, t: torch.Tensor, dim: int) -> tuple[torch.Tensor, Extent]:
    """Return a buffer with another tensor behind what there is in it, and how much there is then."""
    added, more = (t.padded(), t.length) if isinstance(t, Grown) else (t, int(t.shape[dim]))
    total = summed(length, more)
    if isinstance(length, int):
        return torch.cat([whole, added], dim), total
    size = max(bounds_of(total)[1], whole.shape[dim])
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


def _stack(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = next(t for t in tensors if isinstance(t, Grown))
    if any(rank_of(t) != first.dim_() or (isinstance(t, Grown) and t.along != first.along) for t in tensors):
        return refuse_call(func, first)
    dim = dim % (first.dim_() + 1)
    buffers, length = equalized(tensors, [first.along] * len(tensors))
    return grown_or_plain(func(buffers, dim), first.along + (dim <= first.along), length, True)


def grown_or_plain(t: torch.Tensor, along: int, length: Extent, known: bool) -> torch.Tensor:
    """Return as much of a tensor as there is; whether it is ``known`` to be contiguous."""
    return t.narrow(along, 0, length) if isinstance(length, int) else _as_known(known, t, along, length)


def _as_known(known: bool, t: torch.Tensor, along: int, length: Length) -> Grown:
    """Return what grows of a tensor; whether it is ``known`` to be contiguous."""
    made = new(t, along, length)
    made.contiguous_ = known
    return made


# -- shapes -------------------------------------------------------------------------------------------------------------------
def _transpose(func: Any, t: Grown, dim0: int = -2, dim1: int = -1) -> Any:
    a, b = dim0 % t.dim_(), dim1 % t.dim_()
    return grown(t.padded().transpose(a, b), {a: b, b: a}.get(t.along, t.along), t.length)


def _matrix_transpose(func: Any, t: Grown) -> Any:
    return _transpose(func, t) if t.dim_() == 2 else refuse_call(func, t)


def _permute(func: Any, t: Grown, *sizes: Any, dims: Any = None) -> Any:
    order = [d % t.dim_() for d in flat(sizes if dims is None else (dims,))]
    return grown(t.padded().permute(order), order.index(t.along), t.length)


def _unsqueeze(func: Any, t: Grown, dim: int) -> Any:
    dim = dim % (t.dim_() + 1)
    return _as_known(t.contiguous_, t.padded().unsqueeze(dim), t.along + (dim <= t.along), t.length)


def _select_method(func: Any, t: Grown, dim: int, index: Any) -> Any:
    return _getitem(func, t, (*[slice(None)] * (dim % t.dim_()), index))


def _narrow(func: Any, t: Grown, dim: int, start: Any, length: Any) -> Any:
    start, length = [item(x) if isinstance(x, torch.Tensor) else x for x in (start, length)]
    if not all(type(x) is int or is_number_of_run(x) for x in (start, length)):
        return refuse_call(func, t)
    dim = dim % t.dim_()
    start = check_narrow(start, length, t.length if dim == t.along else t.buffer.shape[dim])
    return _getitem(func, t, (*[slice(None)] * dim, slice(start, start + length)))


def _expand(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    wanted = flat(sizes)
    if isinstance(x, Grown):
        along = x.along + len(wanted) - x.dim_()
        stays = type(wanted[along]) is int and wanted[along] == -1
        if not stays and not is_same(_length(wanted[along]), x.length):
            return refuse_call(func, x)
        wanted[along] = -1
        return grown(x.padded().expand(wanted), along, x.length) if _are_plain(wanted) else refuse_call(func, x)
    at, length = _one_length(wanted)
    if at is None or (x.dim() >= len(wanted) - at and x.shape[at - len(wanted)] != 1):
        return NotImplemented
    wanted[at] = _most(length)
    return grown(x.expand(wanted), at, length)


def _are_plain(sizes: Sequence[Any]) -> bool:
    return all(type(n) is int for n in sizes)


def _one_length(sizes: Sequence[Any]) -> tuple[int | None, Any]:
    """Return which size is a length, and the length; None if none is, or another is a number of the run."""
    at = [i for i, n in enumerate(sizes) if isinstance(_length(n), Length)]
    if len(at) != 1 or not _are_plain([n for i, n in enumerate(sizes) if i != at[0]]):
        return None, None
    return at[0], _length(sizes[at[0]])


def _reshape(func: Any, t: Grown, *sizes: Any) -> Any:
    wanted, shape = flat(sizes), list(t.buffer.shape)
    at, length = _one_length(wanted)
    others = math.prod(n for d, n in enumerate(shape) if d != t.along)
    if at is None and _are_plain(wanted) and wanted.count(-1) == 1 and math.prod(n for n in wanted if n != -1) == others:
        at, length = wanted.index(-1), t.length
    if at is None and len(asked := [i for i, n in enumerate(wanted) if scalars.is_symbolic(n)]) == 1 and -1 not in wanted:
        at, length = asked[0], t.length  # as many elements as there are
        require(number(t.length) == wanted[at], RuntimeError("the shape is invalid for the number of elements"))
    elif at is not None and not is_same(length, t.length) and -1 not in wanted:
        require(number(t.length) == wanted[at], RuntimeError("the shape is invalid for the number of elements"))
        length = t.length
    if at is None or not is_same(length, t.length):
        return refuse_call(func, t)
    if -1 in (left := [n for i, n in enumerate(wanted) if i != at]):
        rest = math.prod(n for n in left if n != -1)
        if left.count(-1) > 1 or rest == 0 or others % rest:
            return refuse_call(func, t)
        wanted = [others // rest if i != at and n == -1 else n for i, n in enumerate(wanted)]
    if math.prod(wanted[:at]) != math.prod(shape[: t.along]) or math.prod(wanted[at + 1 :]) != math.prod(shape[t.along + 1 :]):
        return refuse_call(func, t)
    wanted[at] = shape[t.along]
    if not t.contiguous_ and (at, wanted) != (t.along, shape):  # it is a view, or a copy
        if func is _T.view:
            return refuse_call(func, t)
        t.storage_.growing = t.length.counter.loop
    return _as_known(t.contiguous_, func(t.padded(), wanted), at, t.length)


def _flatten(func: Any, t: Grown, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % t.dim_(), end_dim % t.dim_()
    if first >= last:
        return t
    if math.prod(n for d, n in enumerate(t.buffer.shape) if first <= d <= last and d != t.along) == 1:
        return _reshape(_T.reshape, t, [*t.sizes()[:first], -1, *t.sizes()[last + 1 :]])
    if first <= t.along <= last:
        return refuse_call(func, t)
    rows = math.prod(t.buffer.shape[first : last + 1])
    return _reshape(_T.reshape, t, [*t.sizes()[:first], rows, *t.sizes()[last + 1 :]])


def _squeeze(func: Any, t: Grown, dim: Any = None) -> Any:
    dims = [d % t.dim_() for d in flat((dim,))] if dim is not None else []
    if dim is None or t.along in dims:  # it depends on the length
        return refuse_call(func, t)
    gone = [d for d in dims if t.buffer.shape[d] == 1]
    whole = t.padded()
    for d in sorted(gone, reverse=True):
        whole = whole.squeeze(d)
    return _as_known(t.contiguous_, whole, t.along - sum(d < t.along for d in gone), t.length)


def _item(func: Any, t: Grown) -> Any:
    others = math.prod(n for d, n in enumerate(t.buffer.shape) if d != t.along)
    require((number(t.length) == 1) & (others == 1), RuntimeError("only a tensor of one element can be converted to a number"))
    return item(t.padded().narrow(t.along, 0, 1).reshape(()))


def _in_place(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    functional, whole = IN_PLACE[func], t.padded()
    if not t.storage_.cut or kwargs.get("out") is not None:
        return refuse_call(func, t)
    made = functional(whole, *args, **kwargs) if functional in FILLING else elementwise(functional, t, *args, **kwargs)
    if isinstance(made, Grown) and (not is_same(made.length, t.length) or made.along != t.along or made.dim_() != t.dim_()):
        return refuse_call(func, t)
    result = made.padded() if isinstance(made, Grown) else made
    if tuple(result.shape) != tuple(whole.shape) or not torch.can_cast(result.dtype, whole.dtype):
        return refuse_call(func, t)
    _T.copy_(whole, torch.where(valid(t.length, whole.shape[t.along], t.dim_(), t.along), result.to(whole.dtype), whole))
    return t


def _pad(func: Any, t: Grown, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Pad with a number, behind what there is along the dimension that grows; to a fixed length too."""
    entries = list(pad)
    behind = 2 * (t.dim_() - 1 - t.along)
    left, right = entries[behind : behind + 2] or (0, 0)
    if mode == "constant" and type(left) is int and left > 0:
        shape = [left if d == t.along else n for d, n in enumerate(t.buffer.shape)]
        entries[behind] = 0
        return _pad(func, _cat(torch.cat, [torch.full(shape, value or 0, dtype=dtype_of(t)), t], t.along), entries, mode, value)
    added = scalars.length_of(right)
    entries[behind : behind + 2] = [0, 0] if entries[behind:] else []
    if mode != "constant" or scalars.is_symbolic(value) or not _are_plain([*entries, left]) or left or added is None or len(entries) % 2:
        return refuse_call(func, t)
    total = combine("add", t.length, added)
    if total is None or combine("ge", total, 0) is not True:
        return refuse_call(func, t)
    whole = func(masked(t.padded(), t.along, t.length, value or 0), entries, mode, value)
    missing = (total if isinstance(total, int) else total.bounds[1]) - whole.shape[t.along]
    whole = func(whole, [0] * (behind + 1) + [missing], mode, value)
    return whole if isinstance(total, int) else new(whole, t.along, total)


# -- items, one by one: how many there are is decided, so each number of them is a path of its own ---------------------------------
def _settled(t: Grown) -> torch.Tensor:
    return t.padded().narrow(t.along, 0, decided_length(t))


def _unbind(func: Any, t: Grown, dim: int = 0) -> Any:
    dim = dim % t.dim_()
    if dim == t.along:
        return _settled(t).unbind(dim)
    return tuple([_getitem(func, t, (*[slice(None)] * dim, i)) for i in range(t.buffer.shape[dim])])


def _iter(func: Any, t: Grown) -> Any:
    return iter(_unbind(func, t))


def _tolist(func: Any, t: Grown) -> Any:
    return _listed(_settled(t))


def _listed(t: torch.Tensor) -> Any:
    if t.numel() > _MOST_ITEMS:
        raise UnsupportedError(f"tolist() of up to {t.numel()} elements known only at run time", current().origin(), "work on the tensor")
    return item(t) if t.dim() == 0 else [_listed(row) for row in t.unbind(0)]


_MOST_ITEMS = 4096


# -- making tensors ------------------------------------------------------------------------------------------------------------
def _arange(func: Any, *args: Any, **kwargs: Any) -> Any:
    length = _length(args[0]) if len(args) == 1 else None
    if len(args) == 2 and not any(map(scalars.is_symbolic, kwargs.values())):
        start, end = map(scalars.length_of, args)
        count = combine("sub", end, start) if start is not None and end is not None else None
        if isinstance(count, int) and count >= 0 and kwargs.get("dtype") in (None, torch.int64, torch.int32):
            made = torch.arange(count, **kwargs)
            return made + to_tensor(args[0], made.dtype)
    if not isinstance(length, Length) or any(map(scalars.is_symbolic, kwargs.values())):
        return NotImplemented
    made = new(func(_most(length), **kwargs).clone(), 0, length)
    made.below = length if kwargs.get("dtype") in (None, torch.int64, torch.int32) else None
    return made


def _most(length: Length) -> int:
    """Return the largest length, of a tensor that has to have one in all trips."""
    if length.bounds[0] < 0:
        current().decisions.fork(length.counter.loop, "a tensor is made whose length may be negative in some trips of a loop")
    return length.bounds[1]


def _like(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    if "memory_format" in kwargs:
        return refuse_call(func, t)
    return _as_known(t.contiguous_, func(t.padded(), *args, **kwargs).clone(), t.along, t.length)


def _filled(func: Any, *args: Any, **kwargs: Any) -> Any:
    like, sizes = (args[:1], args[1:]) if args and isinstance(args[0], torch.Tensor) else ((), args)
    buffers = tuple(map(_buffer, like))
    sized, rest = (sizes[:1], sizes[1:]) if func in _WITH_NUMBER else (sizes, ())
    wanted = flat(sized) if sized else None
    if wanted is None or _are_plain(wanted):
        return func(*buffers, *sizes, **kwargs)
    at, length = _one_length(wanted)
    if at is None:
        return NotImplemented
    wanted[at] = _most(length)
    return new(func(*buffers, wanted, *rest, **kwargs).clone(), at, length)


_WITH_NUMBER = (torch.full, _T.new_full)
_PROPERTIES = ("dtype", "device", "layout", "requires_grad", "is_cuda", "is_sparse", "is_quantized", "is_nested", "is_meta", "ndim")


def _named(names: Sequence[str], *holders: Any) -> list[Any]:
    return [getattr(h, name) for name in names for h in holders]


HANDLERS: dict[Any, Handler] = {
    **MATH,
    **dict.fromkeys([getattr(_T, name).__get__ for name in _PROPERTIES], _of_buffer),
    **dict.fromkeys(_named(["dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device"], _T), _of_buffer),
    _T.shape.__get__: _size,  # type: ignore[attr-defined]
    _T.size: _size,
    _T.__len__: lambda func, t: _size(func, t, 0),
    **dict.fromkeys([_T.numel, _T.nelement, torch.numel], _numel),
    _T.__getitem__: _indexed,
    _T.__setitem__: _assigned,
    **dict.fromkeys([_T.nonzero, torch.nonzero], nonzero),
    torch.argwhere: nonzero,
    **dict.fromkeys([_T.masked_select, torch.masked_select], masked_select),
    **dict.fromkeys([_T.index_add, torch.index_add, _T.index_add_], index_add),
    **dict.fromkeys([_T.index_select, torch.index_select], index_select),
    **dict.fromkeys([F.pad, torch._C._nn.pad], _pad),
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], _cat),
    torch.stack: _stack,
    **dict.fromkeys([_T.unbind, torch.unbind], _unbind),
    **dict.fromkeys([_T.flatten, torch.flatten], _flatten),
    **dict.fromkeys([_T.squeeze, torch.squeeze], _squeeze),
    _T.item: _item,
    **dict.fromkeys(IN_PLACE, _in_place),
    _T.__iter__: _iter,
    _T.tolist: _tolist,
    **dict.fromkeys(_named(["transpose", "swapaxes", "swapdims"], _T, torch), _transpose),
    _T.mT.__get__: _transpose,  # type: ignore[attr-defined]
    **dict.fromkeys([_T.t, torch.t, _T.T.__get__], _matrix_transpose),  # type: ignore[attr-defined]
    **dict.fromkeys(_named(["select"], _T, torch), _select_method),
    **dict.fromkeys(_named(["narrow"], _T, torch), _narrow),
    **dict.fromkeys([torch.zeros_like, torch.ones_like, torch.full_like], _like),
    **dict.fromkeys([_T.permute, torch.permute], _permute),
    **dict.fromkeys([_T.unsqueeze, torch.unsqueeze], _unsqueeze),
    **dict.fromkeys([_T.expand, _T.broadcast_to], _expand),
    **dict.fromkeys([_T.reshape, _T.view, torch.reshape], _reshape),
    **dict.fromkeys([_T.new_ones, _T.new_zeros, _T.new_full], _filled),
}
#: Functions that take sizes, of tensors that do not grow.
_SIZED: dict[Any, Handler] = {
    torch.arange: _arange,
    **dict.fromkeys([torch.ones, torch.zeros, torch.full, _T.new_ones, _T.new_zeros, _T.new_full], _filled),
    **dict.fromkeys([_T.expand, _T.broadcast_to], _expand),
}
