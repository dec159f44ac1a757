# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lengths that are any number of the run within bounds, and the parts of tensors that such numbers bound.

A part that begins at the front is the front of a buffer. One that begins elsewhere is a view of its own kind (:class:`NarrowAt`), as long
as it can be at most.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.deciding import Deciding, can_be_tried, known_length
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.grown import Grown, OfTheRun, grown, number, rank_of
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import marks_of, meta_of, with_marks
from dycl_tvm.frontend.trace.values.lengths import Counter, Length, combine
from dycl_tvm.frontend.trace.values.products import difference_of
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor
from dycl_tvm.frontend.trace.values.tensors import OwnStep, StagedTensor, as_constant, emit_one, home, read, view_of
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import INT, TensorType

aten = torch.ops.aten
Extent = Length | int


# -- lengths ------------------------------------------------------------------------------------------------------------------
def as_number(extent: Extent) -> Any:
    """Return a length as a number of the run, or plain."""
    return number(extent) if isinstance(extent, Length) else extent


def bounds_of(extent: Extent) -> tuple[int, int]:
    """Return the least and the largest that a length may be."""
    return extent.bounds if isinstance(extent, Length) else (extent, extent)


def extent_of(n: Any, least: int, most: int) -> Extent:
    """Return a number of the run, of which these bounds are known, as a length."""
    known = scalars.length_of(n)
    if known is not None and (isinstance(known, int) or (known.bounds[0] >= least and known.bounds[1] <= most)):
        return known
    value = scalars.operand_of(n)
    if least == most or not isinstance(value, Value):
        return most if isinstance(value, Value) else int(value)
    base, factor, constant = n.node.base, 1, 0
    if n.node.form is not None and n.node.form.of_one()[1] != 1:
        root, factor, constant = n.node.form.of_one()
        host_op, base = current().builder.host_op, (root, 0)
        value = host_op("floordiv", (host_op("sub", (value, constant), INT), factor), INT)  # nothing is left over
        ends = sorted([(least - constant) / factor, (most - constant) / factor])
        least, most = math.ceil(ends[0]), math.floor(ends[1])
    told = current().get(Deciding).of(base[0])
    least, most = told.within(least, most, base[1])
    made = Length(Counter(value, most, OfTheRun(), first=least, base=base, known=told), factor, constant)
    return made.at(most) if least == most else made


class _Sizes(OfOneRun):
    """What is known of the elements of integer tensors of rank 0 that were computed of lengths."""

    def __init__(self) -> None:
        self.known: dict[Value, Extent] = {}


def is_size(x: Any) -> bool:
    """Whether PyTorch takes a tensor as a size, and its element is known only at run time."""
    return isinstance(x, StagedTensor) and not rank_of(x) and x.dtype in INTEGERS and as_constant(x) is None


def as_size(t: torch.Tensor) -> Any:
    """Return the element of a tensor of rank 0 that is a size, or a place: as it was computed of lengths, a length too."""
    known = current().get(_Sizes).known.get(read(t))
    return item(t) if known is None else as_number(known)


def sum_with_size(func: Any, a: Any, b: Any) -> Any:
    """Add or subtract a length and a tensor of rank 0, of which it may be known how far they are from each other."""
    result = func(a, b)
    x, y = (b, a) if func is _T.__rsub__ else (a, b)
    both = [near(x, y), near(y, x)]
    if is_size(result) and result.dtype == torch.int64 and None not in both:
        known = combine("sub" if func in SUBTRACTIONS else "add", *both)  # type: ignore[arg-type]  # both are lengths
        if known is not None:
            current().get(_Sizes).known[read(result)] = known  # type: ignore[assignment]  # a sum is a length
    return result


def size_divided(func: Any, x: Any, k: Any, *, rounding_mode: Any = None) -> Any:
    """Divide a length by a number: what is rounded is a length again, though it is a tensor."""
    result = func(x, k, rounding_mode=rounding_mode)
    if type(k) is int and k > 0 and rounding_mode in ("floor", "trunc") and is_size(result) and ends_of(x)[0] >= 0:
        least, most = ends_of(x // k)
        current().get(_Sizes).known[read(result)] = extent_of(x // k, least, most)
    return result


def compared_with_size(func: Any, a: Any, b: Any) -> Any:
    """Compare a tensor of rank 0 with a length that it may be known to be."""
    sizes = [near(a, b), near(b, a)] if is_size(a) or is_size(b) else [None]
    known = None if None in sizes else combine(COMPARISONS[func], *sizes)  # type: ignore[arg-type]  # both are lengths
    return func(a, b) if known is None else torch.tensor(known)


_T = torch.Tensor
COMPARISONS = {getattr(_T, f"__{name}__"): name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
SUBTRACTIONS = (_T.__sub__, _T.__rsub__, _T.sub, torch.sub)
DIVISIONS = (torch.div, torch.divide)
ADDITIONS = (_T.__add__, _T.__radd__, _T.add, torch.add)


def near(x: Any, other: Any) -> Extent | None:
    """Return a number, or the element of a tensor of rank 0, as a length by the counter of another; None if that is not known."""
    length = other if isinstance(other, Length) else scalars.length_of(other)
    root: Value | None
    if is_size(x):
        root, more = read(x), 0
        known = current().get(_Sizes).known.get(root)
    else:
        known = scalars.length_of(x)
        root, more = x.node.base if scalars.is_symbolic(x) else (None, 0)
    if known is None and isinstance(length, Length) and length.counter.base is not None and length.counter.base[0] is root:
        return Length(length.counter, 1, more - length.counter.base[1])
    return known


def summed(a: Extent, b: Extent) -> Extent:
    """Return the sum of two lengths."""
    known = combine("add", a, b)
    if known is not None:
        return known  # type: ignore[return-value]  # a sum is a length
    (least_a, most_a), (least_b, most_b) = bounds_of(a), bounds_of(b)
    return extent_of(as_number(a) + as_number(b), least_a + least_b, most_a + most_b)


def ends_of(x: Any) -> tuple[int, int]:
    """Return the least and the largest that an int may be."""
    return scalars.bounds_of(x) or (-(2**63), 2**63 - 1)


def _place(bound: Any, length: Any) -> Any:
    """Return the place that the bound of a slice names in a dimension of a length, by Python's rules."""
    if isinstance(grows := scalars.length_of(bound), Length) and type(length) is int and _is_within(grows, length):
        return bound
    if scalars.is_symbolic(bound) and bound.node.length is None:
        current().decisions.count_trips()
    least, most = ends_of(bound)
    longest = ends_of(length)
    if least < 0:
        wrapped = bound + length
        bound = wrapped if most < 0 else scalars.select(bound < 0, wrapped, bound)
        # one that may be either is between 0 and `most`, or that far from the end
        ends = (least + longest[0], most + longest[1]) if most < 0 else (min(least + longest[0], 0), max(most, longest[1] - 1))
        bound = _bounded(bound, *ends)
    return least_of(largest_of(bound, 0), length)


def _is_within(length: Length, size: int) -> bool:
    """Whether a length is within a size in all trips of its loop, or may be claimed to be: that is proved with the loop's bound."""
    if combine("ge", length, 0) is not True:
        return False
    if combine("le", length, size) is True:
        return True
    rolling = [r.loop for r in current().decisions.rolling]
    block, trips = current().builder.block, length.most_trips(size)
    if block is None or not length.counter.proves or length.counter.loop not in rolling or length.factor < 0 or trips < 0:
        return False
    length.counter.claims.append((block, trips))
    return True


def difference(a: Any, b: Any) -> int | None:
    """Return how much larger one number is than another; None if that is not known."""
    if not (scalars.is_symbolic(a) and scalars.is_symbolic(b)):
        return None
    if a.node.base[0] is b.node.base[0]:
        return int(a.node.base[1] - b.node.base[1])
    known = difference_of(a, b)
    return known[0] if known is not None and known[0] == known[1] else None


def least_of(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers."""
    least, most = _by(a, b)
    return a if most <= 0 else b if least >= 0 else extremum([a, b], largest=False)


def largest_of(a: Any, b: Any) -> Any:
    """Return the larger of two numbers."""
    least, most = _by(a, b)
    return a if least >= 0 else b if most <= 0 else extremum([a, b], largest=True)


def _by(a: Any, b: Any) -> tuple[int, int]:
    """Return the least and the most by which one number may be larger than another."""
    (least_a, most_a), (least_b, most_b) = ends_of(a), ends_of(b)
    least, most = difference_of(a, b) or (least_a - most_b, most_a - least_b)
    return max(least, least_a - most_b), min(most, most_a - least_b)


def _bounded(x: Any, least: int, most: int) -> Any:
    if scalars.is_symbolic(x) and x.node.length is None:
        x.node.bounds = (least, most)
    return x


def is_number_of_run(x: Any) -> bool:
    """Whether a bound of a slice is a number, or an integer tensor of rank 0, that is known only at run time."""
    if isinstance(x, torch.Tensor):
        return x.dim() == 0 and x.dtype in INTEGERS
    return scalars.is_symbolic(x) and bool(x.node.is_int())


#: Not bool, which Python takes as 0 and 1, and not uint8.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def decided(counter: Counter) -> int:
    """Return what a counter is on the path at hand: each number that it may be is a path of its own."""
    found = scalars.wrap(counter.value)
    return counter.known.decide(counter.root[1], counter.first, counter.last, lambda n: scalars.truth_operand(found == n))


def decided_length(t: Grown, along: int) -> int:
    """Return how long a tensor is along a dimension, where Python has to know it."""
    length, what = t.lengths[along], "Python takes the items one by one of"
    counter = length.counter
    known = known_length(length, lambda: t.refuse(what))
    if known is not None:
        return known
    if not can_be_tried(counter) or not isinstance(counter.loop, OfTheRun):
        t.refuse(what)
    return length.at(decided(counter))


# -- parts ----------------------------------------------------------------------------------------------------------------------
def span(length: Extent, part: slice) -> tuple[Any, Extent]:
    """Return where a slice of step 1 begins in a dimension of a length, and how long it is."""
    bounds = [as_size(b) if isinstance(b, torch.Tensor) else b for b in (part.start, part.stop)]
    there = as_number(length)
    least, most = ends_of(there)
    start = 0 if bounds[0] is None else _place(bounds[0], there)
    stop = there if bounds[1] is None else _place(bounds[1], there)
    count = stop - start if not (type(start) is int and start == 0) else stop
    ends = [ends_of(stop)[0] - ends_of(start)[1], ends_of(stop)[1] - ends_of(start)[0]]
    if bounds[1] is None and type(bounds[0]) is int and bounds[0] < 0:
        ends = [min(least, -bounds[0]), min(most, -bounds[0])]
    elif (step := difference(bounds[1], bounds[0])) is not None and (step >= 0 or ends_of(bounds[1])[0] >= 0 or ends_of(bounds[0])[1] < 0):
        ends[1] = min(ends[1], step)  # not x[n : n - 1], which for an n of 0 ends just before the end
    if bounds[0] is not None and (first := ends_of(bounds[0])[0]) > 0:  # a slice that begins behind the end has nothing
        ends[1] = min(ends[1], max(ends_of(stop)[1] - first, 0))
    if isinstance(claimed := scalars.length_of(count), Length) and type(start) is int and start == 0:
        return start, claimed
    if not scalars.is_symbolic(count):
        ends = [count, count]
    elif bounds[1] is not None and ends[0] < 0:
        count = scalars.select(count > 0, count, 0)
    ends = [max(0, min(ends[0], most)), max(0, min(ends[1], most))]
    return start, extent_of(_bounded(max(count, 0) if type(count) is int else count, ends[0], ends[1]), ends[0], ends[1])


def sliced(whole: torch.Tensor, along: int, length: Extent, part: slice) -> torch.Tensor:
    """Return a slice of step 1 along a dimension of which there is so much."""
    start, taken = span(length, part)
    size = int(whole.shape[along])
    if type(part.start) is int and part.start >= 0:  # beyond the end there is nothing, wherever it begins
        start = min(part.start, size)
    if scalars.is_symbolic(start):
        return grown(narrow_at(whole, along, start, bounds_of(taken)[1]), along, taken)
    return grown(whole.narrow(along, start, size - start), along, taken)


def selected(whole: torch.Tensor, along: int, length: Extent, index: Any) -> Any:
    """Return an index into a dimension of which there is so much, as a number that is within it; another is an IndexError."""
    index = item(index) if isinstance(index, torch.Tensor) else index
    there = as_number(length)
    (least, most), shortest = ends_of(index), ends_of(there)[0]
    if not (least >= -shortest and most < shortest):
        inside = index >= 0 if most < 0 else index < there if least >= 0 else (index >= -there) & (index < there)
        inside = index >= -there if most < 0 else inside
        require(inside, IndexError("index out of range of a dimension whose length is known only at run time"))
    return index + there if most < 0 else index if least >= 0 else scalars.select(index < 0, index + there, index)


def check_narrow(start: Any, count: Any, length: Extent) -> Any:
    """Return where ``narrow()`` begins; what eager refuses is an error at run time."""
    there = as_number(length)
    if ends_of(count)[0] < 0:
        require(count >= 0, RuntimeError("narrow(): length must be non-negative."))
    least, largest = ends_of(start)
    if not (least >= 0 and largest <= ends_of(there)[0]) and not _surely(start, 0, length):
        require((start >= -there) & (start <= there), IndexError("start is out of the range of the dimension"))
    start = start if least >= 0 else scalars.select(start < 0, start + there, start)
    if not (largest + ends_of(count)[1] <= bounds_of(length)[0] and least >= 0) and not _surely(start, count, length):
        require(start + count <= there, RuntimeError("start + length exceeds the size of the dimension"))
    return start


def _surely(start: Any, count: Any, length: Extent) -> bool:
    """Whether a part is known to lie within a length, as far as its end goes."""
    parts = [near(start, length), near(count, length)]
    end = combine("add", *parts) if None not in parts else None  # type: ignore[arg-type]  # both are lengths
    return end is not None and combine("le", end, length) is True and combine("ge", parts[0], 0) is True  # type: ignore[arg-type]


def narrowed_at(whole: torch.Tensor, along: int, length: Extent, start: Any, count: Any) -> torch.Tensor:
    """Return so many elements from a place on, which were checked to lie in a dimension of which there is so much."""
    size, most = int(whole.shape[along]), bounds_of(length)[1]
    least, largest = scalars.bounds_of(count) or (0, most)
    extent = extent_of(count, max(least, 0), min(largest, max(most - max(ends_of(start)[0], 0), 0)))
    room = bounds_of(extent)[1]
    part = narrow_at(whole, along, start, room) if scalars.is_symbolic(start) else whole.narrow(along, start, size - start)
    return grown(part, along, extent)


class NarrowAt(OwnStep):
    """The view operator of a part that begins at a number of the run; what would lie behind the end is the last element again."""

    _opname = "a slice at a run-time position"

    def read(self, base: Value, dim: int, start: Value, count: int) -> Value:
        type_ = base.type
        assert isinstance(type_, TensorType)
        positions = self._shifted(start, count, 1, type_.shape[dim] - 1)
        return emit_one(aten.index_select.default, (base, dim, positions), _with(type_, dim, count))

    def write(self, base: Value, value: Value, dim: int, start: Value, count: int) -> Value:
        type_ = base.type
        assert isinstance(type_, TensorType)
        size = type_.shape[dim]
        source = self._shifted(start, size, -1, count - 1)
        moved = emit_one(aten.index_select.default, (value, dim, source), type_)
        shape = tuple(size if d == dim else 1 for d in range(len(type_.shape)))
        places = _positions(size)
        end = emit_one(aten.add.Tensor, (start, count), TensorType((1,), "int64"))
        inside = emit_one(
            aten.logical_and.default,
            (
                emit_one(aten.ge.Tensor, (places, start), TensorType((size,), "bool")),
                emit_one(aten.lt.Tensor, (places, end), TensorType((size,), "bool")),
            ),
            TensorType((size,), "bool"),
        )
        mask = emit_one(aten.view.default, (inside, list(shape)), TensorType(shape, "bool"))
        return emit_one(aten.where.self, (mask, moved, base), type_)

    @staticmethod
    def _shifted(start: Value, count: int, sign: int, last: int) -> Value:
        type_ = TensorType((count,), "int64")
        at = _positions(count)
        op = aten.add.Tensor if sign > 0 else aten.sub.Tensor
        return emit_one(aten.clamp.default, (emit_one(op, (at, start), type_), 0, max(last, 0)), type_)


NARROW_AT = NarrowAt()


def _positions(count: int) -> Value:
    with plainly():
        return constants().of(torch.arange(count))


def _with(type_: TensorType, dim: int, count: int) -> TensorType:
    return TensorType((*type_.shape[:dim], count, *type_.shape[dim + 1 :]), type_.dtype)


def narrow_at(base: torch.Tensor, dim: int, start: Any, count: int) -> StagedTensor:
    """Return the view of so many elements from a number of the run on, which is within the dimension."""
    if not count:
        return base.narrow(dim, 0, 0)  # type: ignore[return-value]  # one of staging's
    at = read(to_tensor(start, torch.int64).reshape(1))
    storage, chain = home(base)
    like = meta_of(tuple(base.shape), base.stride(), base.dtype)
    with plainly():
        meta = with_marks(like.narrow(dim, 0, count), *marks_of(base))
    value = NARROW_AT.read(read(base), dim, at, count)
    return view_of(base, StagedTensor(meta, storage, (*chain, (NARROW_AT, (dim, at, count), {})), value))
