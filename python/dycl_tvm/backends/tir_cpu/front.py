# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that compute the first elements of their output only, as many as a size of the call says.

The kernel is made and scheduled for the largest size. Then each loop gets a test whether its trip writes anything that is wanted: the
least index that the trip can store at, against the size, which is one more input. Trips that write behind it are skipped; a tile that
reaches over it is computed whole, and a parallel loop of which little is left runs on the calling thread. Where that index grows with
the trips by as much each, the loop ends at the last one that is wanted, and no trip asks (``shortened.py``). Where an index counts
through several dimensions, each with a size of its own, a trip is wanted if some index from its least to its largest has its place along
each of them within that size; a loop whose trips come to each place of the outer ones in turn becomes a loop for each. So every family
and every schedule has run-time extents, and static kernels are as they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var

from dycl_tvm.backends.extents import Digits, Extent, Limit, Wanted, outer, parts_of
from dycl_tvm.backends.front import SIZES, Stores, end, found, has_front, is_one_of, mentions, replaced, trips, variables_of
from dycl_tvm.backends.tir_cpu.scratch import Scratch, scratch_of
from dycl_tvm.backends.tir_cpu.shortened import Shortener
from dycl_tvm.backends.tir_cpu.words.loops import LAUNCHES

#: Statements of a trip beside which a test is nothing.
_LONG = 16
#: Spans of one loop's stores that are not a constant apart: beyond, its trips are not told apart.
_MOST_SPANS = 6


def add_sizes(fn: Any) -> Any:
    """Return a scheduled function with its sizes as inputs, tensors of one int64, behind all other inputs."""
    if not has_front(fn):
        return fn
    sizes = [tirx.decl_buffer((), "int64", name=f"size_{k}") for k in range(len(fn.attrs[SIZES]))]
    return tirx.PrimFunc([*fn.params[:-1], *sizes, fn.params[-1]], fn.body, fn.ret_type, fn.attrs)


def skip_behind(fn: Any) -> Any:
    """Return a function of plain loops whose trips are skipped that write only behind what is wanted."""
    if not has_front(fn):
        return fn
    return fn.with_body(_Skips(fn).run(fn.body))


class _Skips:
    def __init__(self, fn: Any) -> None:
        count, self.out = len(fn.attrs[SIZES]), fn.params[-1]
        self.buffers = list(fn.params[-1 - count : -1])
        self.params = list(fn.params)
        self.sizes = [Var(f"size_{k}", "int64") for k in range(count)]
        self.stored = Stores(fn, self.out)
        self.scratch = scratch_of(fn.body)
        self.shortener = Shortener(fn.body)
        #: Loops whose trips may ask: in an innermost one of short trips that would cost what it saves.
        self.long = {loop for loop in found(fn.body, tirx.For) if found(loop.body, tirx.For) or len(found(loop.body, tirx.Bind)) >= _LONG}
        self.tests: dict[tuple[Any, bool], tuple[Any, list[Scratch]]] = {}
        self.stores: dict[Any, list[tuple[Any, tuple[Any, ...]]]] = {}

    def run(self, body: Any) -> Any:
        reads = [tirx.Bind(v, tirx.BufferLoad(b, [])) for v, b in zip(self.sizes, self.buffers)]
        made = self._visit(body)
        return tirx.SeqStmt([*reads, made]) if reads else made

    def _visit(self, stmt: Any) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(s) for s in stmt.seq])
        if isinstance(stmt, tirx.AttrStmt):
            return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, self._visit(stmt.body))
        if isinstance(stmt, tirx.IfThenElse):
            orelse = None if stmt.else_case is None else self._visit(stmt.else_case)
            return tirx.IfThenElse(stmt.condition, self._visit(stmt.then_case), orelse)
        if not isinstance(stmt, tirx.For) or int(stmt.kind) not in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL):
            return stmt
        body, needed = self._visit(stmt.body), self._needed(stmt)
        loop = tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, stmt.annotations, stmt.step)
        if needed is None:
            return loop
        shorter, _ = self.shortener.shortened(loop, needed)
        return shorter if int(stmt.kind) != tirx.ForKind.PARALLEL else self._launched(shorter)

    def _launched(self, loop: Any) -> Any:
        """Return a parallel loop that has a launch only if enough is left, and whose last trips are not all of one thread."""
        wanted, launches = self.stored.wanted[0][1], int(loop.annotations.get(LAUNCHES, 1))
        parts = [part for n, limit in zip(self.out.shape, wanted) for part in parts_of(int(n), limit)]
        # the work is in proportion to what is wanted
        few = [self._number(e) * launches < n for n, e in parts if e is not None]
        alone = tirx.any(*few) if len(few) > 1 else few[0]
        hint = tirx.Evaluate(tirx.call_extern("int32", "__dycl_next_launch_alone", alone.astype("int32")))
        strided = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_parallel_stride_pattern", tirx.const(1, "int32"), loop)
        return tirx.SeqStmt([hint, tirx.AttrStmt(tirx.const(0, "int32"), "pragma_parallel_launch_point", tirx.const(1, "int32"), strided)])

    def _needed(self, loop: Any) -> Any:
        """Return whether a trip writes what is wanted; None if that does not depend on the trip, or cannot be told."""
        for exact in (True, False):
            test, scratch = self._test(loop, exact)

            def same(other: Any, test: Any = test, exact: bool = exact) -> Any:
                of = self._test(other, exact)[0] if int(other.kind) == tirx.ForKind.SERIAL else None
                if of is None or not self._may_have(other, of):
                    return None
                renamed = tvm_ffi.structural_map(of, (Var, lambda v: loop.loop_var if v.same_as(other.loop_var) else v))
                return of if tvm_ffi.structural_equal(renamed, test) else None

            if test is None or not self._may_have(loop, test):
                continue
            if all(s.is_used_up(loop, test) or s.in_trips(same) for s in scratch):
                return test
        return None

    def _may_have(self, loop: Any, test: Any) -> bool:
        """Whether a loop may be given a test."""
        return loop in self.long or not self.shortener.shortened(loop, test)[1]

    def _test(self, loop: Any, exact: bool) -> tuple[Any, list[Scratch]]:
        """Return whether a trip writes what is wanted of the output, and to which memory of the kernel's own it writes besides.

        What is not ``exact`` asks of each dimension whether the trip is before all that is not wanted: it falls as indices grow.
        """
        if (loop, exact) not in self.tests:
            self.tests[loop, exact] = self._tested(loop, exact)
        return self.tests[loop, exact]

    def _tested(self, loop: Any, exact: bool) -> tuple[Any, list[Scratch]]:
        body = loop.body
        local = [s.buffer for s in found(body, tirx.AllocBuffer)]
        if not all(self._writes_nothing_else(s, local) for s in found(body, tirx.Evaluate)):
            return None, []
        stores, scratch = [], []
        for s, when in self._stores_of(loop):
            if is_one_of(self.stored.owner(s.buffer), local):
                continue
            wanted = self.stored.of(s.buffer)
            own = next((c for c in self.scratch if c.buffer.same_as(s.buffer)), None)
            if wanted is not None:
                stores.append(_Store(s, wanted, when) if exact else _Store(s, tuple(map(outer, wanted)), ()))
            elif own is None:
                return None, []
            elif own not in scratch:
                scratch.append(own)
        tests = []
        for dims in _runs([s.wanted for s in stores]):
            alone = [self._reaches(stores, [dim], loop, body) for dim in dims]
            # an index of all of them may be told where those of each cannot
            unknown = [dim for dim, test in zip(dims, alone) if test is None]
            counts = any(mentions(s.stmt.indices[dim], loop.loop_var) for s in stores for dim in unknown)
            together = self._reaches(stores, dims, loop, body) if exact and counts and len(dims) > 1 else None
            tests += [t for t in (*alone, together) if t is not None]
        return (tirx.all(*tests) if len(tests) > 1 else tests[0] if tests else None), scratch

    def _stores_of(self, loop: Any) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the stores of a loop's body with the conditions around them."""
        if loop not in self.stores:
            self.stores[loop] = list(self._stores(loop.body, ()))
        return self.stores[loop]

    def _stores(self, body: Any, when: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        if isinstance(body, tirx.BufferStore):
            yield body, when
        elif isinstance(body, tirx.IfThenElse):
            yield from self._stores(body.then_case, (*when, body.condition))
            if body.else_case is not None:
                yield from self._stores(body.else_case, (*when, tirx.Not(body.condition)))
        elif isinstance(body, tirx.SeqStmt):
            for stmt in body.seq:
                yield from self._stores(stmt, when)
        elif isinstance(body, tirx.AttrStmt):
            yield from self._stores(body.body, when)
        elif isinstance(body, tirx.For):
            yield from ((store, (*when, *more)) for store, more in self._stores_of(body))
        else:
            yield from ((store, when) for store in found(body, tirx.BufferStore))

    def _reaches(self, stores: Sequence[_Store], dims: Sequence[int], loop: Any, body: Any) -> Any:
        """Return whether any store is at an index of some dimensions that is wanted, if that depends on the trip."""
        inner = trips(found(body, tirx.For))
        values = {b.var: b.value for b in found(body, tirx.Bind)}
        changing = {*(v for v, *_ in inner), *values}
        spans: list[_Span] = []
        for store in stores:
            index, limit = _together(store.stmt, store.wanted, dims, values)
            last = end(index, inner, values, "max_value") if isinstance(limit, Digits) else None
            if last is None:
                limit = outer(limit)
            at = end(index, inner, values, "min_value")
            if limit is None or at is None or not mentions(at, loop.loop_var):
                return None
            # what the trip does not change itself decides whether it comes to the store
            when = [c for c in store.when if not found(c, TensorLoad) and changing.isdisjoint(variables_of(c))]
            spans = _with_span(spans, _Span(at, at if last is None else last, limit, tuple(when)))
        if not spans or len(spans) > _MOST_SPANS:
            return None
        tests = [self._meets(s) for s in spans]
        return tirx.any(*tests) if len(tests) > 1 else tests[0]

    def _meets(self, span: _Span) -> Any:
        """Return whether an index of a span is wanted."""
        least, last = span.least.astype("int64"), span.last.astype("int64")
        meets = self._meets_digits(least, last - least, parts_of(0, span.limit))
        return tirx.all(*span.when, meets) if span.when else meets

    def _meets_digits(self, least: Any, more: Any, digits: Sequence[tuple[int, Extent | None]]) -> Any:
        """Return whether an index from ``least`` to ``more`` behind it has all its digits within their limits, or may have."""
        (_, extent), *inner = digits
        limit = None if extent is None else self._number(extent)
        if not inner:
            return least < limit
        rows, analyzer = math.prod(n for n, _ in inner), tvm.sym.Analyzer()
        digit, rest = tirx.floordiv(least, rows), tirx.floormod(least, rows)
        meets = self._meets_digits(rest, more, inner)
        # the first index with the next digit has zeros behind it
        carries = analyzer.simplify(rest + more >= tirx.const(rows, "int64"))
        if not (isinstance(carries, tirx.IntImm) and not int(carries)):
            meets = tirx.any(meets, carries if limit is None else tirx.all(carries, digit + 1 < limit))
        return meets if limit is None else tirx.all(digit < limit, meets)

    def _number(self, extent: Extent) -> Any:
        """Return an extent as an expression."""
        return self.sizes[extent.size] * extent.factor + extent.constant if extent.factor else tirx.const(extent.constant, "int64")

    def _writes_nothing_else(self, stmt: Any, local: Sequence[Any]) -> bool:
        """Whether a call of a function is handed only memory of the trip's own, and inputs, which no kernel writes."""
        buffers = [a.args[0].source for a in found(stmt, tvm.ir.Call) if getattr(a.op, "name", "") == "tirx.address_of"]
        raw = [a for a in found(stmt, tvm.ir.Call) if getattr(a.op, "name", "") in ("tirx.buffer_data", "tirx.tvm_access_ptr")]
        owners = [self.stored.owner(b) for b in buffers]
        inputs = self.params[:-1]
        return not raw and all(is_one_of(b, local) or is_one_of(b, inputs) for b in owners)


@dataclass(frozen=True)
class _Store:
    """A store, what is wanted there, and the conditions around it inside of a loop."""

    stmt: Any
    wanted: Wanted
    when: tuple[Any, ...]


def _runs(wanted: Sequence[Wanted]) -> list[list[int]]:
    """Return the dimensions that all stores have limits of, neighbours together."""
    runs: list[list[int]] = []
    for dim in range(min(map(len, wanted), default=0)):
        if all(w[dim] is not None for w in wanted):
            if runs and runs[-1][-1] == dim - 1:
                runs[-1].append(dim)
            else:
                runs.append([dim])
    return runs


def _together(store: Any, wanted: Wanted, dims: Sequence[int], values: dict[Any, Any]) -> tuple[Any, Limit | None]:
    """Return the index of a store in some dimensions as if they were one, and what is wanted of that."""
    if len(dims) == 1:
        return store.indices[dims[0]], wanted[dims[0]]
    shape = [int(n) for n in store.buffer.shape]
    parts = [part for dim in dims for part in parts_of(shape[dim], wanted[dim])]
    limit = Digits(tuple(n for n, _ in parts), tuple(e for _, e in parts))
    *ahead, last = (store.indices[dim] for dim in dims)
    if any(found(index, tirx.Ramp) for index in ahead):
        return ahead[0], None
    several = isinstance(last, tirx.Ramp)
    index: Any = 0
    for dim, at in zip(dims, [*ahead, last.base if several else last]):
        index = index * shape[dim] + at
    index = tvm.sym.Analyzer().simplify(replaced(index, values))
    return tirx.Ramp(index, last.stride, last.lanes) if several else index, limit


@dataclass(frozen=True)
class _Span:
    """Where stores of a trip may be along a dimension: the least and the last index, which are wanted, and when the trip comes to them."""

    least: Any
    last: Any
    limit: Limit
    when: tuple[Any, ...]


def _with_span(spans: list[_Span], new: _Span) -> list[_Span]:
    """Return the spans with one more; those that always begin and end as far apart are one."""
    kept = []
    for span in spans:
        first, last = (_apart(a, b) for a, b in ((new.least, span.least), (new.last, span.last)))
        same = len(span.when) == len(new.when) and all(tvm_ffi.structural_equal(a, b) for a, b in zip(span.when, new.when))
        if same and span.limit == new.limit and first is not None and last is not None:
            back = _repeated(new.limit, first)
            least = span.least if first >= back else new.least - back
            new = _Span(least, span.last if last <= back else new.last - back, new.limit, new.when)
        else:
            kept.append(span)
    return [*kept, new]


def _apart(a: Any, b: Any) -> int | None:
    """Return how far an index is behind another one; None if that is not always the same."""
    found = tvm.sym.Analyzer().simplify(a.astype("int64") - b.astype("int64"))
    return int(found) if isinstance(found, tirx.IntImm) else None


def _repeated(limit: Limit, distance: int) -> int:
    """Return of a distance the whole of outermost digits, if these have no limit: as far away the same is wanted."""
    if not isinstance(limit, Digits) or limit.limits[0] is not None:
        return 0
    period = math.prod(limit.sizes[1:])
    return round(distance / period) * period
