# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reductions over any axes: sums, products, extremes and their indices, with what is element-wise before and after them.

*Inner*: the last reduced axis lies in memory. Several vectors of partial results run along it (their lanes are merged at the end), rows are
independent pieces; a single long row is cut into pieces whose results are merged. *Outer*: the last axis of the output lies in memory. A
vector holds as many results; several vectors side by side, or several partial results of each, hide the latency of a step.

A sum of k elements is, however it is cut, an order of summation: |error| <= (k + 8) 2^-24 sum |x|; as partial results are sums of k / 64
elements (16 lanes, 4 vectors) along an inner axis, it is mostly far below that of one running sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.reading.reduction_op import Axis, Follower, ReductionOp, reduction_op
from dycl_tvm.backends.tir_cpu.words.cost import pieces_of_rows
from dycl_tvm.backends.tir_cpu.words.loops import is_parallel, parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.vectors import along, vectors

#: Vectors that are under way at once.
_CHAINS = 4

_State = Sequence[Any]


def schedule(fn: Any, machine: Machine) -> Any | None:
    """Return the kernel of an unscheduled function, None if it is no reduction that has one."""
    op = reduction_op(fn)
    return kernel(op, machine) if op is not None and takes(op, machine) else None


def takes(op: ReductionOp, machine: Machine) -> bool:
    """Whether there is a kernel: vectors along some axis, and not mostly empty ones."""
    after = op.follower
    fits = after is None or (bool(after.axes) and all(s in (0, 1) for s in after.axes[-1].strides))
    return fits and (_is_inner(op, machine) or _is_outer(op))


def _is_inner(op: ReductionOp, machine: Machine) -> bool:
    return bool(op.reduced) and op.reduced[-1].extent >= machine.lanes // 2 and _contiguous(op.reduced[-1].strides[: op.elements])


def _is_outer(op: ReductionOp) -> bool:
    return bool(op.spatial) and _contiguous(op.spatial[-1].strides)


def _contiguous(strides: Sequence[int]) -> bool:
    return 1 in strides and all(s in (0, 1) for s in strides)


def kernel(op: ReductionOp, machine: Machine) -> Any:
    """Return the PrimFunc with the parameters of the operator; :func:`takes` must hold."""
    buffers = [(f"p{k}", shape, dtype) for k, (shape, dtype) in enumerate(op.buffers)]
    return prim_func(buffers, lambda *b: _Emitter(op, machine, b).run())


class _Emitter:
    """Emits one kernel."""

    def __init__(self, op: ReductionOp, machine: Machine, buffers: Sequence[Any]) -> None:
        self.op, self.machine, self.lanes = op, machine, machine.lanes
        self.flat = [
            T.decl_buffer((max(1, math.prod(shape)),), dtype, data=b.data) for b, (shape, dtype) in zip(buffers, op.buffers, strict=True)
        ]
        self.outputs = self.flat[-op.outputs :]
        # states are in registers, beside the element and what it is made of
        self.chains = max(1, min(_CHAINS, (machine.registers - 4) // len(op.reducer.dtypes)))
        self.count = math.prod(a.extent for a in op.reduced)
        self.rows = math.prod(a.extent for a in op.spatial)

    def run(self) -> None:
        """Emit the body."""
        after = self.op.follower
        if after is not None:
            self.outputs = [T.alloc_buffer((self.rows,), self.op.reducer.dtypes[-1])]
        if _is_inner(self.op, self.machine):
            self._inner()
        else:
            self._outer()
        if after is not None:
            self._follow(after)

    def _follow(self, after: Follower) -> None:
        """Emit what reads the result."""
        *outer, last = after.axes
        rows, n, y = math.prod(a.extent for a in outer), last.extent, self.flat[-1]
        pieces = pieces_of_rows(rows, self.machine)
        seconds = rows * (5e-9 + n * (1 + after.operations) * 1.2e-9 / self.lanes)
        first, end = (lambda p: p * rows // pieces), (lambda p: (p + 1) * rows // pieces)
        with parallel(pieces, self.machine, seconds) as piece, T.serial(first(piece), end(piece)) as row:
            offsets = _at(outer, [*(r.offset for r in after.reads), 0], row)

            def put(_: int, v: Any, j: Any) -> None:
                *loads, result = (b[o + j * s] for b, o, s in zip(sources, offsets, last.strides, strict=True))
                store(y, [row * n + j], after.element(result, loads))

            sources = [*(self.flat[r.buffer] for r in after.reads), self.outputs[0]]
            along(n, self.lanes, put)

    def _seconds(self, results: int) -> float:
        """Return the seconds of so many results on one core."""
        operations = self.op.reducer.cost + self.op.operations + self.op.elements
        return results * (10e-9 / self.lanes + self.count * operations * 1.2e-9 / self.lanes)

    # -- states --------------------------------------------------------------------------------------------------------

    def _states(self, count: int, first: Callable[[int, Any], Any]) -> list[_State]:
        """Declare and begin vectors of states; ``first(state, lane)`` is the first index that each will see."""
        states: list[_State] = [[T.alloc_buffer((self.lanes,), d) for d in self.op.reducer.dtypes] for _ in range(count)]
        for k, state in enumerate(states):
            with T.vectorized(0, self.lanes) as v:
                self._put(state, v, self.op.reducer.start(first(k, v)))
        return states

    def _put(self, state: _State, at: Any, values: Sequence[Any]) -> None:
        for buffer, value in zip(state, values, strict=True):
            store(buffer, [at], value)

    def _load(self, state: _State, at: Any) -> list[Any]:
        return [buffer[at] for buffer in state]

    def _take(self, state: _State, v: Any, loads: Sequence[Any], index: Any, item: Any) -> None:
        """Emit one more element of each lane; ``item`` is a vector in which it is held."""
        index = tirx.const(index, "int32") if isinstance(index, int) else index
        store(item, [v], self.op.element(loads))
        self._put(state, v, self.op.reducer.update(self._load(state, v), item[v], index))

    def _merge(self, into: _State, other: _State, width: int, offset: int = 0) -> None:
        def lane(v: Any) -> None:
            self._put(into, v, self.op.reducer.merge(self._load(into, v), self._load(other, v + offset)))

        vectors(width, self.lanes, lane)

    def _across(self, state: _State) -> None:
        """Merge all lanes into the first."""
        half = self.lanes // 2
        while half:
            self._merge(state, state, half, half)
            half //= 2

    def _finish(self, state: _State, v: Any, result: Any, offsets: Sequence[Any], stride: Sequence[int]) -> None:
        """Emit the result in lane ``v``, at ``result`` of the outputs; offsets are those of all reads, stride theirs a lane."""
        values = self.op.reducer.results(self._load(state, v))
        if self.op.outputs == 1:
            # what follows may read the result several times
            store(state[-1], [v], values[0])
            n = self.op.elements
            loads = [self.flat[r.buffer][o + v * s] for r, o, s in zip(self.op.reads[n:], offsets[n:], stride[n:])]
            values = [self.op.finish(state[-1][v], loads)]
        for buffer, value in zip(self.outputs, values, strict=True):
            store(buffer, [result], value)

    # -- offsets -------------------------------------------------------------------------------------------------------

    def _offsets(self, row: Any, skip: int = 0) -> list[Any]:
        """Return the offset of each read at a row, which counts the spatial axes without the last ``skip``."""
        return _at(self.op.spatial[: len(self.op.spatial) - skip], [r.offset for r in self.op.reads], row)

    def _nest(self, depth: int, offsets: list[Any], innermost: Callable[[list[Any]], None]) -> None:
        """Emit the loops over all reduced axes but the last."""
        if depth >= len(self.op.reduced) - 1:
            innermost(offsets)
            return
        axis = self.op.reduced[depth]
        with T.serial(0, axis.extent) as k:
            self._nest(depth + 1, [o + k * s for o, s in zip(offsets, axis.strides)], innermost)

    def _elements(self, offsets: Sequence[Any], strides: Sequence[int], at: Any) -> list[Any]:
        """Return the loads of an element."""
        return [self.flat[r.buffer][o + at * s] for r, o, s in zip(self.op.reads[: self.op.elements], offsets, strides)]

    # -- the last reduced axis in memory -------------------------------------------------------------------------------

    def _inner(self) -> None:
        n = self.op.reduced[-1].extent
        pieces = pieces_of_rows(self.rows, self.machine)
        seconds = self._seconds(self.rows) + self.rows * 10e-9
        step = self.chains * self.lanes
        cut = -(-n // (4 * self.machine.cores * step)) * step
        if self.rows == 1 and len(self.op.reduced) == 1 and cut < n and is_parallel(2, self.machine, seconds):
            self._one_row(n, cut, seconds)
            return
        with (
            parallel(pieces, self.machine, seconds) as piece,
            T.serial(piece * self.rows // pieces, (piece + 1) * self.rows // pieces) as row,
        ):
            offsets = self._offsets(row)
            self._finish(self._row(n, offsets, 0), 0, row, offsets, [0] * len(offsets))

    def _row(self, n: int, offsets: list[Any], first: Any) -> _State:
        """Emit the reduction of n elements along the last axis, and of all others; the result is in lane 0."""
        chains = min(self.chains, -(-n // self.lanes))
        states = self._states(chains, lambda k, v: first + k * self.lanes + v)
        strides = self.op.reduced[-1].strides

        def innermost(offsets: list[Any]) -> None:
            item = T.alloc_buffer((self.lanes,), self.op.reducer.dtypes[-1])
            along(n, self.lanes, lambda c, v, j: self._take(states[c], v, self._elements(offsets, strides, j), first + j, item), chains)

        self._nest(0, offsets, innermost)
        for state in states[1:]:
            self._merge(states[0], state, self.lanes)
        self._across(states[0])
        return states[0]

    def _one_row(self, n: int, cut: int, seconds: float) -> None:
        """Emit one long row in pieces of ``cut``."""
        pieces = -(-n // cut)
        partial = [T.alloc_buffer((pieces,), d) for d in self.op.reducer.dtypes]
        strides = self.op.reduced[-1].strides

        def piece_of(k: Any, count: int) -> None:
            state = self._row(count, [o + k * cut * s for o, s in zip(self._offsets(0), strides)], k * cut)
            self._put(partial, k, self._load(state, 0))

        with parallel(pieces, self.machine, seconds) as k:
            block_of(k, n, cut, piece_of)
        for k in range(1, pieces):
            self._put(partial, 0, self.op.reducer.merge(self._load(partial, 0), self._load(partial, k)))
        offsets = self._offsets(0)
        self._finish(partial, 0, 0, offsets, [0] * len(offsets))

    # -- the last spatial axis in memory -------------------------------------------------------------------------------

    def _outer(self) -> None:
        columns = self.op.spatial[-1].extent
        rows = self.rows // columns
        across = -(-columns // self.lanes)
        tiles = -(-across // self.chains)
        width = -(-across // tiles) * self.lanes
        tiles = -(-columns // width)
        pieces = pieces_of_rows(rows * tiles, self.machine)
        first, last = (lambda p: p * (rows * tiles) // pieces), (lambda p: (p + 1) * (rows * tiles) // pieces)
        with parallel(pieces, self.machine, self._seconds(self.rows)) as piece, T.serial(first(piece), last(piece)) as unit:
            row, tile = unit // tiles, unit % tiles
            block_of(tile, columns, width, lambda at, count: self._tile(row, at * width, count))

    def _tile(self, row: Any, column: Any, width: int) -> None:
        """Emit ``width`` neighbouring results."""
        side = -(-width // self.lanes)
        steps = self.op.reduced[-1].extent if self.op.reduced else 1
        chains = max(1, min(self.chains // side, steps // 2))
        own, along_k = self.op.spatial[-1].strides, self.op.reduced[-1].strides if self.op.reduced else (0,) * len(self.op.reads)
        states = self._states(chains * side, lambda k, v: tirx.const(k // side, "int32"))
        offsets = [o + column * s for o, s in zip(self._offsets(row, 1), own)]

        def innermost(offsets: list[Any]) -> None:
            item = T.alloc_buffer((self.lanes,), self.op.reducer.dtypes[-1])

            def step(k: Any, chain: int) -> None:
                at = [o + k * s for o, s in zip(offsets, along_k)]
                for b in range(side):

                    def lane(v: Any, b: int = b) -> None:
                        loads = self._elements([o + b * self.lanes * s for o, s in zip(at, own)], own, v)
                        self._take(states[chain * side + b], v, loads, k, item)

                    vectors(min(self.lanes, width - b * self.lanes), self.lanes, lane)

            with T.serial(0, steps // chains) as k:
                for c in range(chains):
                    step(k * chains + c, c)
            for c in range(steps % chains):
                step(tirx.const(steps // chains * chains + c, "int32"), c)

        self._nest(0, offsets, innermost)
        for k in range(side, chains * side):
            self._merge(states[k % side], states[k], self.lanes)
        for b in range(side):
            at, base = [o + b * self.lanes * s for o, s in zip(offsets, own)], row * self.op.spatial[-1].extent + column + b * self.lanes

            def put(v: Any, b: int = b, at: list[Any] = at, base: Any = base) -> None:
                self._finish(states[b], v, base + v, at, own)

            vectors(min(self.lanes, width - b * self.lanes), self.lanes, put)


def _at(axes: Sequence[Axis], offsets: list[Any], row: Any) -> list[Any]:
    """Return offsets at a row, which counts the axes, the last one fastest."""
    for k, axis in enumerate(axes):
        inner = math.prod(a.extent for a in axes[k + 1 :])
        at = row if inner == 1 else row // inner
        at = at % axis.extent if k else at
        offsets = [o + at * s if s else o for o, s in zip(offsets, axis.strides)]
    return offsets
