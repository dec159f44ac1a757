# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a kernel reads to compute what is wanted of its output, where a size of the call decides that.

Read from the kernel itself, as TVM's legalisation made it: an element of an input that is read at an axis of the output is wanted as far
as that axis is; behind a mask ``i < size`` as far as the mask holds. What is not understood is wanted whole, and so is all that decides an
address or divides a whole number: a number that nobody computed must not get there. Kernels of families say which of their axes are rows
(:data:`~dycl_tvm.backends.tir_cpu.words.loops.ROWS`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.extents import Bounds, Extent, Limit, Wanted, everything, outer
from dycl_tvm.backends.tir_cpu.reading.stages import Stage, inlined, loads_of, read_stages
from dycl_tvm.backends.tir_cpu.strided import digits
from dycl_tvm.backends.tir_cpu.words.attention import Attention, Strided
from dycl_tvm.backends.tir_cpu.words.loops import CHOOSING, REACH, ROWS, SCHEDULED
from dycl_tvm.compile.ops.moving import Moving

#: What reads both of its operands at the place at which it is computed itself.
_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or),
)


@dataclass(frozen=True)
class Counts:
    """A tensor whose elements are their own position along a dimension."""

    dim: int


@dataclass(frozen=True)
class Holds:
    """A tensor of one element that is an extent."""

    extent: Extent


@dataclass(frozen=True)
class Mask:
    """A tensor that is true at the first elements along a dimension, and nowhere else."""

    dim: int
    extent: Extent


@dataclass(frozen=True)
class Number:
    """A tensor of one element that is a constant."""

    value: float


@dataclass(frozen=True)
class Closed:
    """A tensor that is -inf behind the first elements along a dimension."""

    dim: int
    extent: Extent


@dataclass(frozen=True)
class Table:
    """A vector of whole numbers, in any shape."""

    numbers: tuple[int, ...]


Fact = Union[Counts, Holds, Mask, Number, Closed, Table]


class Kernel:
    """A kernel with one output, as far as it is understood.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Inputs first, the output last.
    """

    def __init__(self, fn: Any) -> None:
        self.shapes = [tuple(int(s) for s in p.shape) for p in fn.params]
        self.params = list(fn.params)
        self.rows: list[list[int]] | None = None
        self.reach: list[list[tuple[int, ...]]] = []
        self.choosing: list[list[int]] = []
        self.stages: list[Stage] | None = None
        if fn.attrs and ROWS in fn.attrs:
            self.rows = [[int(d) for d in row] for row in fn.attrs[ROWS]]
            self.reach = [[tuple(map(int, d)) for d in row] for row in fn.attrs.get(REACH, ())]
            self.choosing = [[int(m) for m in masks] for masks in fn.attrs.get(CHOOSING, ())]
        elif not (fn.attrs and SCHEDULED in fn.attrs):
            stages = read_stages(fn)
            self.stages = None if stages is None or not stages[-1].out.same_as(fn.params[-1]) else inlined(stages)
        self.known = self.rows is not None or self.stages is not None

    def inputs(self, wanted: Wanted, facts: Sequence[Fact | None], bounds: Bounds) -> list[Wanted | None]:
        """Return what is wanted of each input, None for nothing, where so much is wanted of the output."""
        if self.rows is not None:
            return [self._along_rows(k, row, wanted, facts, bounds) for k, row in enumerate(self.rows)]
        if self.stages is None:
            return [everything(s) for s in self.shapes[:-1]]
        reads = _Reads(self, facts, bounds)
        reads.add(self.params[-1], wanted)
        for stage in reversed(self.stages):
            reads.stage(stage)
        return [reads.of(p) for p in self.params[:-1]]

    def _along_rows(self, k: int, row: Sequence[int], wanted: Wanted, facts: Sequence[Fact | None], bounds: Bounds) -> Wanted:
        shape, out = self.shapes[k], self.shapes[-1]
        dims = [*row, *([-1] * len(shape))]
        found = [bounds.clipped(wanted[d], n) if d >= 0 and out[d] == n else None for d, n in zip(dims, shape)]
        for place, (d, stride, last) in enumerate(self.reach[k] if k < len(self.reach) else ()):
            extent = outer(wanted[d]) if d >= 0 else None
            if extent is None:
                continue
            reached = extent.scaled(stride, last + 1 - stride) if stride else _looked_up(extent, facts[last], bounds)
            found[place] = bounds.clipped(reached, shape[place])
        for fact in [facts[m] for m in (self.choosing[k] if k < len(self.choosing) else ())]:
            if not isinstance(fact, Mask):
                continue
            for place, reach in enumerate(self.reach[k]):
                there = outer(found[place])
                # the mask is read where the output is, and so is what it chooses
                if reach == (fact.dim, 1, 0) and (there is None or bounds.covers(there, fact.extent)):
                    found[place] = bounds.clipped(fact.extent, shape[place])
        return tuple(found)

    def fact(self, facts: Sequence[Fact | None], bounds: Bounds) -> Fact | None:
        """Return what is known of the output, if it is known of inputs."""
        if self.stages is None or len(self.stages) != 1 or self.stages[0].reduced:
            return None
        stage, reads = self.stages[0], _Reads(self, facts, bounds)
        reads.open(stage)
        if math.prod(stage.extents) == 1:
            extent = reads.extent(stage.value)
            return None if extent is None else Holds(extent)
        tests, closed = reads.tests(stage.value), reads.closed(stage.value)
        for position, extent in tests if tests is not None and len(tests) == 1 else closed:
            dim = next((d for d, a in enumerate(stage.axes) if a.same_as(position)), None)
            if dim is not None:
                return Closed(dim, extent) if tests is None else Mask(dim, extent)
        return None


class Moved:
    """A kernel that moves the elements of a buffer together, or apart.

    Parameters
    ----------
    moving : Moving
    shapes : sequence of tuple of int
        Of the elements, the lengths and the result.
    """

    known = True

    def __init__(self, moving: Moving, shapes: Sequence[tuple[int, ...]]) -> None:
        self.moving, self.shapes = moving, shapes

    def inputs(self, wanted: Wanted, facts: Sequence[Fact | None], bounds: Bounds) -> list[Wanted | None]:
        """Return what is wanted of each input."""
        given = self._box(facts, bounds) if self.moving.together else self._vector(facts, bounds)
        return [given, *((),) * (len(self.shapes) - 2)]

    def fact(self, facts: Sequence[Fact | None], bounds: Bounds) -> Fact | None:
        """Return what is known of the output: nothing."""
        return None

    def front(self, wanted: Wanted, facts: Sequence[Fact | None], bounds: Bounds) -> str:
        """Return the symbol of the kernel that writes what is wanted, which is what is moved or more."""
        there = self._vector(facts, bounds) if self.moving.together else self._box(facts, bounds)
        most = map(outer, wanted)
        # A length that is not known may be any: what lies behind it must be filled.
        known = all(self._length(d, facts) is not None for d in self.moving.dims)
        enough = known and all(n is None or (isinstance(n, Extent) and w is not None and bounds.covers(n, w)) for n, w in zip(there, most))
        counts = [n for n in there if n is not None]
        return replace(self.moving, fills=self.moving.fills and not (enough and counts)).symbol

    def _buffer(self) -> tuple[int, ...]:
        return self.shapes[0 if self.moving.together else -1]

    def _box(self, facts: Sequence[Fact | None], bounds: Bounds) -> Wanted:
        """Return the part of the buffer that counts."""
        return tuple(bounds.clipped(self._length(d, facts), n) for d, n in enumerate(self._buffer()))

    def _vector(self, facts: Sequence[Fact | None], bounds: Bounds) -> Wanted:
        """Return how many elements these are."""
        count: Extent | None = Extent.number(1)
        for d, n in enumerate(self._buffer()):
            length = self._length(d, facts) if d in self.moving.dims else Extent.number(n)
            count = None if count is None or length is None else bounds.product(count, length)
        shape = self.shapes[-1 if self.moving.together else 0]
        return bounds.reshaped((None if count is None else bounds.clipped(count, math.prod(shape)),), (math.prod(shape),), shape)

    def _length(self, dim: int, facts: Sequence[Fact | None]) -> Extent | None:
        fact = facts[1 + self.moving.dims.index(dim)] if dim in self.moving.dims else None
        return fact.extent if isinstance(fact, Holds) else None


def _looked_up(extent: Extent, table: Fact | None, bounds: Bounds) -> Extent | None:
    """Return how many rows are read at most where the first elements of a table say which."""
    if not isinstance(table, Table):
        return None
    before = [0, *itertools.accumulate(table.numbers, max, initial=-1)][1:]

    def read(size: int) -> int:
        return before[min(max(extent.constant + extent.factor * size, 0), len(table.numbers))] + 1

    return bounds.covering(extent.size, read) if extent.factor else Extent.number(read(0))


def of_attention(
    work: Attention, wanted: Wanted, arrays: Sequence[Sequence[int]], bounds: Bounds, keys: Extent | None = None
) -> list[Wanted]:
    """Return what is wanted of queries, keys and values where so much is wanted of an attention, in the shapes of their arrays.

    ``keys`` of the keys are looked at.
    """
    limits: list[Extent | None] = [None] * len(work.order)
    for of, limit in zip(work.order, wanted):
        limits[of] = outer(limit)
    lead, rows = [*zip(work.lead, limits)], (work.rows, limits[len(work.lead)])
    read = [
        (work.q, [*lead, rows, (work.depth, None)]),
        (work.k, [*lead, (work.keys, keys), (work.depth, None)]),
        (work.v, [*lead, (work.keys, keys), (work.width, None)]),
    ]
    return [_strided(at, axes, shape, bounds) for (at, axes), shape in zip(read, arrays)]


def _strided(at: Strided, axes: Sequence[tuple[int, Extent | None]], shape: Sequence[int], bounds: Bounds) -> Wanted:
    """Return what is read of an array with strides, along axes with their extents and what is wanted along each."""
    start, steps = digits(at.offset, shape), [digits(s, shape) for s in at.strides]
    last = [n + sum((whole - 1) * step[d] for (whole, _), step in zip(axes, steps)) for d, n in enumerate(start)]
    if any(n >= size for n, size in zip(last, shape)):  # an index that carries into the next dimension has no stride
        return everything(shape)
    found: list[Limit | None] = []
    for d, (first, size) in enumerate(zip(start, shape)):
        found.append(_reached(first, [(step[d], whole, limit) for (whole, limit), step in zip(axes, steps)], size, bounds))
    return tuple(found)


def _reached(offset: int, axes: Sequence[tuple[int, int, Extent | None]], size: int, bounds: Bounds) -> Limit | None:
    """Return what is read of a dimension by the sum of an offset and of axes (stride, length, limit) times their strides."""
    read = sorted(((s, n, e) for s, n, e in axes if s and n > 1), key=lambda axis: -axis[0])
    lengths = [n for _, n, _ in read]
    # they count through the dimension together: each has a limit of its own
    if not offset and math.prod(lengths) == size and all(s == math.prod(lengths[k + 1 :]) for k, (s, *_) in enumerate(read)):
        return bounds.merged([(n, e) for _, n, e in read])
    return bounds.clipped(_last_of(offset, [(s, Extent.number(n) if e is None else e) for s, n, e in axes if s], bounds), size)


def _last_of(offset: int, parts: Sequence[tuple[int, Extent]], bounds: Bounds) -> Extent:
    """Return one more than ``offset`` and the sum of the last of some numbers of elements, each times its stride, or more.

    Of several sizes the one with the largest stride counts, of the others what they are at most.
    """
    total = Extent.number(offset + 1)
    for stride, n in sorted(parts, key=lambda part: -part[0]):
        if total.factor and n.factor:
            n = Extent.number(bounds.range(n)[1])
        symbol = n if n.factor else total
        total = Extent(symbol.size, n.factor * stride + total.factor, total.constant + stride * (n.constant - 1))
    return total


class _Reads:
    """What is wanted of the buffers of a kernel."""

    def __init__(self, kernel: Kernel, facts: Sequence[Fact | None], bounds: Bounds) -> None:
        self.bounds = bounds
        self.facts = list(zip(kernel.params, facts))
        self.wanted: list[tuple[Any, Wanted]] = []
        self.axes: list[Any] = []
        self.extents: list[int] = []
        self.analyzer: Any = None

    def of(self, buffer: Any) -> Wanted | None:
        return next((w for b, w in self.wanted if b.same_as(buffer)), None)

    def add(self, buffer: Any, wanted: Wanted) -> None:
        known = self.of(buffer)
        if known is not None:
            self.wanted = [(b, w) for b, w in self.wanted if not b.same_as(buffer)]
        joined = self.bounds.union(known, wanted)
        assert joined is not None
        self.wanted.append((buffer, joined))

    def open(self, stage: Stage) -> None:
        """Look at the expressions of a loop nest."""
        self.axes, self.extents = [*stage.axes, *stage.reduced], [*stage.extents, *stage.windows]
        self.analyzer = tvm.sym.Analyzer()
        for axis, extent in zip(self.axes, self.extents):
            self.analyzer.bind(axis, tvm.ir.Range(tirx.const(0, axis.ty.dtype), tirx.const(extent, axis.ty.dtype)))

    def stage(self, stage: Stage) -> None:
        """Add what a loop nest reads."""
        wanted = self.of(stage.out)
        if wanted is None:
            return
        self.open(stage)
        limits = [(a, e) for a, e in zip(stage.axes, wanted) if e is not None]
        for expr in (stage.value, *(() if stage.init is None else (stage.init,))):
            # a reduction reads what it has so far
            self._visit(expr, limits, stage.out)

    def _visit(self, expr: Any, limits: list[tuple[Any, Limit]], own: Any) -> None:
        if isinstance(expr, TensorLoad):
            for index in expr.indices:
                self._whole(index, own)
            if not expr.source.same_as(own):
                self.add(expr.source, tuple(self._limit(i, int(n), limits) for i, n in zip(expr.indices, expr.source.shape)))
        elif isinstance(expr, tirx.Select):
            self._choice(expr.condition, expr.true_value, expr.false_value, limits, own)
        elif isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "tirx.if_then_else":
            condition, then, orelse = expr.args
            self._choice(condition, then, orelse, limits, own)
        elif isinstance(expr, (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)) and "float" not in str(expr.ty.dtype):
            self._whole(expr, own)
        elif isinstance(expr, _BINARY):
            self._visit(expr.a, limits, own)
            self._visit(expr.b, limits, own)
        elif isinstance(expr, tirx.Not):
            self._visit(expr.a, limits, own)
        elif isinstance(expr, tirx.Cast):
            self._visit(expr.value, limits, own)
        elif isinstance(expr, tirx.Let):
            self._whole(expr.value, own)  # the variable may be an address in the body, or divide a whole number
            self._visit(expr.body, limits, own)
        elif isinstance(expr, tvm.ir.Call):
            for arg in expr.args:
                self._visit(arg, limits, own)
        else:
            self._whole(expr, own)

    def _choice(self, condition: Any, then: Any, orelse: Any, limits: list[tuple[Any, Limit]], own: Any) -> None:
        self._visit(condition, limits, own)
        self._visit(then, [*self.needs(condition), *limits], own)
        self._visit(orelse, limits, own)

    def _whole(self, expr: Any, own: Any) -> None:
        """Add all that an expression loads, wherever it stands in it."""
        for load in loads_of(expr):
            if not load.source.same_as(own):
                self.add(load.source, everything(load.source.shape))

    def _limit(self, index: Any, size: int, limits: list[tuple[Any, Limit]]) -> Limit | None:
        """Return how many elements of a dimension an index reads of at most."""
        at = self.extent(index)
        if at is not None:
            return self.bounds.clipped(at.scaled(1, 1), size)
        index = self.analyzer.simplify(index)
        for expr, extent in limits:
            if tvm_ffi.structural_equal(index, expr):
                return self.bounds.clipped(extent, size)
        if isinstance(index, tirx.FloorDiv) and isinstance(index.b, tirx.IntImm) and int(index.b) > 0:
            by = int(index.b)
            return self.bounds.regrouped([(size * by, self._limit(index.a, size * by, limits))], [size, by])[0]
        if isinstance(index, tirx.FloorMod) and isinstance(index.b, tirx.IntImm) and int(index.b) == size:
            whole = int(self.analyzer.const_int_bound(index.a).max_value) + 1
            if whole % size == 0:
                return self.bounds.regrouped([(whole, self._limit(index.a, whole, limits))], [whole // size, size])[1]
        parts = tvm.sym.detect_linear_equation(index, self.axes) if self.axes else [index]
        if len(parts) != len(self.axes) + 1 or not all(isinstance(p, tirx.IntImm) for p in parts):
            return None
        *strides, offset = (int(p) for p in parts)
        if any(stride < 0 for stride in strides):
            return None
        known = [next((outer(e) for a, e in limits if a.same_as(axis)), None) for axis in self.axes]
        return _reached(offset, list(zip(strides, self.extents, known)), size, self.bounds)

    # -- what expressions are ------------------------------------------------------------------------------------------

    def tests(self, expr: Any) -> list[tuple[Any, Extent]] | None:
        """Return the positions and extents that a condition compares; None if it is anything else."""
        if isinstance(expr, tirx.Cast):
            return self.tests(expr.value)
        if isinstance(expr, tirx.And):
            a, b = self.tests(expr.a), self.tests(expr.b)
            return None if a is None or b is None else a + b
        if isinstance(expr, (tirx.GT, tirx.GE)):
            expr = (tirx.LT if isinstance(expr, tirx.GT) else tirx.LE)(expr.b, expr.a)
        if isinstance(expr, tirx.LT) and _is(expr.a, 0) and isinstance(expr.b, tirx.Cast) and str(expr.b.value.ty.dtype) == "bool":
            return self.tests(expr.b.value)
        if isinstance(expr, (tirx.LT, tirx.LE)):
            position, extent = self._position(expr.a), self.extent(expr.b)
            if position is None or extent is None:
                return None
            return [(position, extent.scaled(1, int(isinstance(expr, tirx.LE))))]
        fact = self._fact(expr)
        return [(self.analyzer.simplify(expr.indices[fact.dim]), fact.extent)] if isinstance(fact, Mask) else None

    def closed(self, expr: Any) -> list[tuple[Any, Extent]]:
        """Return positions and extents behind which an expression is -inf."""
        if isinstance(expr, tirx.Select):
            condition, then, orelse = expr.condition, expr.true_value, expr.false_value
        elif isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "tirx.if_then_else":
            condition, then, orelse = expr.args
        else:
            fact = self._fact(expr)
            return [(self.analyzer.simplify(expr.indices[fact.dim]), fact.extent)] if isinstance(fact, Closed) else []
        if self._is_minus_infinity(orelse):
            return [*self.needs(condition), *self.closed(then)]
        first, second = self.closed(then), self.closed(orelse)
        return [(p, e) for p, e in first if any(tvm_ffi.structural_equal(p, q) and e == f for q, f in second)]

    def needs(self, condition: Any) -> list[tuple[Any, Extent]]:
        """Return comparisons without which a condition is false."""
        if isinstance(condition, tirx.And):
            return [*self.needs(condition.a), *self.needs(condition.b)]
        return self.tests(condition) or []

    def _is_minus_infinity(self, expr: Any) -> bool:
        fact = self._fact(expr)
        value = fact.value if isinstance(fact, Number) else float(expr.value) if isinstance(expr, tirx.FloatImm) else 0.0
        return value == -math.inf

    def extent(self, expr: Any) -> Extent | None:
        """Return the extent that an expression is, None if it is anything else."""
        if isinstance(expr, tirx.IntImm):
            return Extent.number(int(expr))
        if isinstance(expr, tirx.Cast) and "int64" in str(expr.ty.dtype) and "int" in str(expr.value.ty.dtype):
            return self.extent(expr.value)
        if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul)) and str(expr.ty.dtype) == "int64":
            a, b = self.extent(expr.a), self.extent(expr.b)
            if a is None or b is None:
                return None
            if b.factor and (a.factor or isinstance(expr, tirx.Sub)):
                return None
            if isinstance(expr, tirx.Mul):
                return a.scaled(b.constant) if not b.factor else b.scaled(a.constant)
            left, right = (b, a) if b.factor else (a, b)
            return left.scaled(1, -right.constant if isinstance(expr, tirx.Sub) else right.constant)
        if isinstance(expr, (tirx.Min, tirx.Max)):
            a, b = self.extent(expr.a), self.extent(expr.b)
            if a is None or b is None or not (self.bounds.covers(a, b) or self.bounds.covers(b, a)):
                return None
            return a if self.bounds.covers(a, b) == isinstance(expr, tirx.Max) else b
        if isinstance(expr, tirx.Select) and isinstance(expr.condition, tirx.LT):
            a, b = self.extent(expr.condition.a), self.extent(expr.condition.b)
            if a is None or b is None:
                return None
            # a < b is false for sure where a covers b, and true where b covers a + 1
            known = False if self.bounds.covers(a, b) else True if self.bounds.covers(b, a.scaled(1, 1)) else None
            return None if known is None else self.extent(expr.true_value if known else expr.false_value)
        fact = self._fact(expr)
        return fact.extent if isinstance(fact, Holds) else None

    def _position(self, expr: Any) -> Any:
        """Return the position that an expression is, None if it depends on anything but the axes."""
        if isinstance(expr, tirx.Cast) and "int" in str(expr.value.ty.dtype) and _keeps_places(expr):
            return self._position(expr.value)
        fact = self._fact(expr)
        if isinstance(fact, Counts):
            return self.analyzer.simplify(expr.indices[fact.dim])
        return None if loads_of(expr) else self.analyzer.simplify(expr)

    def _fact(self, expr: Any) -> Fact | None:
        return next((f for b, f in self.facts if b.same_as(expr.source)), None) if isinstance(expr, TensorLoad) else None


def _keeps_places(cast: Any) -> bool:
    """Whether a cast of integers leaves each place of a dimension what it is: 8 and 16 bits are too few for some."""
    return "int" in str(cast.ty.dtype) and cast.ty.dtype.bits >= min(32, cast.value.ty.dtype.bits)


def _is(expr: Any, number: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == number
