# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Depthwise convolutions of 8-bit integers: quads are neighbours of a row.

Four columns of a block of channels lie in memory one behind the other. One shuffle makes a vector of quads of them, one a channel, and a
dot product multiplies it with up to four taps of a row of each channel's filter. The filter is packed for each way that its taps fall on
a quad: where none falls there is a zero, so outputs that are neighbours share quads, and at the ends of a row quads are taken from within
it. All sums of a few rows are kept in the cache before the epilogue reads them. Sums are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families.depthwise import is_depthwise
from dycl_tvm.backends.tir_cpu.words.convolution import Axis, Problem, cut, problem, share, tiles
from dycl_tvm.backends.tir_cpu.words.cost import overlapped
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.int8 import (
    QUAD,
    allowed,
    columns_as_quads,
    cost,
    cycles_per_second,
    dots,
    int8_func,
    products,
    start_of,
    store_offset,
    takes,
)
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor

#: Bytes of the sums of a tile of rows; instructions of the products of all tiles that are not alike, which take the compiler time.
_SUMS, _CODE = 16 << 10, 2500
#: Sums that must be under way to hide the latency of an instruction, and cycles to finish a vector of them.
_IN_FLIGHT, _FINISHING = 8, 6.0

#: Of each byte of a quad, which tap of a row falls on it; -1 for none.
Taps = tuple[int, ...]
#: Vectors of weights that an output is multiplied with: row of the filters, number of the way.
Taken = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Int8DepthwisePlan(Plan):
    """Rows of a tile, and its columns."""

    rows: int
    columns: int


@dataclass(frozen=True)
class _Columns:
    """Like tiles that follow each other in a row: ``count`` of ``width`` columns from ``start`` on.

    ``quads`` are those that a tile reads: the column of the input where the first tile's begins, and for each of the tile's columns
    the taps that fall on it, None if there are none.
    """

    start: int
    width: int
    count: int
    quads: tuple[tuple[int, tuple[Taps | None, ...]], ...]


class _Int8Depthwise:
    """The family ``int8`` of convolutions of one channel a group."""

    name = "int8"

    def plans(self, work: Conv2D, machine: Machine) -> list[Int8DepthwisePlan]:
        """Return tiles, best estimate first, for images of at least a quad in a row."""
        if not (takes(work.dtypes) and is_depthwise(work, machine) and allowed(machine)) or work.x.shape[3] < QUAD or not work.macs:
            return []
        if work.border:  # they read the input where it lies
            return []
        p = problem(work)
        most = max(1, min(p.rows.out, _SUMS // (4 * machine.lanes * p.columns.out)))
        found: dict[Any, Int8DepthwisePlan] = {}
        for rows, columns in itertools.product((1, 2, 3, 4), (1, 2, 4)):
            plan = self._plan(work, min(rows, most), min(columns, p.columns.out), machine)
            code = (
                cost(machine)
                * len(cut(p.rows.out, plan.rows, p.rows))
                * plan.rows
                * p.rows.kernel
                * _products(_runs(p.columns, plan.columns))
            )
            if rows * columns == 1 or (rows * columns <= machine.registers // 2 and code <= _CODE):
                found[plan.params] = plan
        return sorted(found.values(), key=lambda plan: (plan.seconds, plan.params))[:6]

    def _plan(self, work: Conv2D, rows: int, columns: int, machine: Machine) -> Int8DepthwisePlan:
        p = problem(work)
        cycles = 0.0
        for run in cut(p.rows.out, rows):
            reached = len({a * p.rows.stride + i * p.rows.dilation for a in range(run.size) for i in range(p.rows.kernel)})
            for tile in _runs(p.columns, columns):
                products = run.size * p.rows.kernel * _products([tile])
                waiting = _IN_FLIGHT * products / (2 * run.size * tile.width)
                own = max(products * cost(machine), waiting) + 2.0 * reached * len(tile.quads) + _FINISHING * run.size * tile.width
                cycles += (run.last - run.first) * tile.count * (own + 4)
        images = work.y.shape[0] * work.y.physical[1]
        alone = images * cycles / cycles_per_second(machine)
        moved = work.x.nbytes + work.y.nbytes
        alone = overlapped(alone, moved / machine.stream_rate(moved))
        return Int8DepthwisePlan(alone / min(machine.cores, images * tiles(cut(p.rows.out, rows))) + machine.launch / 2, rows, columns)

    def packed(self, work: Conv2D, plan: Int8DepthwisePlan, machine: Machine) -> Tensor:
        """Vectors of quads: of each block of channels, of each row of its filters, of each way that taps fall on a quad. Then offsets."""
        p = problem(work)
        ways = len(_ways(_runs(p.columns, plan.columns)))
        offsets = -(-len(_taken(work, plan)) // ways) if products(machine).offset else 0
        return Tensor((work.x.physical[1], p.rows.kernel + offsets, ways, QUAD * machine.lanes), "int8")

    def pack(self, work: Conv2D, plan: Int8DepthwisePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (C, 1, KH, KW), quads)."""
        p, lanes, channels, how = problem(work), machine.lanes, work.x.shape[1], products(machine)
        shape, ways = self.packed(work, plan, machine).shape, _ways(_runs(p.columns, plan.columns))

        def body(weights: Any, packed: Any) -> None:
            # one loop for all ways: LLVM unrolls small ones, and many of them would take it seconds
            zero = tirx.const(0, "int8")
            with T.grid(shape[0], p.rows.kernel, lanes) as (cb, i, lane):
                channel = cb * lanes + lane
                row = [
                    T.bind(tirx.if_then_else(channel < channels, weights[tirx.min(channel, channels - 1), 0, i, tap], zero))
                    for tap in range(p.columns.kernel)
                ]
                for number, way in enumerate(ways):
                    for byte, tap in enumerate(way):
                        store(packed, [cb, i, number, how.at(lane, byte, lanes)], row[tap] if tap >= 0 else zero)
            if not how.offset:
                return
            with T.grid(shape[0], lanes) as (cb, lane):
                for number, taken in enumerate(_taken(work, plan)):

                    def each(add: Any, taken: Any = taken) -> None:
                        for i, way in taken:
                            for byte in range(QUAD):
                                add(packed[cb, i, way, how.at(lane, byte, lanes)], byte)

                    store_offset(packed, [cb, *_behind(p, number, len(ways))], lane, each, how)

        return prim_func([("weights", work.weight_shape, "int8"), ("packed", shape, "int8")], body)

    def kernel(self, work: Conv2D, plan: Int8DepthwisePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, quads, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, plan, machine, epilogue, x, weights, rest[:-1], rest[-1]).emit(
                self._plan(work, plan.rows, plan.columns, machine)
            )

        return int8_func(buffers, body, machine)


FAMILY = _Int8Depthwise()


def _runs(axis: Axis, width: int) -> list[_Columns]:
    """Cut a row into tiles of at most ``width`` columns, and collect like ones."""
    found: list[_Columns] = []
    for run in cut(axis.out, width):
        for tile in range(run.first, run.last):
            start = run.position(tile)
            quads = _quads(axis, range(start, start + run.size))
            last = found[-1] if found else None
            if last is not None and last.width == run.size and _moved(last, last.count * last.width * axis.stride) == quads:
                found[-1] = _Columns(last.start, last.width, last.count + 1, last.quads)
            else:
                found.append(_Columns(start, run.size, 1, quads))
    return found


def _moved(run: _Columns, by: int) -> tuple[tuple[int, tuple[Taps | None, ...]], ...]:
    return tuple((first + by, taps) for first, taps in run.quads)


def _quads(axis: Axis, columns: Sequence[int]) -> tuple[tuple[int, tuple[Taps | None, ...]], ...]:
    """Return the quads that hold what outputs reach of a row: where each begins, and by output the taps that fall on it."""
    reached = [{axis.at(c, k): k for k in range(axis.kernel) if 0 <= axis.at(c, k) < axis.size} for c in columns]
    waiting = sorted({at for taps in reached for at in taps})
    found = []
    while waiting:
        first = min(waiting[0], axis.size - QUAD)
        here = range(waiting[0], first + QUAD)  # what lies before is of the quad before
        ways = [tuple(taps.get(at, -1) if at in here else -1 for at in range(first, first + QUAD)) for taps in reached]
        found.append((first, tuple(way if max(way) >= 0 else None for way in ways)))
        waiting = [at for at in waiting if at not in here]
    return tuple(found)


def _ways(runs: Sequence[_Columns]) -> list[Taps]:
    """Return the ways that taps fall on quads, each once."""
    return sorted({way for run in runs for _, taps in run.quads for way in taps if way is not None})


def _of_output(inside: Sequence[bool], run: _Columns, column: int, number: Mapping[Taps, int]) -> Taken:
    """Return the vectors of weights, by row of the filters and number of the way, that a column of a tile takes in a row of outputs."""
    ways = [taps[column] for _, taps in run.quads]
    return tuple((i, number[way]) for i, there in enumerate(inside) if there for way in ways if way is not None)


def _taken(work: Conv2D, plan: Int8DepthwisePlan) -> list[Taken]:
    """Return what all outputs take, each once."""
    p = problem(work)
    rows = {inside for run in cut(p.rows.out, plan.rows, p.rows) for inside in run.reach}
    runs = _runs(p.columns, plan.columns)
    number = {way: k for k, way in enumerate(_ways(runs))}
    return sorted({_of_output(inside, run, b, number) for inside in rows for run in runs for b in range(run.width)})


def _behind(p: Problem, number: int, ways: int) -> tuple[int, int]:
    """Return where the offset of this number is in the packed weights, behind the rows of the filters."""
    return p.rows.kernel + number // ways, number % ways


def _products(runs: Sequence[_Columns]) -> int:
    """Return the dot products of a row of the filters, in one tile of each run."""
    return sum(taps is not None for run in runs for _, ways in run.quads for taps in ways)


class _Emitter:
    """Writes one kernel."""

    def __init__(
        self, work: Conv2D, plan: Int8DepthwisePlan, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Any, y: Any
    ) -> None:
        self.work, self.machine, self.epilogue, self.operands, self.y, self.weights = work, machine, epilogue, operands, y, weights
        self.p, self.lanes, self.rows = problem(work), machine.lanes, plan.rows
        self.columns = _runs(self.p.columns, plan.columns)
        self.number = {way: k for k, way in enumerate(_ways(self.columns))}
        self.how = products(machine)
        self.offsets = {taken: k for k, taken in enumerate(_taken(work, plan))} if self.how.offset else {}
        n, blocks, height, width, _ = work.x.physical
        # of which a quad of columns is one vector
        self.x = T.decl_buffer((n, blocks, height, width * self.lanes), "uint8", data=x.data)

    def emit(self, plan: Plan) -> None:
        """Emit the body of the kernel."""
        p, blocks = self.p, self.work.x.physical[1]
        runs = cut(p.rows.out, self.rows, p.rows)
        parts = min(tiles(runs), 4)
        with parallel(self.work.y.shape[0] * blocks * parts, self.machine, plan.seconds * self.machine.cores) as piece:
            image, part = piece // parts, piece % parts
            n, cb = image // blocks, image % blocks
            begin, end = share(part, parts, tiles(runs))
            sums = T.alloc_buffer((max(r.size for r in runs), p.columns.out, self.lanes), "int32")
            for run in runs:
                low, high = tirx.max(begin, run.first), tirx.min(end, run.last)
                with T.serial(0, tirx.max(0, high - low)) as t:
                    self._rows(n, cb, run.position(low + t), run.reach, sums)

    def _rows(self, n: Any, cb: Any, row: Any, reach: Any, sums: Any) -> None:
        """Emit the sums of a tile of rows, and what becomes of them."""
        for run in self.columns:
            with T.serial(0, run.count) as t:
                self._tile(n, cb, row, reach, run, t, sums)
        with T.serial(0, len(reach)) as a, T.serial(0, self.p.columns.out) as b, T.vectorized(0, self.lanes) as v:
            index = [n, cb, row + a, b]
            store(self.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, sums[a, b, v], index, v))

    def _offset(self, cb: Any, taken: Taken) -> Any:
        """Return what the sums of such outputs begin at, None for 0."""
        if not self.how.offset:
            return None
        row, way = _behind(self.p, self.offsets[taken], len(self.number))
        return self.weights[cb, row, way, T.ramp(0, 1, QUAD * self.lanes)]

    def _tile(self, n: Any, cb: Any, row: Any, reach: Any, run: _Columns, t: Any, sums: Any) -> None:
        axis, lane, lanes = self.p.rows, T.ramp(0, 1, self.lanes), self.lanes
        totals = {(a, b): T.alloc_buffer((lanes,), "int32") for a in range(len(reach)) for b in range(run.width)}
        for (a, b), total in totals.items():
            store(total, [lane], start_of(self._offset(cb, _of_output(reach[a], run, b, self.number)), lanes))
        below: dict[int, list[tuple[int, int]]] = {}  # by the row of the input, the rows of outputs and filters that meet there
        for a, inside in enumerate(reach):
            for i in range(axis.kernel):
                if inside[i]:
                    below.setdefault(a * axis.stride + i * axis.dilation, []).append((a, i))
        for down in sorted(below):
            at = row * axis.stride - axis.pad + down
            for first, taps in run.quads:
                column = first + t * run.width * self.p.columns.stride
                quads = T.bind(columns_as_quads(self.x[n, cb, at, T.ramp(column * lanes, 1, QUAD * lanes)], lanes, self.how))
                for a, i in below[down]:
                    for b, way in enumerate(taps):
                        if way is not None:
                            weights = self.weights[cb, i, self.number[way], T.ramp(0, 1, QUAD * lanes)]
                            store(totals[a, b], [lane], dots(totals[a, b][lane], quads, weights, lanes))
        for (a, b), total in totals.items():
            store(sums, [a, run.start + t * run.width + b, lane], total[lane])
