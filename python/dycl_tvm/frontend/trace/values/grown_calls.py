# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's functions on tensors that grow in a loop: each is computed on the buffers, so that the result has the same part that matters.

What mixes elements along the dimension that grows (a sum, a softmax, a product) masks what lies behind the length. A function that is not
here unrolls the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import leaves, map_tensors, tensors_of
from dycl_tvm.frontend.trace.values.grown import Grown, grown, number
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.recorder import to_tensor
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, home, read, select_at, view_of

_T = torch.Tensor
Handler = Callable[..., Any]


def takes_grown(args: Any, kwargs: Any) -> bool:
    """Whether a tensor that grows, or a size that does, is among arguments."""
    return any(isinstance(leaf, Grown) or isinstance(_length(leaf), Length) for leaf in leaves((args, kwargs)))


def call_on_grown(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch on tensors that grow, or with lengths as sizes; NotImplemented if it is a call like any other."""
    found = [t for t in tensors_of(args, kwargs) if isinstance(t, Grown)]
    handler = HANDLERS.get(func) if found else _SIZED.get(func)
    if handler is not None:
        return handler(func, *args, **kwargs)
    return found[0].refuse(f"{getattr(func, '__name__', func)}() of") if found else NotImplemented


def _length(x: Any) -> Any:
    return scalars.length_of(x) if scalars.is_symbolic(x) else None


def _refuse(func: Any, *tensors: Any) -> Any:
    found = next(t for t in tensors_of(tensors) if isinstance(t, Grown))
    return found.refuse(f"this way of calling {getattr(func, '__name__', func)}() with")


def _is_same(a: Any, b: Any) -> bool:
    return a is not None and b is not None and (a == b if isinstance(a, int) and isinstance(b, int) else combine("sub", a, b) == 0)


def _valid(length: Length, size: int, rank: int, along: int) -> torch.Tensor:
    """Return which elements of a buffer there are, along one dimension: a mask that broadcasts."""
    shape = [size if d == along else 1 for d in range(rank)]
    return torch.arange(size).reshape(shape) < to_tensor(number(length), torch.int64)


def _masked(t: torch.Tensor, along: int, length: Length, fill: Any) -> torch.Tensor:
    """Return a buffer with a number in the place of what there is not."""
    return torch.where(_valid(length, t.shape[along], t.dim(), along % t.dim()), t, torch.full((), fill, dtype=t.dtype))


# -- questions ------------------------------------------------------------------------------------------------------------
def _size(func: Any, t: Grown, dim: int | None = None) -> Any:
    sizes = t.sizes()
    return torch.Size(sizes) if dim is None else sizes[dim]


def _numel(func: Any, t: Grown) -> Any:
    return math.prod(n for d, n in enumerate(t.buffer.shape) if d != t.along) * number(t.length)


def _of_buffer(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    return func(t.padded(), *args, **kwargs)


# -- element by element ------------------------------------------------------------------------------------------------------
def _elementwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = tensors_of(args, kwargs)
    found = [t for t in tensors if isinstance(t, Grown)]
    first = found[0]
    from_end = first.dim_() - first.along
    size = min(t.buffer.shape[t.along] for t in found)
    for t in tensors:
        if isinstance(t, Grown):
            fits = t.dim_() - t.along == from_end and _is_same(t.length, first.length)
        else:
            fits = t.dim() < from_end or t.shape[-from_end] == 1
        if not fits:
            return _refuse(func, first)

    def buffer(t: torch.Tensor) -> torch.Tensor:
        return t.padded().narrow(t.along, 0, size) if isinstance(t, Grown) else t

    result = func(*map_tensors(buffer, args), **map_tensors(buffer, kwargs))
    made = grown(result, result.dim() - from_end, first.length)
    if first.below is not None and func in _ADDITIONS and type(args[1]) is int and args[1] >= 0:
        made.below = first.below.plus(args[1])  # type: ignore[attr-defined]  # it grows
    return made


_ADDITIONS = (_T.__add__, _T.add, torch.add)


# -- parts ------------------------------------------------------------------------------------------------------------------
def _getitem(func: Any, t: Grown, index: Any) -> Any:
    entries = list(index) if isinstance(index, tuple) else [index]
    if entries and all(isinstance(e, torch.Tensor) for e in entries):
        return _gather(func, t, entries)
    if any(not (e is None or e is Ellipsis or type(e) in (int, slice) or scalars.is_symbolic(e)) for e in entries):
        return _refuse(func, t)
    taken = sum(e is not None and e is not Ellipsis for e in entries)
    rest = [slice(None)] * (t.dim_() - taken)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[at : at + 1] = rest
    if len(entries) != taken + len(rest) + sum(e is None for e in entries):
        return _refuse(func, t)
    dim, along, mine = 0, 0, slice(None)
    others: list[Any] = []
    for e in entries:
        if e is not None and dim == t.along:
            mine, along = e, sum(type(o) is not int for o in others)
            e = slice(None)
        if scalars.is_symbolic(e) or (type(e) is slice and any(map(scalars.is_symbolic, (e.start, e.stop, e.step)))):
            return _refuse(func, t)
        others.append(e)
        dim += e is not None
    whole = t.padded()[tuple(others)]
    part = _select(t, whole, along, mine) if not isinstance(mine, slice) else _slice(t, whole, along, mine)
    assert isinstance(part, StagedTensor)
    part.storage_.growing = t.length.counter.loop
    if isinstance(part, Grown) and type(mine) is slice and mine == slice(None):
        part.below = t.below
    return view_of(t, part)


def _gather(func: Any, t: Grown, indices: list[torch.Tensor]) -> Any:
    """Read at positions, one for every dimension; those along the dimension that grows are known to lie in it."""
    at = indices[t.along] if len(indices) == t.dim_() else None
    if not isinstance(at, Grown) or at.below is None or combine("le", at.below, t.length) is not True:
        return _refuse(func, t)
    from_end = at.dim_() - at.along
    others = [i for i in indices if i is not at]
    if any(isinstance(i, Grown) or (i.dim() >= from_end and i.shape[-from_end] != 1) for i in others):
        return _refuse(func, t)
    positions = torch.clamp(at.padded(), max=t.buffer.shape[t.along] - 1)
    result = func(t.padded(), tuple([positions if i is at else i for i in indices]))
    return grown(result, result.dim() - from_end, at.length)


def _select(t: Grown, whole: torch.Tensor, along: int, index: Any) -> torch.Tensor:
    length = t.length
    at = scalars.length_of(index)
    if isinstance(at, int):
        if 0 <= at < length.bounds[0]:
            return whole.select(along, at)
        at = length.plus(at) if -length.bounds[0] <= at < 0 else None
    if at is None or combine("ge", at, 0) is not True or combine("lt", at, length) is not True:
        return _refuse(torch.select, t)  # type: ignore[no-any-return]
    position = read(to_tensor(number(at), torch.int64).reshape(1))
    return select_at(whole, *home(whole), along, position)


def _slice(t: Grown, whole: torch.Tensor, along: int, part: slice) -> torch.Tensor:
    length, least = t.length, t.length.bounds[0]
    start, stop = scalars.length_of(part.start or 0), length if part.stop is None else scalars.length_of(part.stop)
    if part.step not in (None, 1) or not isinstance(start, int) or stop is None or abs(start) > least:
        return _refuse(torch.narrow, t)  # type: ignore[no-any-return]
    if isinstance(stop, int):
        if stop >= 2**62 or stop >= length.bounds[1]:
            stop = length
        elif 0 <= stop <= least and 0 <= start <= stop:
            return whole.narrow(along, start, stop - start)
        elif -least <= stop < 0:
            stop = length.plus(stop)
    if isinstance(stop, int) or (stop != length and combine("le", stop, length) is not True):
        return _refuse(torch.narrow, t)  # type: ignore[no-any-return]
    if start < 0 and stop == length:
        positions = torch.arange(-start) + to_tensor(number(length.plus(start)), torch.int64)
        return torch.index_select(whole, along, positions)
    if start < 0 or combine("ge", stop, start) is not True:
        return _refuse(torch.narrow, t)  # type: ignore[no-any-return]
    rest = whole.narrow(along, start, whole.shape[along] - start)
    return grown(rest, along, combine("sub", stop, start))  # type: ignore[arg-type]  # a length


def _cat(func: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    found = [t for t in tensors if isinstance(t, Grown)]
    first = found[0]
    dim = dim % first.dim_()
    if dim != first.along:
        if len(found) < len(tensors) or any(t.along != first.along or not _is_same(t.length, first.length) for t in found):
            return _refuse(func, first)
        size = min(t.buffer.shape[t.along] for t in found)
        return grown(func([t.padded().narrow(t.along, 0, size) for t in found], dim), first.along, first.length)
    rest = [t for t in tensors if isinstance(t, Grown) or t.dim() > 1 or t.shape[0]]  # PyTorch leaves out what is empty and of rank 1
    if len(found) > 1 or rest[0] is not first or any(t.dtype != first.dtype for t in rest):
        return _refuse(func, first)
    if len(rest) == 1:
        return grown(first.padded().clone(), dim, first.length)
    new = func(rest[1:], dim)
    length = first.length.plus(new.shape[dim])
    buffer: torch.Tensor = first.padded()
    missing = length.bounds[1] - buffer.shape[dim]
    if missing > 0:
        buffer = F.pad(buffer, [0, 0] * (buffer.dim() - 1 - dim) + [0, missing])
    size = buffer.shape[dim]
    start = to_tensor(number(first.length), torch.int64)
    positions = torch.arange(size)
    shape = [size if d == dim else 1 for d in range(buffer.dim())]
    if new.shape[dim] == 1:
        return grown(torch.where(positions.reshape(shape) == start, new, buffer), dim, length)
    shifted = positions - start
    moved = torch.index_select(new, dim, shifted.clamp(0, new.shape[dim] - 1))
    inside = ((shifted >= 0) & (shifted < new.shape[dim])).reshape(shape)
    return grown(torch.where(inside, moved, buffer), dim, length)


# -- shapes -------------------------------------------------------------------------------------------------------------------
def _transpose(func: Any, t: Grown, a: int, b: int) -> Any:
    a, b = a % t.dim_(), b % t.dim_()
    return grown(t.padded().transpose(a, b), {a: b, b: a}.get(t.along, t.along), t.length)


def _permute(func: Any, t: Grown, *dims: Any) -> Any:
    order = [d % t.dim_() for d in _flat(dims)]
    return grown(t.padded().permute(order), order.index(t.along), t.length)


def _unsqueeze(func: Any, t: Grown, dim: int) -> Any:
    dim = dim % (t.dim_() + 1)
    return grown(t.padded().unsqueeze(dim), t.along + (dim <= t.along), t.length)


def _flat(sizes: tuple[Any, ...]) -> list[Any]:
    return list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)


def _expand(func: Any, t: torch.Tensor, *sizes: Any) -> Any:
    wanted = _flat(sizes)
    if isinstance(t, Grown):
        along = t.along + len(wanted) - t.dim_()
        stays = type(wanted[along]) is int and wanted[along] == -1
        if not stays and not _is_same(_length(wanted[along]), t.length):
            return _refuse(func, t)
        wanted[along] = -1
        return grown(t.padded().expand(wanted), along, t.length) if _are_plain(wanted) else _refuse(func, t)
    at, length = _one_length(wanted)
    if at is None or (t.dim() >= len(wanted) - at and t.shape[at - len(wanted)] != 1):
        return NotImplemented
    wanted[at] = length.bounds[1]
    return grown(t.expand(wanted).clone(), at, length)


def _are_plain(sizes: Sequence[Any]) -> bool:
    return all(type(n) is int for n in sizes)


def _one_length(sizes: Sequence[Any]) -> tuple[int | None, Any]:
    """Return which size is a length, and the length; None if none is, or another is a number of the run."""
    at = [i for i, n in enumerate(sizes) if isinstance(_length(n), Length)]
    if len(at) != 1 or not _are_plain([n for i, n in enumerate(sizes) if i != at[0]]):
        return None, None
    return at[0], _length(sizes[at[0]])


def _reshape(func: Any, t: Grown, *sizes: Any) -> Any:
    wanted, shape = _flat(sizes), list(t.buffer.shape)
    at, length = _one_length(wanted)
    others = math.prod(n for d, n in enumerate(shape) if d != t.along)
    if at is None and _are_plain(wanted) and wanted.count(-1) == 1 and math.prod(n for n in wanted if n != -1) == others:
        at, length = wanted.index(-1), t.length
    if at is None or not _is_same(length, t.length):
        return _refuse(func, t)
    if -1 in (left := [n for i, n in enumerate(wanted) if i != at]):
        rest = math.prod(n for n in left if n != -1)
        if left.count(-1) > 1 or rest == 0 or others % rest:
            return _refuse(func, t)
        wanted = [others // rest if i != at and n == -1 else n for i, n in enumerate(wanted)]
    if math.prod(wanted[:at]) != math.prod(shape[: t.along]) or math.prod(wanted[at + 1 :]) != math.prod(shape[t.along + 1 :]):
        return _refuse(func, t)
    wanted[at] = shape[t.along]
    return grown(func(t.padded(), wanted), at, t.length)


# -- what mixes elements --------------------------------------------------------------------------------------------------------
def _matmul(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if min(_rank(a), _rank(b)) < 2:
        return _refuse(func, a, b)
    rank = max(_rank(a), _rank(b))
    in_a = a.along - a.dim_() if isinstance(a, Grown) else None
    in_b = b.along - b.dim_() if isinstance(b, Grown) else None
    if in_a == -1 or in_b == -2:
        if not (isinstance(a, Grown) and isinstance(b, Grown) and (in_a, in_b) == (-1, -2) and _is_same(a.length, b.length)):
            return _refuse(func, a, b)
        size = min(a.buffer.shape[-1], b.buffer.shape[-2])
        left, right = a.padded().narrow(-1, 0, size), b.padded().narrow(-2, 0, size)
        return func(_masked(left, left.dim() - 1, a.length, 0), _masked(right, right.dim() - 2, b.length, 0))
    if in_a is not None and in_b is not None:
        return _refuse(func, a, b)
    if isinstance(a, Grown) and in_a == -2:
        return grown(func(a.padded(), b), rank - 2, a.length)
    if isinstance(b, Grown) and in_b == -1:
        return grown(func(a, b.padded()), rank - 1, b.length)
    return _refuse(func, a, b)


def _rank(t: torch.Tensor) -> int:
    return t.dim_() if isinstance(t, Grown) else t.dim()


def _softmax(func: Any, t: Grown, dim: int, *args: Any, **kwargs: Any) -> Any:
    buffer: torch.Tensor = t.padded()
    if dim % t.dim_() == t.along:
        if not t.is_floating():
            return _refuse(func, t)
        buffer = _masked(buffer, t.along, t.length, -math.inf)
    return grown(func(buffer, dim, *args, **kwargs), t.along, t.length)


def _reduction(neutral: Callable[[torch.dtype], Any]) -> Handler:
    def handler(func: Any, t: Grown, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        buffer: torch.Tensor = t.padded()
        dims = list(range(t.dim_())) if dim is None else [d % t.dim_() for d in _flat((dim,))]
        if t.along in dims:
            buffer = _masked(buffer, t.along, t.length, neutral(buffer.dtype))
            return func(buffer, **kwargs) if dim is None else func(buffer, dim, keepdim, **kwargs)
        along = t.along if keepdim else t.along - sum(d < t.along for d in dims)
        return grown(func(buffer, dim, keepdim, **kwargs), along, t.length)

    return handler


def _attention(
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Attention over keys and values that grow: those that there are not are masked."""
    if not (isinstance(key, Grown) and isinstance(value, Grown)) or isinstance(query, Grown):
        return _refuse(func, query, key, value)
    if is_causal or key.along != key.dim_() - 2 or value.along != value.dim_() - 2 or not _is_same(key.length, value.length):
        return _refuse(func, query, key, value)
    size = min(key.buffer.shape[-2], value.buffer.shape[-2])
    keys, values = [_masked(t.padded().narrow(-2, 0, size), t.dim_() - 2, t.length, 0) for t in (key, value)]
    mask = _valid(key.length, size, 2, 1)
    if isinstance(attn_mask, Grown):
        if attn_mask.along != attn_mask.dim_() - 1 or not _is_same(attn_mask.length, key.length):
            return _refuse(func, key)
        given: torch.Tensor = attn_mask.padded()
        given = given.narrow(-1, 0, size) if given.shape[-1] >= size else F.pad(given, (0, size - given.shape[-1]))
        mask = mask & given if given.dtype == torch.bool else torch.where(mask, given, torch.full((), -math.inf, dtype=given.dtype))
    elif attn_mask is not None:
        if attn_mask.shape[-1] != 1:
            return _refuse(func, key)
        mask = (
            mask & attn_mask
            if attn_mask.dtype == torch.bool
            else torch.where(mask, attn_mask, torch.full((), -math.inf, dtype=attn_mask.dtype))
        )
    else:
        mask = mask.expand(query.shape[-2], size)
    return func(query, keys, values, mask, dropout_p, False, **kwargs)


# -- making tensors ------------------------------------------------------------------------------------------------------------
def _arange(func: Any, *args: Any, **kwargs: Any) -> Any:
    length = _length(args[0]) if len(args) == 1 else None
    if not isinstance(length, Length) or any(map(scalars.is_symbolic, kwargs.values())):
        return NotImplemented
    made = grown(func(length.bounds[1], **kwargs).clone(), 0, length)
    made.below = length  # type: ignore[attr-defined]  # it grows
    return made


def _filled(func: Any, *args: Any, **kwargs: Any) -> Any:
    like, sizes = (args[:1], args[1:]) if args and isinstance(args[0], torch.Tensor) else ((), args)
    buffers = tuple([t.padded() if isinstance(t, Grown) else t for t in like])
    sized, rest = (sizes[:1], sizes[1:]) if func in _WITH_NUMBER else (sizes, ())
    wanted = _flat(sized) if sized else None
    if wanted is None or _are_plain(wanted):
        return func(*buffers, *sizes, **kwargs)
    at, length = _one_length(wanted)
    if at is None:
        return NotImplemented
    wanted[at] = length.bounds[1]
    return grown(func(*buffers, wanted, *rest, **kwargs).clone(), at, length)


_WITH_NUMBER = (torch.full, _T.new_full)
_NAMES = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "neg",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sigmoid",
    "tanh",
    "relu",
    "sin",
    "cos",
    "pow",
    "square",
    "reciprocal",
    "erf",
    "clamp",
    "clip",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_not",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_not",
    "where",
    "masked_fill",
    "minimum",
    "maximum",
    "isnan",
    "isinf",
    "isfinite",
    "floor",
    "ceil",
    "round",
    "sign",
    "clone",
]
_METHODS = [
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "bool",
    "contiguous",
    "detach",
    "type_as",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__neg__",
    "__pow__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__and__",
    "__rand__",
    "__or__",
    "__ror__",
    "__xor__",
    "__invert__",
    "__abs__",
]
_PROPERTIES = ("dtype", "device", "layout", "requires_grad", "is_cuda", "is_sparse", "is_quantized", "is_nested", "is_meta", "ndim")


def _named(names: Sequence[str], *holders: Any) -> list[Any]:
    return [getattr(h, name) for name in names for h in holders if hasattr(h, name)]


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([*_named(_NAMES, torch, _T), *_named(_METHODS, _T)], _elementwise),
    **dict.fromkeys([getattr(_T, name).__get__ for name in _PROPERTIES], _of_buffer),
    **dict.fromkeys(_named(["dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device"], _T), _of_buffer),
    _T.shape.__get__: _size,  # type: ignore[attr-defined]
    _T.size: _size,
    _T.__len__: lambda func, t: _size(func, t, 0),
    **dict.fromkeys([_T.numel, _T.nelement, torch.numel], _numel),
    _T.__getitem__: _getitem,
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], _cat),
    **dict.fromkeys(_named(["transpose", "swapaxes", "swapdims"], _T, torch), _transpose),
    **dict.fromkeys([_T.permute, torch.permute], _permute),
    **dict.fromkeys([_T.unsqueeze, torch.unsqueeze], _unsqueeze),
    **dict.fromkeys([_T.expand, _T.broadcast_to], _expand),
    **dict.fromkeys([_T.reshape, _T.view, torch.reshape], _reshape),
    **dict.fromkeys([torch.matmul, _T.matmul, _T.__matmul__, torch.bmm, _T.bmm], _matmul),
    **dict.fromkeys([torch.softmax, _T.softmax, F.softmax], _softmax),
    **dict.fromkeys([torch.sum, _T.sum], _reduction(lambda dtype: 0)),
    **dict.fromkeys([torch.all, _T.all], _reduction(lambda dtype: True)),
    **dict.fromkeys([torch.any, _T.any], _reduction(lambda dtype: False)),
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys([_T.new_ones, _T.new_zeros, _T.new_full], _filled),
}
#: Functions that take sizes, of tensors that do not grow.
_SIZED: dict[Any, Handler] = {
    torch.arange: _arange,
    **dict.fromkeys([torch.ones, torch.zeros, torch.full, _T.new_ones, _T.new_zeros, _T.new_full], _filled),
    **dict.fromkeys([_T.expand, _T.broadcast_to], _expand),
}
