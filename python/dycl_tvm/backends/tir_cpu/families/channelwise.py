# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels of operators whose output channel c depends on input channel c only, on packed tensors: a vector is a block of channels.

Loops: batch and channel blocks and shares of rows (parallel), rows, tiles of columns. A tile is computed in registers. Conditions
of padding and windows are decided tile by tile when the kernel is made: interior tiles have none, the first and last tiles of a row
have their columns' own windows, and rows at the border test once a row of the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.reading.channelwise_op import ChannelwiseOp, channelwise
from dycl_tvm.backends.tir_cpu.reading.ranges import Decider, branches, conjunction, is_conditional
from dycl_tvm.backends.tir_cpu.words.epilogue import epilogue_buffers, finish
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import memory_type, read, write
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue, Tensor

__all__ = ["ChannelwiseOp", "channelwise", "kernel"]

#: Vector operations that one tile may unroll to, and the windows along a row that are unrolled.
_TILE_OPERATIONS, _ROW_WINDOW = 160, 16

#: Vector operations of all tiles of a row that are not alike.
_BORDER_OPERATIONS = 500

#: Accumulators that hide the latency of a reduction.
_CHAINS = 8

_Box = dict[Any, tuple[int, ...]]


def kernel(op: ChannelwiseOp, layouts: Sequence[Tensor], machine: Machine, epilogue: Epilogue = NOTHING, tile: int = 0) -> Any:
    """Return the PrimFunc (inputs, epilogue operands, output) of an operator.

    Parameters
    ----------
    op : ChannelwiseOp
    layouts : sequence of Tensor
        The inputs and the output with their layouts. Packed tensors have blocks of ``machine.lanes``. Inputs with channels may be
        plain, which is slow for images; the output should be packed unless it has no spatial dimensions.
    machine : Machine
    epilogue : Epilogue
    tile : int
        Columns of a tile; 0 chooses.
    """
    *inputs, y = layouts
    buffers = [(f"x{k}", t.physical, memory_type(t.dtype)) for k, t in enumerate(inputs)]
    names = [*buffers, *epilogue_buffers(epilogue), ("y", y.physical, memory_type(y.dtype))]
    return prim_func(names, lambda *b: _Emitter(op, inputs, y, machine, epilogue, b, tile).run())


def _int64(value: int) -> Any:
    return tirx.IntImm("int64", value)


def _serial(extent: int) -> Any:
    return T.serial(_int64(0), _int64(extent))


class _Emitter:
    """Emits one kernel."""

    def __init__(
        self, op: ChannelwiseOp, inputs: list[Tensor], y: Tensor, machine: Machine, epilogue: Epilogue, buffers: Sequence[Any], tile: int
    ) -> None:
        self.op, self.inputs, self.y, self.machine, self.epilogue = op, inputs, y, machine, epilogue
        self.buffers, self.operands, self.out = buffers[: len(inputs)], buffers[len(inputs) : -1], buffers[-1]
        self.lanes = machine.lanes
        self.decide = Decider()
        self.batch, self.channels, *spatial = op.extents
        self.blocks = -(-self.channels // self.lanes)
        # an output without spatial dimensions has one column that no axis counts
        self.outer, self.columns = tuple(spatial[:-1]), spatial[-1] if spatial else 1
        self.outer_axes, self.column = op.axes[2:-1], op.axes[-1] if spatial else None
        self.window = () if op.reduction is None else op.reduction.extents
        self.tile = min(self.columns, tile or self._best_tile())
        parts = [op.value, *([] if op.reduction is None else [op.reduction.element])]
        self.atoms = [a for p in parts for a in _conditions(p)] + ([] if op.reduction is None else list(op.reduction.guard))
        self.conditional = {id(p): bool(_conditions(p)) or _has_casts(p) for p in parts}
        # comparisons and choices take several instructions, and TVM's passes time
        heavy = op.reduction is not None and isinstance(op.reduction.combine, tirx.Select)
        self.budget = _TILE_OPERATIONS // 2 if heavy else _TILE_OPERATIONS
        self.n: Any = None
        self.cb: Any = None

    def _best_tile(self) -> int:
        most = self.machine.registers // 2 - 2 if self.op.reduction is not None else 4
        return -(-self.columns // -(-self.columns // most))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Emit the loops over batch, channel blocks and rows."""
        rows = math.prod(self.outer)
        units = self.batch * self.blocks
        shares = next((s for s in (1, 2, 4, 8) if units * s % 4 == 0 or units * s >= 16), 8)
        shares = min(shares, rows)
        share = -(-rows // shares)
        with parallel(units * shares, self.machine, self._seconds()) as piece:
            piece = piece.astype("int64")
            unit, first = piece // shares, piece % shares * share
            self.n, self.cb = unit // self.blocks, unit % self.blocks
            with _serial(share) as k:
                row = first + k
                with ExitStack() as stack:
                    if share * shares > rows:
                        stack.enter_context(T.If(row < rows))
                        stack.enter_context(T.Then())
                    self._row(row)

    def _seconds(self) -> float:
        traffic = sum(t.nbytes for t in self.inputs) + self.y.nbytes
        return traffic / 30e9 + math.prod(self.op.extents) * (math.prod(self.window) + self.epilogue.operations) / self.machine.gflops / 3e8

    def _row(self, row: Any) -> None:
        where: list[Any] = []
        for k, extent in enumerate(self.outer):
            inner = math.prod(self.outer[k + 1 :])
            at = row if inner == 1 else row // inner
            where.append(at if k == 0 else at % extent)
        full: _Box = {self.op.axes[0]: tuple(range(self.batch))}
        full |= {a: tuple(range(e)) for a, e in zip(self.outer_axes, self.outer)}
        inner_box, tests = dict(full), []
        for axis, extent, at in zip(self.outer_axes, self.outer, where):
            begin, end = self._interior(axis, extent, full)
            if end - begin < extent and end > begin:
                inner_box[axis] = tuple(range(begin, end))
                tests += [at >= begin] if begin else []
                tests += [at < end] if end < extent else []
        if not tests:
            self._columns(where, full, True)
            return
        with T.If(tirx.all(*tests)):
            with T.Then():
                self._columns(where, inner_box, True)
            with T.Else():
                self._columns(where, full, False)

    def _interior(self, axis: Any, extent: int, box: _Box) -> tuple[int, int]:
        """Return the longest range of an axis in which all conditions on it hold, whatever the window's element."""
        atoms = [a for a in self.atoms if any(v.same_as(axis) for v in self.decide.of(a).variables)]
        if not atoms:
            return 0, extent
        everywhere = {**box, **self._window_box()}
        if self.column is not None:
            everywhere[self.column] = tuple(range(self.columns))
        best, begin = (0, 0), 0
        for p in range(extent + 1):
            if p == extent or any(self.decide(a, {**everywhere, axis: (p,)}) != 1 for a in atoms):
                best = max(best, (begin, p), key=lambda r: r[1] - r[0])
                begin = p + 1
        return best

    def _window_box(self) -> _Box:
        reduction = self.op.reduction
        return {} if reduction is None else {a: tuple(range(e)) for a, e in zip(reduction.axes, reduction.extents)}

    # -- tiles of a row ------------------------------------------------------------------------------------------------

    def _columns(self, where: list[Any], box: _Box, unrolled: bool) -> None:
        begin, end = (0, 1) if self.column is None else self._interior(self.column, self.columns, box)
        width, count = self.tile, self.columns // self.tile
        first, last = -(-begin // width), max(end // width, -(-begin // width))
        costs = width * (math.prod(self.window) if unrolled else self.window[-1] if self.window else 1)
        alone = (count - (last - first)) * min(costs, self.budget) <= _BORDER_OPERATIONS
        self._tiles(0, first, where, box, unrolled, alone)
        self._tiles(first, last, where, box, unrolled, last - first == 1)
        self._tiles(last, count, where, box, unrolled, alone)
        rest = self.columns % width
        if rest:
            self._tile(count * width, (count * width,), rest, where, box, unrolled)

    def _tiles(self, first: int, last: int, where: list[Any], box: _Box, unrolled: bool, alone: bool) -> None:
        """Emit tiles of equal width: each for itself, or as a loop."""
        width = self.tile
        if alone:
            for t in range(first, last):
                self._tile(t * width, (t * width,), width, where, box, unrolled)
        elif last > first:
            with _serial(last - first) as t:
                self._tile((t + first) * width, tuple(range(first * width, last * width, width)), width, where, box, unrolled)

    def _tile(self, start: Any, starts: tuple[int, ...], width: int, where: list[Any], box: _Box, unrolled: bool) -> None:
        """Emit ``width`` columns from ``start``, an expression that takes the values ``starts``."""
        axes, values = [self.op.axes[0], *self.outer_axes], [self.n, *where]
        if self.column is None:
            runs = [_Run(box, axes, values)]
        else:
            runs = [
                _Run(
                    {**box, self.column: tuple(s + j for s in starts for j in part)},
                    [*axes, self.column],
                    values,
                    start + part[0],
                    len(part),
                )
                for part in self._runs(starts, width, box)
            ]
        totals = self._reduce(runs, unrolled) if self.op.reduction is not None else [None] * len(runs)
        for run, total in zip(runs, totals):
            with run.columns() as j:
                self._store(run.at(j), None if total is None else lambda lane, total=total, j=j: total[j, lane])

    def _runs(self, starts: tuple[int, ...], width: int, box: _Box) -> list[range]:
        """Split a tile into columns that are alike: each run is emitted once, and its accumulators are one buffer."""
        begin, end = self._interior(self.column, self.columns, box)
        most = max(1, 512 // (4 * self.lanes))
        runs: list[range] = []
        inside = False
        for j in range(width):
            here = begin <= starts[0] + j and starts[-1] + j < end
            if runs and inside and here and len(runs[-1]) < most:
                runs[-1] = range(runs[-1][0], j + 1)
            else:
                runs.append(range(j, j + 1))
            inside = here
        return runs

    def _store(self, point: _Point, total: Any) -> None:
        zero, spatial = _int64(0), point.values[1:]
        if self.y.block > 1:
            with T.vectorized(zero, _int64(self.lanes)) as lane:
                value = self._element(self.op.value, point, lane, None if total is None else total(lane))
                index = [self.n, self.cb, *spatial]
                write(self.out, self.y, [*index, lane], finish(self.epilogue, self.operands, self.y, value, index, lane))
            return
        block = T.alloc_buffer((self.lanes,), self.op.y.dtype)
        with T.vectorized(zero, _int64(self.lanes)) as lane:
            store(block, [lane], self._element(self.op.value, point, lane, None if total is None else total(lane)))
        exact = self.channels % self.lanes == 0
        with (T.vectorized if exact else T.serial)(zero, _int64(self.lanes)) as lane, ExitStack() as stack:
            channel = self.cb * self.lanes + lane
            if not exact:
                stack.enter_context(T.If(channel < self.channels))
                stack.enter_context(T.Then())
            index = [self.n, channel, *spatial]
            store(self.out, index, finish(self.epilogue, self.operands, self.y, block[lane], index))

    # -- reductions ----------------------------------------------------------------------------------------------------

    def _reduce(self, runs: list[_Run], unrolled: bool) -> list[Any]:
        """Emit the reductions of a tile; return the buffers (columns of the run, lanes) that hold the results."""
        reduction = self.op.reduction
        assert reduction is not None
        columns = sum(run.count for run in runs)
        chains = max(1, min(_CHAINS // columns, reduction.extents[-1]))
        dtype = str(reduction.total.ty.dtype)
        totals = [[T.alloc_buffer((run.count, self.lanes), dtype) for _ in range(chains)] for run in runs]
        for run, group in zip(runs, totals):
            for total in group:
                with run.columns() as j, T.vectorized(0, self.lanes) as lane:
                    store(total, [j, lane], reduction.init)
        unrolled = unrolled and columns * math.prod(reduction.extents) <= self.budget
        self._taps(0, [], {}, runs, totals, unrolled)
        for run, group in zip(runs, totals):
            step = 1
            while step < chains:
                for k in range(0, chains - step, 2 * step):
                    with run.columns() as j, T.vectorized(0, self.lanes) as lane:
                        store(group[k], [j, lane], self._combined(group[k][j, lane], group[k + step][j, lane]))
                step *= 2
        return [group[0] for group in totals]

    def _taps(self, depth: int, taps: list[Any], box: _Box, runs: list[_Run], totals: list[list[Any]], unrolled: bool) -> None:
        """Emit the loops over the window from its dimension ``depth`` on."""
        reduction = self.op.reduction
        assert reduction is not None
        with ExitStack() as stack:
            tests = self._row_tests(depth, taps, box, runs[0].at(0))
            if tests is None:
                return
            if tests:
                stack.enter_context(T.If(tirx.all(*tests)))
                stack.enter_context(T.Then())
            if depth == len(reduction.extents):
                self._update(taps, box, runs, totals)
                return
            axis, extent = reduction.axes[depth], reduction.extents[depth]

            def tap(at: Any, values: tuple[int, ...]) -> None:
                self._taps(depth + 1, [*taps, _as_int64(at)], {**box, axis: values}, runs, totals, unrolled)

            columns = sum(run.count for run in runs)
            innermost = depth == len(reduction.extents) - 1
            if unrolled or (innermost and extent <= _ROW_WINDOW and extent * columns <= self.budget):
                for r in range(extent):
                    tap(r, (r,))
            elif not innermost or extent < 2 * _CHAINS or columns >= _CHAINS:
                with _serial(extent) as r:
                    tap(r, tuple(range(extent)))
            else:
                whole = extent // _CHAINS * _CHAINS
                with _serial(whole // _CHAINS) as r:
                    for q in range(_CHAINS):
                        tap(r * _CHAINS + q, tuple(range(q, whole, _CHAINS)))
                for r in range(whole, extent):
                    tap(r, (r,))

    def _row_tests(self, depth: int, taps: list[Any], box: _Box, point: _Point) -> list[Any] | None:
        """Return the undecided conditions that depend on the row and the window's dimensions before ``depth``, the last of these
        included; None if one of them never holds."""
        reduction = self.op.reduction
        assert reduction is not None
        bound, tests = reduction.axes[:depth], []
        for atom in reduction.guard:
            variables = self.decide.of(atom).variables
            mine = [v for v in variables if any(v.same_as(a) for a in reduction.axes)]
            if self._on_column(variables) or any(not any(v.same_as(a) for a in bound) for v in mine):
                continue
            if depth and not any(v.same_as(bound[-1]) for v in mine):
                continue  # tested further out
            known = self.decide(atom, {**point.box, **box})
            if known == 0:
                return None
            if known is None:
                tests.append(point.substituted(atom, bound, taps))
        return tests

    def _on_column(self, variables: Sequence[Any]) -> bool:
        return self.column is not None and any(v.same_as(self.column) for v in variables)

    def _update(self, taps: list[Any], box: _Box, runs: list[_Run], totals: list[list[Any]]) -> None:
        """Emit the combination of one element of the window into the totals of all columns where it is inside."""
        reduction = self.op.reduction
        assert reduction is not None
        for run, group in zip(runs, totals):
            here = {**run.box, **box}
            known = {
                k: self.decide(atom, here) for k, atom in enumerate(reduction.guard) if self._on_column(self.decide.of(atom).variables)
            }
            if 0 in known.values():
                continue
            total = group[box[reduction.axes[-1]][0] % len(group)]
            with run.columns() as j, ExitStack() as stack:
                point = run.at(j)
                tests = [point.substituted(reduction.guard[k], reduction.axes, taps) for k, value in known.items() if value is None]
                if tests:
                    stack.enter_context(T.If(tirx.all(*tests)))
                    stack.enter_context(T.Then())
                with T.vectorized(_int64(0), _int64(self.lanes)) as lane:
                    element = _Point(here, [*point.axes, *reduction.axes], [*point.values, *taps])
                    item = self._element(reduction.element, element, lane, None)
                    store(total, [j, lane], self._combined(total[j, lane], item))

    def _combined(self, total: Any, item: Any) -> Any:
        """Return the combination of a load of a total and an item."""
        reduction = self.op.reduction
        assert reduction is not None
        if isinstance(reduction.combine, tirx.Select):
            # a maximum that keeps NaN reads its operands several times, which takes TVM's passes long. Only one may become a
            # variable: TVM takes variables that it compares for ordered numbers
            item = T.bind(item)
        return reduction.combined(total, item)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _element(self, expr: Any, point: _Point, lane: Any, total: Any) -> Any:
        """Return an expression of the operator at a point, for the channel in ``lane``."""
        if self.conditional[id(expr)]:
            expr = self.decide.simplified(expr, point.box)

        def variable(v: Any, _: Any) -> Any:
            return total if total is not None and v.same_as(self.op.result) else point.of(v)

        def load(node: Any, mutator: Any) -> Any:
            number = next(k for k, p in enumerate(self.op.params) if node.source.same_as(p))
            return self._load(number, [mutator.mutate(i) for i in node.indices], lane)

        # indices may be loads themselves (tables of a resize); structural_map rebuilds those in place, and crashed
        return tvm_ffi.structural_mutate(expr, [(Var, variable), (TensorLoad, load)])

    def _load(self, number: int, index: list[Any], lane: Any) -> Any:
        tensor, dim, buffer = self.inputs[number], self.op.channel_dims[number], self.buffers[number]
        if tensor.block > 1:
            # one channel for all: the first lane
            block, at = (self.cb, lane) if dim is not None else (_int64(0), _int64(0))
            index = [index[0], block, *index[2:], at]
        elif dim is not None:
            channel = self.cb * self.lanes + lane
            index[dim] = tirx.min(channel, _int64(self.channels - 1)) if self.channels % self.lanes else channel
        return read(buffer, tensor, index)


class _Point:
    """A place in the output (and the window): the values that axes take there, as expressions and as ranges."""

    def __init__(self, box: _Box, axes: list[Any], values: list[Any]) -> None:
        self.box, self.axes, self.values = box, axes, values

    def of(self, variable: Any) -> Any:
        """Return the expression of a variable, or itself if it is none of the axes."""
        return next((v for a, v in zip(self.axes, self.values) if variable.same_as(a)), variable)

    def substituted(self, expr: Any, axes: Sequence[Any], values: Sequence[Any]) -> Any:
        """Return an expression at this point and at a window's element."""
        whole = _Point(self.box, [*self.axes, *axes], [*self.values, *values])
        return tvm_ffi.structural_map(expr, (Var, whole.of))


class _Run:
    """Neighbouring columns of a row that are computed alike."""

    def __init__(self, box: _Box, axes: list[Any], values: list[Any], start: Any = None, count: int = 1) -> None:
        self.box, self.axes, self.values, self.start, self.count = box, axes, values, start, count

    @contextmanager
    def columns(self) -> Iterator[Any]:
        """Loop over the run, unrolled; gives the number of the column in the run."""
        if self.count == 1:
            yield _int64(0)
        else:
            with T.unroll(_int64(0), _int64(self.count)) as j:
                yield j

    def at(self, column: Any) -> _Point:
        """Return a point of the run."""
        if self.start is None:
            return _Point(self.box, self.axes, self.values)
        return _Point(self.box, self.axes, [*self.values, self.start + column])


def _as_int64(value: Any) -> Any:
    return _int64(value) if isinstance(value, int) else value


def _conditions(expr: Any) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if is_conditional(node):
            found.extend(conjunction(branches(node)[0]))

    tvm_ffi.structural_walk(expr, visit)
    return found


def _has_casts(expr: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tirx.Cast, found.append))
    return bool(found)
