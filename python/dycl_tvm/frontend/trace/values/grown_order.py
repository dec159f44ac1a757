# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What puts elements in another order, repeats them, or measures them, of tensors whose length is known only at run time.

Along that dimension what lies behind the length is made neutral: it is sorted last, counts nothing, and is no different element.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import equalized, fitted
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, extent_of, is_number_of_run, largest_of
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    as_row,
    buffer_of,
    check_not_empty,
    count_in,
    dtype_of,
    elementwise,
    filled,
    flat,
    left_of,
    masked,
    new,
    new_in,
    reduction,
    refuse_call,
    there_is,
    valid,
)
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.grown_shapes import cut_anew, length_of_size, most_of
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.picked import by_mask
from dycl_tvm.frontend.trace.values.recorder import item, known_bounds, to_tensor
from dycl_tvm.frontend.trace.values.tensors import fresh, read, view_of
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.orders import NAMESPACE
from dycl_tvm.hcfg.types import INT, TensorType

_T = torch.Tensor


def flip(func: Any, t: Grown, *sizes: Any, dims: Any = None) -> Any:
    """Turn dimensions round: along that of unknown length, the last that there is comes first."""
    turned = [d % t.dim_() for d in flat(sizes if dims is None else (dims,))]
    whole: torch.Tensor = t.padded()
    others = [d for d in turned if d not in t.lengths]
    whole = whole.flip(others) if others else whole
    for d, length in t.lengths.items():
        if d in turned:
            size = int(whole.shape[d])
            source = to_tensor(number(length), torch.int64) - 1 - torch.arange(size)
            whole = whole.index_select(d, source.clamp(0, max(size - 1, 0)))
    return new_in(whole.clone() if whole is t else whole, t.lengths, t.contiguous_)


def _last(t: Grown, dim: int, descending: bool) -> torch.Tensor:
    """Return a buffer in which what there is not along a dimension is sorted last: equal elements stay in order, NaN is the largest."""
    dtype = dtype_of(t)
    if dtype.is_floating_point:
        fill: Any = -math.inf if descending else math.nan
    elif dtype == torch.bool:
        fill = not descending
    else:
        fill = torch.iinfo(dtype).min if descending else torch.iinfo(dtype).max
    return filled(t, fill, [dim])


def sort(func: Any, t: Grown, dim: Any = -1, descending: bool = False, *, stable: Any = False) -> Any:
    """Sort, as PyTorch does on CPUs: equal elements stay in their order, whether that is asked for or not."""
    if type(dim) is not int or (t.is_floating() and dtype_of(t) not in (torch.float32, torch.float64)):
        return refuse_call(func, t)
    along = dim % t.dim_()
    whole = _last(t, along, bool(descending)) if along in t.lengths else t.padded()
    if func in _POSITIONS:
        made = [new_in(torch.argsort(whole, dim=dim, descending=bool(descending), stable=True), t.lengths, t.contiguous_)]
    else:
        parts = torch.sort(whole, dim=dim, descending=bool(descending), stable=True)
        made = [new_in(part, t.lengths, t.contiguous_) for part in parts]
    if along in t.lengths:
        made[-1].below = t.lengths[along]  # type: ignore[attr-defined]  # it has lengths
    return made[0] if func in _POSITIONS else torch.return_types.sort(tuple(made))  # type: ignore[attr-defined, arg-type]


def _pair(made: Any, t: Grown) -> Any:
    return type(made)([new_in(part, t.lengths) for part in made])


def topk(func: Any, x: torch.Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Take the largest, of as many as there are, as many as a number of the run says. Which of equal ones follows from both."""
    if type(dim) is not int or isinstance(k, torch.Tensor) or not rank_of(x):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    along = dim % rank_of(x)
    if isinstance(x, Grown) and along not in x.lengths:
        return _pair(func(x.padded(), k, dim, largest, sorted), x) if type(k) is int else refuse_call(func, x)
    length: Extent = x.lengths[along] if isinstance(x, Grown) else int(x.shape[along])
    (least, most), room = scalars.bounds_of(k) or (0, bounds_of(length)[1]) if is_symbolic(k) else (k, k), bounds_of(length)[1]
    if most > bounds_of(length)[0] or least < 0:
        require((k >= 0) & (k <= as_number(length)), RuntimeError("selected index k out of range"))
    count = extent_of(k, max(least, 0), min(most, room))
    whole, taken = buffer_of(x), bounds_of(count)[1]
    if not room or not taken or bounds_of(count)[0] > taken:
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    shape = list(whole.shape)
    around = [math.prod(shape[:along]), shape[along], math.prod(shape[along + 1 :])]
    numbers = [read(to_tensor(as_number(n), torch.int64)) for n in (length, count)]
    operands = [read(whole.reshape(around)), *numbers]
    types = [TensorType((around[0], taken, around[2]), d) for d in (buffer_type(x).dtype, "int64")]
    values = current().builder.tensor_op(f"{NAMESPACE}.topk.default", (*operands, taken, bool(largest), bool(sorted)), {}, types, operands)  # type: ignore[arg-type]
    known_bounds()[values[1]] = (0, room - 1)  # type: ignore[index]  # there are two
    parts = [fresh(v).view([*shape[:along], taken, *shape[along + 1 :]]).clone() for v in values]  # type: ignore[arg-type]
    lengths: dict[int, Extent] = {**(x.lengths if isinstance(x, Grown) else {}), along: count}
    made = [cut_anew(part, lengths, True) for part in parts]
    if isinstance(made[1], Grown):
        made[1].below = length
    return torch.return_types.topk(tuple(made))  # type: ignore[attr-defined, arg-type]


def roll(func: Any, t: Grown, shifts: Any, dims: Any = ()) -> Any:
    """Turn the elements round along dimensions, or all of them in their order."""
    by, along = flat((shifts,)), flat((dims,))
    if not along:
        with current().functions:
            return as_row(t).roll(by, 0).view(t.size())
    if len(by) != len(along) or not all(type(n) is int or is_number_of_run(n) for n in by):
        return refuse_call(func, t)
    whole: torch.Tensor = t.padded()
    for shift, dim in zip(by, along):
        along = dim % t.dim_()
        if along not in t.lengths and type(shift) is int:
            whole = whole.roll(shift, dim)
        elif size := int(whole.shape[along]):
            there = to_tensor(as_number(t.lengths.get(along, size)), torch.int64).clamp(min=1)
            whole = whole.index_select(along, (torch.arange(size) - to_tensor(shift, torch.int64)) % there)
    return new_in(whole.clone() if whole is t else whole, t.lengths)


def diff(func: Any, t: Grown, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Subtract each element from the next one."""
    if n != 1:
        return refuse_call(func, t)
    if prepend is not None or append is not None:
        with current().functions:
            return torch.cat([x for x in (prepend, t, append) if x is not None], dim).diff(dim=dim)
    along, made = dim % t.dim_(), func(t.padded(), dim=dim)
    if along not in t.lengths:
        return new_in(made, t.lengths, t.contiguous_)
    least, most = [max(size - 1, 0) for size in t.lengths[along].bounds]
    fewer = extent_of(largest_of(number(t.lengths[along]) - 1, 0), least, most)
    return cut_anew(made, {**t.lengths, along: fewer}, t.contiguous_)


def _taken(t: torch.Tensor, dim: int, at: Any) -> torch.Tensor:
    """Return the element at a place of the run along a dimension, which has one element then."""
    return t.index_select(dim, to_tensor(at, torch.int64).reshape(1).clamp(0, max(int(t.shape[dim]) - 1, 0)))


def median(func: Any, t: Grown, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the lower one of the elements in the middle, or NaN if there is one."""
    if dim is None:
        with current().functions:
            row = as_row(t)
        if not isinstance(row, Grown) or (not t.is_floating() and row.length.bounds[0] < 1):
            return refuse_call(func, t)
        return _middle(row, 0)[0].reshape(())
    if type(dim) is not int:
        return refuse_call(func, t)
    along = dim % t.dim_()
    if along not in t.lengths:
        return _reduced(func(t.padded(), dim, keepdim), t, along, keepdim)
    check_not_empty(func, t, dim, keepdim, along=along)
    made = _middle(t, along)
    return _reduced(torch.return_types.median(tuple([m if keepdim else m.squeeze(along) for m in made])), t, along, keepdim)  # type: ignore[attr-defined, arg-type]


def _middle(t: Grown, along: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.sort(_last(t, along, False), dim=along, stable=True)
    at = (number(t.lengths[along]) - 1) // 2
    if t.is_floating():
        whole = filled(t, 0, [along]).isnan()
        found, first = whole.any(along, True), whole.to(torch.int64).argmax(along, True)
        value, place = _taken(values, along, at), _taken(places, along, at)
        return torch.where(found, torch.full((), math.nan, dtype=value.dtype), value), torch.where(found, first, place)
    return _taken(values, along, at), _taken(places, along, at)


def _reduced(made: Any, t: Grown, along: int, keepdim: bool) -> Any:
    """Return the results of a reduction along a dimension, which have the lengths that are left."""
    return type(made)([new_in(part, left_of(t, [along], keepdim)) for part in made])


def kthvalue(func: Any, t: Grown, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the k-th element in order."""
    if type(k) is not int or k < 1:
        return refuse_call(func, t)
    along = dim % t.dim_()
    if along not in t.lengths:
        return _reduced(func(t.padded(), k, dim, keepdim), t, along, keepdim)
    for least in (1, k):
        check_not_empty(func, t, k, dim, keepdim, least=least, along=along)
    made = torch.sort(_last(t, along, False), dim=along, stable=True)
    if k > made[0].shape[along]:
        return refuse_call(func, t)
    parts = [m.narrow(along, k - 1, 1).clone() for m in made]
    return _reduced(torch.return_types.kthvalue(tuple([m if keepdim else m.squeeze(along) for m in parts])), t, along, keepdim)  # type: ignore[attr-defined, arg-type]


def quantile(func: Any, t: Grown, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """Return what so much of the elements is below of, between two of them."""
    if interpolation != "linear" or dtype_of(t) not in (torch.float32, torch.float64) or (dim is None and keepdim):
        return refuse_call(func, t)
    with current().functions:
        row = as_row(t) if dim is None else t
    along = 0 if dim is None else dim % t.dim_()
    if not isinstance(row, Grown):
        return refuse_call(func, t)
    q = q if isinstance(q, torch.Tensor) else to_tensor(q, dtype_of(t))
    if isinstance(q, Grown) or q.dim() > 1 or q.dtype != dtype_of(t):
        return refuse_call(func, t)
    left = {q.dim() + d: n for d, n in left_of(row, [along], keepdim).items()}
    for d in row.lengths:
        check_not_empty(func, row, 0.5, along, keepdim, along=d)
    if along not in row.lengths:
        return new_in(func(row.padded(), q, dim, keepdim), left, not q.dim())
    values = torch.sort(_last(row, along, False), dim=along, stable=True)[0]
    rank = q.reshape(-1) * to_tensor(number(row.lengths[along]) - 1, q.dtype)
    below = rank.floor()
    size = max(int(values.shape[along]) - 1, 0)
    low, high = [values.index_select(along, at.to(torch.int64).clamp(0, size)).movedim(along, -1) for at in (below, rank.ceil())]
    none = filled(row, 0, [along]).isnan().any(along).unsqueeze(-1)
    made = torch.where(none, torch.full((), math.nan, dtype=values.dtype), torch.lerp(low, high, rank - below)).movedim(-1, 0)
    made = made.unsqueeze(along + 1) if keepdim else made
    return new_in((made if q.dim() else made.squeeze(0)).clone(), left, not q.dim())  # PyTorch puts the results of several in front


def searchsorted(
    func: Any, row: torch.Tensor, input: torch.Tensor, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    """Return where elements would go in a row in order."""
    if sorter is not None or not isinstance(input, torch.Tensor) or rank_of(row) != 1:
        return refuse_call(func, row, input)
    values, there = buffer_of(input), buffer_of(row)
    if dtype_of(row) != dtype_of(input) or side not in (None, "left", "right"):
        return refuse_call(func, row, input)
    after = torch.gt if right or side == "right" else torch.ge
    size = int(there.shape[0])
    low, high = torch.zeros(values.shape, dtype=torch.int64), torch.zeros(values.shape, dtype=torch.int64)
    high = high + to_tensor(number(row.length) if isinstance(row, Grown) else size, torch.int64)
    for _ in range(size.bit_length()):  # PyTorch's own steps, which say where NaN and rows that are in no order lead to
        middle = (low + high) // 2
        found = after(there.index_select(0, middle.clamp(0, size - 1).reshape(-1)).reshape(values.shape), values)
        going = low < high
        low, high = torch.where(going & ~found, middle + 1, low), torch.where(going & found, middle, high)
    made = low.to(torch.int32) if out_int32 else low
    return new_in(made, input.lengths) if isinstance(input, Grown) else made


def bucketize(func: Any, input: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Return the buckets of elements."""
    return searchsorted(func, boundaries, input, out_int32=out_int32, right=right)


def isin(func: Any, elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Return which elements are among others, of which none is behind the end."""
    a, b = [t if isinstance(t, torch.Tensor) else torch.tensor(t) for t in (elements, test_elements)]
    equal = buffer_of(a).unsqueeze(-1) == buffer_of(b).reshape(-1)
    if isinstance(b, Grown):
        equal = equal & there_is(b).expand(b.buffer.shape).reshape(-1)
    found = equal.any(-1)
    found = ~found if invert else found
    return new_in(found, a.lengths) if isinstance(a, Grown) else found


def histc(func: Any, t: Grown, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Count elements in bins, which NaN is in none of."""
    if not (type(min) in (int, float) and type(max) in (int, float) and min < max) or not t.is_floating():
        return refuse_call(func, t)
    return func(filled(t, math.nan), bins, min, max)


def unfold(func: Any, t: Grown, dimension: int, size: int, step: int) -> Any:
    """Return windows: those that reach beyond the end are none."""
    along = dimension % t.dim_()
    if not all(type(n) is int for n in (size, step)):
        return refuse_call(func, t)
    whole = func(t.padded(), dimension, size, step) if t.buffer.shape[along] >= size else None
    if whole is None:
        return refuse_call(func, t)
    extents: dict[int, Extent] = {**t.lengths}
    if along in t.lengths:
        check_not_empty(func, t, dimension, size, step, least=size, along=along)
        least, most = [(builtins.max(n, size) - size) // step + 1 for n in t.lengths[along].bounds]
        extents[along] = extent_of((number(t.lengths[along]) - size) // step + 1, least, most)
    return view_of(t, cut(whole, extents))  # type: ignore[arg-type]  # one of staging's


def unique(
    func: Any, x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """Return the different elements in order, where each element went, and how many there are of each."""
    if isinstance(x, Grown) and x.dim_() > 1 and dim is None:
        return _of_row(func, x, sorted, return_inverse, return_counts)
    if dim is not None or sorted is not True or dtype_of(x).is_complex:
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    row = _last(x, 0, False) if isinstance(x, Grown) else x.reshape(-1)
    if not row.shape[0]:
        return NotImplemented
    in_order, source = torch.sort(row, stable=True)
    return _groups(func, x, in_order, source, return_inverse, return_counts)


def unique_consecutive(func: Any, x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    """Return one of each run of equal elements, in which run each element is, and how many there are in each."""
    if dim is not None and rank_of(x) == 1:
        dim = None if dim in (0, -1) else dim
    if isinstance(x, Grown) and x.dim_() > 1 and dim is None:
        return _of_row(func, x, return_inverse, return_counts)
    if dim is not None:
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    row = buffer_of(x).reshape(-1)
    return _groups(func, x, row, None, return_inverse, return_counts) if row.shape[0] else NotImplemented


def _of_row(func: Any, x: Grown, *flags: Any) -> Any:
    """Return the different elements of all that there are, in their order; where each of them went has their shape."""
    with current().functions:
        found = func(as_row(x), *flags)
        return (found[0], found[1].view(x.size()), *found[2:]) if flags[-2] else found


def _groups(func: Any, x: torch.Tensor, row: torch.Tensor, source: torch.Tensor | None, return_inverse: bool, return_counts: bool) -> Any:
    """Return the first of each run of equal elements of a row, whose elements ``source`` says where they come from."""
    size = int(row.shape[0])
    there = valid(x.length, size, 1, 0) if isinstance(x, Grown) else torch.ones(size, dtype=torch.bool)
    begins = torch.cat([torch.ones(1, dtype=torch.bool), row[1:] != row[:-1]]) & there
    found = by_mask(func, row, 0, begins)
    group = begins.to(torch.int64).cumsum(0) - 1
    results = [found]
    if return_inverse:
        inverse = group if source is None else torch.zeros(size, dtype=torch.int64).scatter(0, source, group)
        results.append(new(inverse, 0, x.length) if isinstance(x, Grown) else inverse.reshape(x.shape))
    if return_counts:
        counts = torch.zeros(size, dtype=torch.int64).scatter_add(0, group.clamp(min=0), there.to(torch.int64))
        results.append(new(counts, 0, found.length) if isinstance(found, Grown) else counts)
    return tuple(results) if len(results) > 1 else found


def bincount(func: Any, input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
    """Count how often there is each whole number from 0 on, or add up its weights: up to the largest, but ``minlength`` at least."""
    x, plain = input, not isinstance(input, Grown) and not isinstance(weights, Grown)
    if rank_of(x) != 1 or dtype_of(x).is_floating_point or dtype_of(x) == torch.bool or type(minlength) is not int or minlength < 0:
        return NotImplemented if plain else refuse_call(func, x)
    if plain and (not x.shape[0] or (weights is not None and x.shape != weights.shape)):
        return NotImplemented  # of no numbers the length is known; PyTorch says what is wrong
    if weights is not None and isinstance(x, Grown) and bounds_of(x.length)[0] < 1:
        return refuse_call(func, x)  # of no numbers PyTorch gives integers
    what: list[torch.Tensor] = [x] if weights is None else [x, weights]
    known = elements().of(read(buffer_of(x)))
    (at, *added), length = (what, None) if plain else equalized(what, [0] * len(what))
    at = at.to(torch.int64)
    there = valid(length, int(at.shape[0]), 1, 0) if isinstance(length, Length) else None
    if there is not None:
        at = torch.where(there, at, -1)
    if known is None or known[0] < 0:
        negative = at < 0 if there is None else (at < 0) & there
        require(item(~negative.any()), RuntimeError("bincount only supports 1-d non-negative integral inputs."))
    if known is not None and known[1] < minlength:
        size: Any = minlength
    else:
        most = scalars.emit("item", read((at.max() + 1).clamp(min=minlength)), type_=INT, text=OF_SHAPE)
        most.node.bounds = None if known is None else (minlength, max(known[1] + 1, minlength))
        size = length_of_size(most)
    room = most_of(size) if isinstance(size, Length) else size
    value = torch.ones(at.shape, dtype=torch.int64) if weights is None else added[0]
    value = value if value.dtype in (torch.int64, torch.float32) and (weights is None or value.dtype == torch.float32) else value.double()
    # what is behind the end goes to one more place, which is taken off again
    at = torch.where((at < 0) | (at >= room), room, at)
    made = torch.zeros(room + 1, dtype=value.dtype).scatter_add(0, at, value)[:room].clone()
    return new(made, 0, size) if isinstance(size, Length) else made


def repeat(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    """Repeat the whole along each dimension, as often as a number says that may be known only at run time."""
    wanted = flat(sizes)
    if func not in _REPEAT:  # the one that takes fewer
        wanted = [1] * (rank_of(x) - len(wanted)) + wanted
    more = len(wanted) - rank_of(x)
    if more < 0 or not all(type(n) is int or is_number_of_run(n) for n in wanted):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    own = {d + more: n for d, n in x.lengths.items()} if isinstance(x, Grown) else {}
    if not own and not any(map(is_symbolic, wanted)):
        return NotImplemented
    plain = [n if type(n) is int and d not in own else 1 for d, n in enumerate(wanted)]
    whole = buffer_of(x).repeat(plain)
    extents: dict[int, Extent] = dict(own)
    for d, times in enumerate(wanted):
        if type(times) is int and (d not in own or times == 1):
            continue
        there = own.get(d, int(whole.shape[d]))
        extents[d] = total = _times(there, times)
        room = most_of(total) if isinstance(total, Length) else total
        if not whole.shape[d] or not room:
            whole = fitted(whole, d, room)
            continue
        at = torch.arange(room) % to_tensor(as_number(there), torch.int64).clamp(min=1)
        whole = whole.index_select(d, at)
    return new_in(whole, extents)


def _times(length: Extent, times: Any) -> Extent:
    """Return a length as often as a number says, which is not negative."""
    of = length_of_size(times) if is_symbolic(times) else times
    known = combine("mul", length, of) if isinstance(of, int) or isinstance(length, int) else None
    if known is not None:
        return known  # type: ignore[return-value]  # a product is a length
    made = as_number(length) * as_number(of)
    return length_of_size(made) if is_symbolic(made) else made  # type: ignore[no-any-return]


def repeat_interleave(func: Any, x: torch.Tensor, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    """Repeat each element or row: as often as a number says, or each as often as its element of a tensor says."""
    if is_symbolic(repeats) and not isinstance(x, Grown):
        repeats = to_tensor(repeats, torch.int64).expand(x.numel() if dim is None else x.shape[dim])
    if isinstance(repeats, torch.Tensor):
        return _repeated(func, x, repeats, dim, output_size)
    if isinstance(x, Grown) and dim is None and x.dim_() > 1:
        with current().functions:
            return as_row(x).repeat_interleave(repeats)
    return _all_repeated(func, x, repeats, dim) if isinstance(x, Grown) else NotImplemented


def _repeated(func: Any, x: torch.Tensor, repeats: torch.Tensor, dim: Any, output_size: Any) -> Any:
    if dim is None:
        x, dim = (x if rank_of(x) == 1 else refuse_call(func, x)) if isinstance(x, Grown) else x.reshape(-1), 0
    dim = dim % rank_of(x)
    if isinstance(x, Grown) and x.along != dim:
        return refuse_call(func, x)
    if output_size is not None or dtype_of(repeats) not in (torch.int64, torch.int32) or rank_of(repeats) != 1:
        return refuse_call(func, x, repeats) if isinstance(x, Grown) or isinstance(repeats, Grown) else NotImplemented
    if not isinstance(x, Grown) and not isinstance(repeats, Grown) and x.shape[dim] != repeats.shape[0]:
        return NotImplemented  # PyTorch says what is wrong, or repeats all rows as often
    (whole, times), length = equalized([x, repeats], [dim, 0])
    if isinstance(length, Length):
        times = masked(times, 0, length, 0)
    room = int(times.shape[0])
    if not room:
        return whole.clone()
    ends, most = times.to(torch.int64).cumsum(0), elements().of(read(times))
    total = scalars.emit("item", read(torch.where((times < 0).any(), -1, ends[-1])), type_=INT, text=OF_SHAPE)
    if most is not None:
        total.node.bounds = (0 if most[0] >= 0 else -1, max(most[1], 0) * room)
    if most is None or most[0] < 0:
        require(total >= 0, RuntimeError("repeats can not be negative"))
    count = length_of_size(total)
    if not isinstance(count, Length):
        return whole.narrow(dim, 0, count)
    source = torch.searchsorted(ends, torch.arange(most_of(count)), right=True)
    return new(whole.index_select(dim, source.clamp(max=room - 1)), dim, count)


def _all_repeated(func: Any, t: Grown, repeats: Any, dim: Any) -> Any:
    if not (type(repeats) is int and repeats > 0) and not is_number_of_run(repeats):
        return refuse_call(func, t)
    dim, whole = 0 if dim is None else dim % t.dim_(), t.padded()
    own = t.lengths.get(dim, int(whole.shape[dim]))
    total = _times(own, repeats)
    room = most_of(total) if isinstance(total, Length) else total
    source = (torch.arange(room) // to_tensor(repeats, torch.int64).clamp(min=1)).clamp(max=int(whole.shape[dim]) - 1)
    made = whole.index_select(dim, source) if room and whole.shape[dim] else fitted(whole, dim, room)
    return new_in(made, {**t.lengths, dim: total})


# -- measures -------------------------------------------------------------------------------------------------------------
def vector_norm(func: Any, x: Grown, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the norm of vectors: zeros are no part of one, nor infinities of one whose order is below zero."""
    if type(ord) not in (int, float) or ord != ord or dtype is not None:
        return refuse_call(func, x)
    dims = list(range(x.dim_())) if dim is None else [d % x.dim_() for d in flat((dim,))]
    for d in x.lengths:
        if d in dims and (ord == math.inf or ord < 0):  # of no elements there is none
            given = [ord] if dim is None and not keepdim else [ord, dim, keepdim]
            check_not_empty(torch.linalg.vector_norm, x, *given, along=d)
    made = torch.linalg.vector_norm(filled(x, math.inf if ord < 0 else 0, dims), ord, dims, keepdim)
    return new_in(made, left_of(x, dims, keepdim))


def norm(func: Any, input: Grown, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None) -> Any:
    """``torch.norm``: of all elements, or along dimensions."""
    if out is not None:
        return refuse_call(func, input)
    p = 2 if p is None or p == "fro" else p
    return vector_norm(func, input, p, dim, keepdim, dtype=dtype)


def linalg_norm(func: Any, input: Grown, *order: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """``torch.linalg.norm`` of all elements, or of vectors along a dimension."""
    return norm(func, input, 2, dim, keepdim) if not order and not isinstance(dim, (tuple, list)) else refuse_call(func, input)


def normalize(func: Any, input: Grown, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """Divide by norms."""
    if out is not None or type(dim) is not int:
        return refuse_call(func, input)
    size = vector_norm(func, input, p, dim, True)
    least = elementwise(torch.clamp_min, size, eps) if isinstance(size, Grown) else size.clamp_min(eps)
    return elementwise(torch.div, input, least)


def count_nonzero(func: Any, t: Grown, dim: Any = None) -> Any:
    """Count what is not zero, which PyTorch does without ``keepdim``."""
    return reduction(lambda dtype: 0)(torch.sum, elementwise(torch.ne, t, 0), dim)


def logsumexp(func: Any, t: Grown, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithms of sums of exponentials; what is behind the end has none."""
    return reduction(lambda dtype: -math.inf)(func, t, dim, keepdim) if t.is_floating() else refuse_call(func, t)


def spread(func: Any, t: Grown, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Variance and standard deviation: along the dimension of unknown length, the mean of squares is taken of what there is."""
    if type(dim) is bool and unbiased is None:  # var(x, False)
        dim, unbiased = None, dim
    if type(dim) is bool or dtype_of(t) not in (torch.float32, torch.float64) or type(correction) not in (type(None), int):
        return refuse_call(func, t)
    less = (1 if unbiased is None or unbiased else 0) if correction is None else correction
    dims = list(range(t.dim_())) if dim is None else [d % t.dim_() for d in flat((dim,))]
    left = left_of(t, dims, keepdim)
    if len(left) == len(t.lengths):
        return new_in(func(t.padded(), dims, correction=less, keepdim=keepdim), left)
    whole = t.padded().double()  # as PyTorch adds up
    count = to_tensor(count_in(t, dims), torch.float64)

    def there(x: torch.Tensor) -> torch.Tensor:
        return filled(cut(x, t.lengths), 0, dims)  # type: ignore[arg-type]  # it has lengths

    mean = there(whole).sum(dims, True) / count
    total = there((whole - mean) ** 2).sum(dims, keepdim)
    variance = total / (count - less).clamp(min=0)
    return new_in((variance.sqrt() if func in (torch.std, _T.std) else variance).to(dtype_of(t)), left)


_POSITIONS = (torch.argsort, _T.argsort)
_REPEAT = (_T.repeat,)
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([torch.flip, _T.flip], flip),
    **dict.fromkeys([torch.sort, _T.sort, *_POSITIONS], sort),
    **dict.fromkeys([torch.topk, _T.topk], topk),
    **dict.fromkeys([torch.unique, _T.unique], unique),
    **dict.fromkeys([torch.unique_consecutive, _T.unique_consecutive], unique_consecutive),
    **dict.fromkeys(named("bincount", torch, _T), bincount),
    **dict.fromkeys([_T.repeat, torch.tile, _T.tile], repeat),
    **dict.fromkeys([torch.repeat_interleave, _T.repeat_interleave], repeat_interleave),
    **dict.fromkeys(named("roll", torch, _T), roll),
    **dict.fromkeys(named("diff", torch, _T), diff),
    **dict.fromkeys(named("median", torch, _T), median),
    **dict.fromkeys(named("kthvalue", torch, _T), kthvalue),
    **dict.fromkeys(named("quantile", torch, _T), quantile),
    torch.searchsorted: searchsorted,
    torch.bucketize: bucketize,
    **dict.fromkeys(named("isin", torch, _T), isin),
    **dict.fromkeys(named("histc", torch, _T), histc),
    _T.unfold: unfold,
    torch.linalg.vector_norm: vector_norm,
    torch.linalg.norm: linalg_norm,
    **dict.fromkeys([torch.norm, _T.norm], norm),
    F.normalize: normalize,
    **dict.fromkeys([torch.logsumexp, _T.logsumexp], logsumexp),
    **dict.fromkeys([torch.prod, _T.prod], reduction(lambda dtype: 1)),
    **dict.fromkeys([torch.count_nonzero, _T.count_nonzero], count_nonzero),
    **dict.fromkeys([torch.std, _T.std, torch.var, _T.var], spread),
}
