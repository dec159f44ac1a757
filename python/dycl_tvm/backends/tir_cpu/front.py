# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that compute the first elements of their output only, as many as a size of the call says.

The kernel is made and scheduled for the largest size. Then each loop gets a test whether its trip writes anything that is wanted: the
least index that the trip can store at, against the size, which is one more input. Trips that write behind it are skipped; a tile that
reaches over it is computed whole, and a parallel loop of which little is left runs on the calling thread. So every family and every
schedule has run-time extents, and static kernels are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Var

from dycl_tvm.backends.extents import Extent, Wanted
from dycl_tvm.backends.front import SIZES, Stores, end, found, has_front, is_one_of, mentions, trips
from dycl_tvm.backends.tir_cpu.scratch import Scratch, scratch_of
from dycl_tvm.backends.tir_cpu.words.loops import LAUNCHES

#: Least indices of one loop's stores that are not a constant apart: beyond, its trips are not told apart.
_MOST_STORES = 6


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
        #: Loops that may have a test: in the innermost one, a test in each trip would cost what it saves.
        self.tested = {loop for loop in found(fn.body, tirx.For) if found(loop.body, tirx.For)}
        self.tests: dict[Any, tuple[Any, list[Scratch]]] = {}

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
        if stmt not in self.tested:
            return stmt
        body = self._visit(stmt.body)
        needed = self._needed(stmt)
        if needed is not None:
            body = tirx.IfThenElse(needed, body, None)
        loop = tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, stmt.annotations, stmt.step)
        return loop if needed is None or int(stmt.kind) != tirx.ForKind.PARALLEL else self._launched(loop)

    def _launched(self, loop: Any) -> Any:
        """Return a parallel loop that has a launch only if enough is left, and whose last trips are not all of one thread."""
        wanted, shape = self.stored.wanted[0][1], [int(s) for s in self.out.shape]
        launches = int(loop.annotations.get(LAUNCHES, 1))
        # the work is in proportion to what is wanted
        few = [self._number(e) * launches < n for e, n in zip(wanted, shape) if e is not None]
        alone = tirx.any(*few) if len(few) > 1 else few[0]
        hint = tirx.Evaluate(tirx.call_extern("int32", "__dycl_next_launch_alone", alone.astype("int32")))
        strided = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_parallel_stride_pattern", tirx.const(1, "int32"), loop)
        return tirx.SeqStmt([hint, tirx.AttrStmt(tirx.const(0, "int32"), "pragma_parallel_launch_point", tirx.const(1, "int32"), strided)])

    def _needed(self, loop: Any) -> Any:
        """Return whether a trip writes what is wanted; None if that does not depend on the trip, or cannot be told."""
        test, scratch = self._test(loop)
        if test is None or not scratch:
            return test

        def same(other: Any) -> Any:
            of = self._test(other)[0] if int(other.kind) == tirx.ForKind.SERIAL and other in self.tested else None
            if of is None:
                return None
            renamed = tvm_ffi.structural_map(of, (Var, lambda v: loop.loop_var if v.same_as(other.loop_var) else v))
            return of if tvm_ffi.structural_equal(renamed, test) else None

        return test if all(s.in_trips(same) for s in scratch) else None

    def _test(self, loop: Any) -> tuple[Any, list[Scratch]]:
        """Return whether a trip writes what is wanted of the output, and to which memory of the kernel's own it writes besides."""
        if loop not in self.tests:
            self.tests[loop] = self._tested(loop)
        return self.tests[loop]

    def _tested(self, loop: Any) -> tuple[Any, list[Scratch]]:
        body = loop.body
        local = [s.buffer for s in found(body, tirx.AllocBuffer)]
        if not all(self._writes_nothing_else(s, local) for s in found(body, tirx.Evaluate)):
            return None, []
        stores, scratch = [], []
        for s in found(body, tirx.BufferStore):
            if is_one_of(self.stored.owner(s.buffer), local):
                continue
            wanted = self.stored.of(s.buffer)
            own = next((c for c in self.scratch if c.buffer.same_as(s.buffer)), None)
            if wanted is not None:
                stores.append((s, wanted))
            elif own is None:
                return None, []
            elif own not in scratch:
                scratch.append(own)
        tests = [self._reaches(stores, dim, loop, body) for dim in range(max((len(w) for _, w in stores), default=0))]
        known = [t for t in tests if t is not None]
        return (tirx.all(*known) if len(known) > 1 else known[0] if known else None), scratch

    def _reaches(self, stores: Sequence[tuple[Any, Wanted]], dim: int, loop: Any, body: Any) -> Any:
        """Return whether any store is at an index of a dimension that is wanted, if that depends on the trip."""
        inner = trips(found(body, tirx.For))
        values = {b.var: b.value for b in found(body, tirx.Bind)}
        least: list[tuple[Any, Extent]] = []
        for store, wanted in stores:
            extent = wanted[dim] if dim < len(wanted) else None
            if extent is None:
                return None
            at = end(store.indices[dim], inner, values, "min_value")
            if at is None or not mentions(at, loop.loop_var):
                return None
            least = _with_least(least, at, extent)
        if not least or len(least) > _MOST_STORES:
            return None
        tests = [at.astype("int64") < self._number(e) for at, e in least]
        return tirx.any(*tests) if len(tests) > 1 else tests[0]

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


def _with_least(least: list[tuple[Any, Extent]], at: Any, extent: Extent) -> list[tuple[Any, Extent]]:
    """Return the indices with one more; of those that are always as far apart the least is enough."""
    kept, analyzer = [], tvm.sym.Analyzer()
    for other, e in least:
        apart = analyzer.simplify(other.astype("int64") - at.astype("int64"))
        if e == extent and isinstance(apart, tirx.IntImm):
            if int(apart) <= 0:
                return least
            continue
        kept.append((other, e))
    return [*kept, (at, extent)]
