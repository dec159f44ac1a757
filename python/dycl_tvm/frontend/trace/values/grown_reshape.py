# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Other shapes for the elements of tensors whose lengths are known only at run time: views of their buffers, or copies in order.

A dimension of unknown length that stays what it is divides the shape: what is before it and what is behind it get other shapes each by
itself, in the buffer. Where such a dimension is merged with others, or split up, the elements are moved to where the buffer of the new
shape has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import fitted, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, bounds_of, extent_of, largest_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    as_exact_as,
    at_front,
    count_in,
    dtype_of,
    flat,
    is_contiguous,
    moved_apart,
    multiplied,
    new_in,
    refuse_call,
)
from dycl_tvm.frontend.trace.values.grown_shapes import (
    are_plain,
    grown_or_plain,
    length_of_size,
    one_length,
    stands_for_a_view,
    without_open_size,
)
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.products import Factors, factors_of, without
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.tensors import storage_of

_T = torch.Tensor


def reshape(func: Any, t: Grown, *sizes: Any) -> Any:
    """Give the elements another shape."""
    wanted = flat(sizes)
    if any(isinstance(n, torch.dtype) for n in wanted):  # the same bytes as elements of another type
        return refuse_call(func, t)
    if not any(type(n) is int and n == -1 for n in wanted):
        without_open_size(wanted, "view() and reshape() mean what is left of the elements")
    if 0 in _sizes(t) and any(type(n) is int and n == 0 for n in wanted) and not any(type(n) is int and n == -1 for n in wanted):
        return _of_nothing(func, t, wanted)
    several = len(t.lengths) > 1 or sum(map(scalars.is_symbolic, wanted)) > 1
    return _of_several(func, t, wanted) if several else _of_one(func, t, wanted)


def flatten(func: Any, t: Grown, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge dimensions."""
    first, last = start_dim % t.dim_(), end_dim % t.dim_()
    if first >= last:
        return t
    merged = [d for d in t.lengths if first <= d <= last]
    count: Any = -1 if merged and len(t.lengths) == 1 else count_in(t, range(first, last + 1))
    return reshape(_T.reshape, t, [*t.sizes()[:first], count, *t.sizes()[last + 1 :]])


def _of_nothing(func: Any, t: Grown, wanted: list[Any]) -> Any:
    """Give no elements another shape of none: no size of it has to be one of the tensor's."""
    asked = [n if type(n) is int else length_of_size(n) for n in wanted]
    if None in asked:
        return refuse_call(func, t)
    made = new_in(torch.zeros([bounds_of(n)[1] for n in asked], dtype=dtype_of(t)), dict(enumerate(asked)))
    stands_for_a_view(made, t)
    return made


# -- one length ---------------------------------------------------------------------------------------------------------------
def _of_one(func: Any, t: Grown, wanted: list[Any]) -> Any:
    """Give a tensor with one length another shape with one."""
    wanted, shape = list(wanted), list(t.buffer.shape)
    at, length = one_length(wanted)
    others = math.prod(n for d, n in enumerate(shape) if d != t.along)
    if at is None and are_plain(wanted) and wanted.count(-1) == 1 and math.prod(n for n in wanted if n != -1) == others:
        at, length = wanted.index(-1), t.length
    asked = [i for i, n in enumerate(wanted) if scalars.is_symbolic(n)]
    free = [i for i, n in enumerate(wanted) if i != at and type(n) is int and n == -1]
    if at is not None and len(free) == 1 and (rest := math.prod(n for i, n in enumerate(wanted) if i not in (at, *free))):
        left = t.length.bounds[1] * others // max(bounds_of(length)[1] * rest, 1)
        if is_same(combine("mul", t.length, others), combine("mul", length, rest * left)):
            if not t.length.bounds[0] * others:
                require(
                    number(t.length) * others != 0, RuntimeError("cannot reshape tensor of 0 elements into a shape with a size to be found")
                )
            wanted[free[0]] = left
    if len(asked) == 1 and -1 not in wanted and isinstance(length, Length) and not is_same(length, t.length):
        if math.prod(n for i, n in enumerate(wanted) if i != asked[0]) != others:
            return _in_order(func, t, wanted)
        at = asked[0]
        require(number(t.length) == wanted[at], RuntimeError("the shape is invalid for the number of elements"))
        t = _as_long_as(t, t.along, length)
    if at is None or not is_same(length, t.length):
        return _in_order(func, t, wanted)
    if -1 in (left := [n for i, n in enumerate(wanted) if i != at]):
        rest = math.prod(n for n in left if n != -1)
        if left.count(-1) > 1 or rest == 0 or others % rest:
            return _in_order(func, t, wanted)
        wanted = [others // rest if i != at and n == -1 else n for i, n in enumerate(wanted)]
    if math.prod(wanted[:at]) != math.prod(shape[: t.along]) or math.prod(wanted[at + 1 :]) != math.prod(shape[t.along + 1 :]):
        wanted[at] = -1
        return _in_order(func, t, wanted)
    sizes: list[Extent] = [t.length if d == at else n for d, n in enumerate(wanted)]
    wanted[at] = t.buffer.shape[t.along]
    if not _is_joined(t, sizes):  # it is a view, or a copy
        if func is _T.view:
            return refuse_call(func, t)
        t.storage_.growing = t.decision
    return _viewed(t, sizes, as_exact_as(t, new_in(func(t.padded(), wanted), {at: t.length}, t.contiguous_)))


def _as_long_as(t: Grown, along: int, length: Length) -> Grown:
    """Return a tensor with another length along a dimension, which is as large in this call: the program asks for it by that."""
    whole = fitted(t.padded(), along, length.bounds[1])
    made: Grown = cut(whole, {**t.lengths, along: length})  # type: ignore[assignment]  # it has a length
    made.order, made.gaps, made.below = t.order, t.gaps, t.below
    stands_for_a_view(made, t)
    return made


def _in_order(func: Any, t: Grown, wanted: list[Any]) -> Any:
    """Give all elements, in their order, another shape, of which one size may follow from how many there are."""
    others = math.prod(n for d, n in enumerate(t.buffer.shape) if d != t.along)
    total, at = combine("mul", t.length, others), [d for d, n in enumerate(wanted) if type(n) is not int or n == -1]
    if not isinstance(total, Length) or len(at) > 1:
        return _of_several(func, t, wanted)
    wrong, row = RuntimeError("the shape is invalid for the number of elements"), math.prod(n for d, n in enumerate(wanted) if d not in at)
    if not row or (not at and func is _T.view and not t.contiguous_):
        return refuse_call(func, t)
    if not at or wanted[at[0]] != -1:
        require(number(total) == (row * wanted[at[0]] if at else row), wrong)
    size = _divided(total, row, wrong) if at else row
    if at and func is _T.view and not _is_joined(t, [size if d in at else n for d, n in enumerate(wanted)]):
        return refuse_call(func, t)
    if at and math.prod(wanted[: at[0]]) == math.prod(t.buffer.shape[: t.along]):
        return _in_rows(t, wanted, at[0], size)
    elements = at_front(t).reshape(-1)
    if not at:
        made = elements.narrow(0, 0, row).view(wanted) if row <= elements.shape[0] else refuse_call(func, t)
        stands_for_a_view(made, t)
        return made
    room, rows = bounds_of(size)[1], math.prod(wanted[: at[0]])
    if rows > 1 and isinstance(size, Length):  # each row is as long as it is at run time
        whole = moved_apart(elements, [size if d in at else n for d, n in enumerate(wanted)])
    else:
        whole = elements.narrow(0, 0, room * row).view([room if d in at else n for d, n in enumerate(wanted)])
    made = grown_or_plain(whole, at[0], size, True)
    stands_for_a_view(made, t)
    return made


def _in_rows(t: Grown, wanted: list[Any], at: int, size: Extent) -> Any:
    """Give what lies in the dimension of unknown length, and behind it, another shape: it stays at the front of its row of the buffer."""
    rows, room, behind = math.prod(wanted[:at]), bounds_of(size)[1], math.prod(wanted[at + 1 :])
    each = math.prod(t.buffer.shape[t.along :])
    whole = t.padded().reshape(rows, each)
    whole = whole if room * behind == each else whole.narrow(1, 0, room * behind)
    made = grown_or_plain(whole.reshape([room if d == at else n for d, n in enumerate(wanted)]), at, size, t.contiguous_)
    if not _is_joined(t, [size if d == at else n for d, n in enumerate(wanted)]):  # it is a view, or a copy
        t.storage_.growing = t.decision
    stands_for_a_view(made, t)
    return made


def _divided(total: Length, by: int, wrong: Exception) -> Extent:
    """Return how often a number goes into a length; it is an error at run time if something is left."""
    if total.factor % by == 0 and total.constant % by == 0:
        return Length(total.counter, total.factor // by, total.constant // by)
    n = number(total)
    require(n % by == 0, wrong)
    return extent_of(n // by, total.bounds[0] // by, total.bounds[1] // by)


# -- several lengths -----------------------------------------------------------------------------------------------------------
def _of_several(func: Any, t: Grown, wanted: list[Any]) -> Any:
    """Give a tensor another shape, where it has several lengths, or the shape has."""
    asked = [n if type(n) is int else length_of_size(n) for n in wanted]
    if None in asked or asked.count(-1) > 1:
        return refuse_call(func, t)
    if -1 in asked:
        asked[asked.index(-1)] = _left_over(func, t, asked)
    groups = _groups(_sizes(t), asked)
    if groups is None or not all(_is_view(t, asked, *group) for group in groups):
        if func is _T.view and not _is_joined(t, asked) and (aligned := _aligned(t, asked)) is not None:
            return _of_several(func, aligned, wanted)
        return _moved(func, t, asked, t.contiguous_ or (groups is not None and _is_in_order(t, groups)))
    whole, shape = t.padded(), [n if isinstance(n, int) else 0 for n in asked]
    cut_off = False
    for own, others in groups:
        at, length = [d for d in others if not isinstance(asked[d], int)], [d for d in own if d in t.lengths]
        if len(own) == len(others) == 1:  # it stays what it is
            shape[others[0]] = t.buffer.shape[own[0]]
            continue
        for d, w in zip(length, at):
            room, shape[w] = t.lengths[d].bounds[1], bounds_of(asked[w])[1]
            cut_off = cut_off or room != t.buffer.shape[d]
            whole = whole.narrow(d, 0, room)  # type: ignore[assignment]  # one of staging's
    in_order = t.contiguous_
    if not in_order and not all(t.is_joined(own) for own, _ in groups):  # it is a view, or a copy
        if func is _T.view:
            return refuse_call(func, t)
        t.storage_.growing, in_order = t.decision, _is_in_order(t, groups)
    made = new_in(whole.reshape(shape), {d: n for d, n in enumerate(asked) if isinstance(n, Length)}, in_order)
    if cut_off:
        stands_for_a_view(made, t)
    return _viewed(t, asked, as_exact_as(t, made))


def _viewed(t: Grown, asked: Sequence[Extent], made: torch.Tensor) -> torch.Tensor:
    """Return what has the elements of a tensor in another shape, in the order in memory that it has if it surely is a view."""
    groups = _groups(_sizes(t), asked)
    if not isinstance(made, Grown) or made.contiguous_ or t.order is None or groups is None:
        return made
    if not all(own and others and t.is_joined(own) for own, others in groups):
        return made
    of = {d: group for group in groups for d in group[0]}
    order: list[int] = []
    gaps: set[int] = set()
    for place, d in enumerate(t.order):
        others = of[d][1]
        again = others[0] in order
        if place in t.gaps:  # in the midst of dimensions that are one now, it is beside one of a single element: before them or behind
            gaps |= {order.index(others[0]), order.index(others[0]) + len(others)} if again else {len(order)}
        order += [] if again else list(others)
    made.order, made.gaps = tuple(order), frozenset(gaps | ({len(order)} if len(t.order) in t.gaps else set()))
    return made


def _aligned(t: Grown, asked: Sequence[Extent]) -> Grown | None:
    """Return a tensor with the length by which a program calls one of its dimensions, where it is not known that both are one number.

    Whether another shape is a view is known only if they are: a call in which they are not ends.
    """
    sizes = _sizes(t)
    differing = [d for d in t.lengths if d >= len(asked) or not is_same(sizes[d], asked[d])]
    length = asked[differing[0]] if len(differing) == 1 and differing[0] < len(asked) else None
    if not isinstance(length, Length) or not all(is_same(sizes[d], asked[d]) for d in range(differing[0])):
        return None
    limit(scalars.operand_of(number(t.lengths[differing[0]]) == number(length)), "view() of a tensor takes another size for its own")
    return _as_long_as(t, differing[0], length)


def _is_joined(t: Grown, asked: Sequence[Extent]) -> bool:
    """Whether eager surely gives a tensor such a shape without a copy: dimensions that are merged lie in memory as one."""
    groups = None if t.contiguous_ else _groups(_sizes(t), asked)
    return t.contiguous_ or (groups is not None and all(t.is_joined(own) for own, _ in groups))


def _is_in_order(t: Grown, groups: list[tuple[range, range]]) -> bool:
    """Whether eager's result surely lies in order: it is a copy, or a view only where lengths of 1 leave the others in order."""
    if t.order is None and t.orders:
        return all(order == tuple(range(t.dim_())) or _is_in_order_by(order, t, groups) for order in t.orders)
    return t.order is not None and not t.gaps and not t.below and _is_in_order_by(t.order, t, groups)


def _is_in_order_by(own_order: tuple[int, ...], t: Grown, groups: list[tuple[range, range]]) -> bool:
    if not all(1 in (len(own), len(others)) for own, others in groups):
        return False
    for count in range(len(t.lengths) + 1):
        for single in itertools.combinations(t.lengths, count):
            sizes = t.buffer.shape
            order = [d for d in own_order if d not in single and (d in t.lengths or sizes[d] != 1)]
            places = [[order.index(d) for d in own if d in order] for own, _ in groups]
            is_view = all(p == list(range(p[0], p[0] + len(p))) for p in places if p)
            if is_view and order != sorted(order):
                return False
    return True


def _groups(sizes: Sequence[Extent], wanted: Sequence[Extent]) -> list[tuple[range, range]] | None:
    """Return the fewest dimensions of one shape and another that have as many elements, from the first on; None if that is not known."""
    found, i, j = [], 0, 0
    while i < len(sizes) or j < len(wanted):
        a, b = i, j
        i, j = min(i + 1, len(sizes)), min(j + 1, len(wanted))
        while True:
            (n, lengths), (m, others) = without(_product(sizes[a:i]), _product(wanted[b:j]))
            if (n, lengths) == (m, others):
                break
            first = len(lengths) < len(others) if len(lengths) != len(others) else n < m
            apart = bool(lengths and others)  # which of the two is larger is not known
            more, others_more = i + (first or apart), j + (not first or apart)
            if more > len(sizes) or others_more > len(wanted):
                return None
            i, j = more, others_more
        found.append((range(a, i), range(b, j)))
    return found


def _is_view(t: Grown, asked: Sequence[Extent], own: range, others: range) -> bool:
    """Whether the elements of dimensions lie in the buffer of other ones as they do in that of a tensor: what is there is at its front."""
    lengths, left = [d for d in own if d in t.lengths], [d for d in others if not isinstance(asked[d], int)]
    if len(own) == len(others) == 1 or not (lengths or left):
        return True
    if len(lengths) != 1 or len(left) != 1:
        return False
    d, w = lengths[0], left[0]
    rooms = t.lengths[d].bounds[1], bounds_of(asked[w])[1]
    behind = [math.prod(sizes) for sizes in (t.buffer.shape[d + 1 : own.stop], asked[w + 1 : others.stop])]  # type: ignore[arg-type]
    return rooms[0] * behind[0] == rooms[1] * behind[1]  # so there is as much before them


def _moved(func: Any, t: Grown, asked: Sequence[Any], in_order: bool) -> Any:
    """Give all elements, in their order, another shape: they are moved together, and then to where the new buffer has them."""
    if func is _T.view and not _is_joined(t, asked):
        return refuse_call(func, t)
    sizes: list[Extent] = list(asked)
    own, others = without(_product(_sizes(t)), _product(sizes))
    if own != others:
        require(_number(own) == _number(others), RuntimeError("the shape is invalid for the number of elements"))
    rooms = [bounds_of(n)[1] for n in sizes]
    elements = at_front(t).reshape(-1)
    if not math.prod(rooms) or not elements.shape[0]:
        return refuse_call(func, t)
    if all(isinstance(n, int) for n in sizes[1:]):  # they lie in order in the new buffer
        whole = fitted(elements, 0, math.prod(rooms)).reshape(rooms)
    else:
        whole = moved_apart(elements, sizes)
    made = new_in(whole, dict(enumerate(sizes)), in_order)
    stands_for_a_view(made, t)
    return as_exact_as(t, made)


def _sizes(t: Grown) -> list[Extent]:
    return [t.lengths.get(d, n) for d, n in enumerate(t.buffer.shape)]


def _product(sizes: Iterable[Extent]) -> Factors:
    """Return what the number of elements of a shape is the product of."""
    made: Factors = (1, ())
    for n in sizes:
        of = factors_of(n)
        made = (made[0] * of[0], (*made[1], *of[1]))
    return made


def _left_over(func: Any, t: Grown, sizes: Sequence[Any]) -> Extent:
    """Return the size that is to be found: what the others leave of the number of elements."""
    wrong = RuntimeError("the shape is invalid for the number of elements")
    for size in sizes:
        if isinstance(size, Length) and size.bounds[0] < 1:
            require(number(size) != 0, RuntimeError("cannot reshape tensor of 0 elements into a shape with a size to be found"))
    (own, lengths), (others, more) = without(_product(_sizes(t)), _product([n for n in sizes if n != -1]))
    if not others:
        return refuse_call(func, t)  # type: ignore[no-any-return]
    if not more and own % others == 0 and not lengths:
        return own // others
    if not more and own % others == 0:
        return length_of_size(_number((own // others, lengths)))  # type: ignore[no-any-return]  # a product of lengths is one
    count, by = _number((own, lengths)), _number((others, more))
    require(count % by == 0, wrong)
    (low, high), (least, most) = (scalars.bounds_of(n) or (1, math.prod(t.buffer.shape)) for n in (count, by))
    return extent_of(count // by, low // max(most, 1), high // max(least, 1))


def _number(factors: Factors) -> Any:
    """Return a product as a number."""
    made, lengths = factors
    return made if not lengths else multiplied(lengths) if made == 1 else multiplied(lengths) * made


# -- no length -----------------------------------------------------------------------------------------------------------------
def reshape_plain(func: Any, x: torch.Tensor, *sizes: Any) -> Any:
    """Give a tensor of fixed shape another one, of which some sizes are numbers of the run."""
    asked = [n if type(n) is int else length_of_size(n) for n in flat(sizes)]
    if None in asked or asked.count(-1) > 1 or not x.numel() or (func is _T.view and not is_contiguous(x)):
        return NotImplemented
    lengths = [n for n in asked if isinstance(n, Length)]
    if not lengths:
        return func(x, asked)
    count, left = divmod(x.numel(), math.prod(n for n in asked if type(n) is int and n != -1) or x.numel() + 1)
    if left:
        return NotImplemented
    wrong, others = RuntimeError("the shape is invalid for the number of elements"), multiplied(lengths)
    if -1 in asked:
        least, most = [math.prod(n.bounds[k] for n in lengths) for k in (0, 1)]
        found = count // largest_of(others, 1)
        require(others * found == count, wrong)
        asked[asked.index(-1)] = extent_of(found, count // max(most, 1), count // max(least, 1))
    else:
        require(others == count, wrong)
        if len(lengths) == 1:  # there is one such number
            return func(x, [n if type(n) is int else count for n in asked])
    made = new_in(moved_apart(x.reshape(-1), asked), dict(enumerate(asked)))
    if isinstance(made, Grown):  # it stands for a view
        made.storage_.growing = storage_of(x).growing = made.decision
    return made


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([_T.flatten, torch.flatten], flatten),
    **dict.fromkeys([_T.reshape, _T.view, torch.reshape], reshape),
}
#: Of tensors of fixed shape, by sizes that are numbers of the run.
SIZED: dict[Any, Handler] = dict.fromkeys([_T.reshape, _T.view, torch.reshape], reshape_plain)
