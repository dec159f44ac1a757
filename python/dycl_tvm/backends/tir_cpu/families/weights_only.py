# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of float32 with weights of 8 or 4 bits.

Rows become fixed-point numbers (:mod:`fixed_point`), so that instructions for integers read the weights as they are: of each block the
exact sum, then times the two scales. Where that is slow for many rows, a tile of columns is ``spread``: its weights become float32 in
memory near the core, and all rows meet them there, as in :mod:`dense`. Rows that fixed point cannot hold are computed in float32.
Error: |error| <= (blocks + 8) 2^-24 sum |x w| + 2^-29 sum over the blocks of max |x| sum |w|; (k + 8) 2^-24 sum |x w| for what is spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.cost import overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.fixed_point import LOW, Rows, dot, fixed_point_func
from dycl_tvm.backends.tir_cpu.words.grouped import TOGETHER, Words, takes
from dycl_tvm.backends.tir_cpu.words.loops import parallel, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import multiply_add
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles
from dycl_tvm.backends.tir_cpu.words.vectors import clear, zeros
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: The widest tile of weights that are spread; registers of the others that hold no sums of integers.
_SPREAD, _OTHERS = 2, 6
#: What, over a multiply-add of float32, it costs to spread a weight, and an integer product with VNNI and without (measured).
_OPENING, _DOTS, _PAIRS = 5.0, 1.05, 1.75


@dataclass(frozen=True)
class WeightsOnlyPlan(Plan):
    """Rows and vectors of a tile, whether weights are spread in memory first; pieces of the columns."""

    rows: int
    vectors: int
    spread: int
    column_pieces: int


class _WeightsOnly:
    name = "weights_only"

    def plans(self, work: Dense, machine: Machine) -> list[WeightsOnlyPlan]:
        """Return tile choices, best estimate first."""
        if not (takes(work) and machine.isa in ("avx2", "avx512") and work.constant and work.shared and work.macs):
            return []
        total, vectors = work.batch * work.m, -(-work.n // machine.lanes)
        found = []
        for spread, widest in ((0, TOGETHER), (1, _SPREAD)):
            wide = next(v for v in (1, 2, 4) if v >= min(vectors, widest))
            most = (machine.registers - wide - 1) // wide if spread else (machine.registers - _OTHERS) // (2 * wide)
            tiles = -(-total // most)
            rows, columns = -(-total // tiles), -(-vectors // wide)
            _, pieces = pieces_of(1, columns, machine)
            seconds = shared_product(_seconds(work, machine, wide, spread), tiles, columns, (1, pieces), machine)
            found.append(WeightsOnlyPlan(seconds, rows, wide, spread, pieces))
        return sorted(found, key=lambda p: (p.seconds, p.params))

    def packed(self, work: Dense, plan: WeightsOnlyPlan, machine: Machine) -> Tensor:
        """Return the array of :class:`Words`."""
        return Words.of(work, machine).array

    def pack(self, work: Dense, plan: WeightsOnlyPlan, machine: Machine) -> Any:
        """Return the PrimFunc (integers, scales, words)."""
        return Words.of(work, machine).pack()

    def kernel(self, work: Dense, plan: WeightsOnlyPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), words, epilogue operands, y (batch, m, n))."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, w: Any, *rest: Any) -> None:
            _Kernel(work, plan, machine, epilogue, x, w, rest[:-1], rest[-1]).emit()

        return fixed_point_func(buffers, body, machine)


class _Kernel:
    """One kernel while it is written."""

    def __init__(
        self, work: Dense, plan: WeightsOnlyPlan, machine: Machine, epilogue: Epilogue, x: Any, w: Any, operands: Sequence[Any], y: Any
    ) -> None:
        self.work, self.plan, self.machine, self.epilogue = work, plan, machine, epilogue
        self.x, self.w, self.operands, self.y = x, w, operands, y
        self.words, self.lanes, self.width = Words.of(work, machine), machine.lanes, plan.vectors * machine.lanes
        self.total = work.batch * work.m
        self.starts = range(0, self.width, self.lanes)

    def emit(self) -> None:
        """Emit the product."""
        if self.plan.spread:
            self.columns(self.spread_tiles)
            return
        rows = Rows(self.total, self.work.k, self.words.block, self.lanes)
        rows.fill(lambda row, k: self.x[row_at(self.work, row, k)])

        def tiles(column: Any) -> None:
            self.tiles(self.plan.rows, lambda count, row: self.exact_tile(rows, count, row, column))
            with T.serial(0, self.total) as row, T.If(tirx.Not(rows.usual(row))), T.Then():
                self.float_tile(row, column)

        self.columns(tiles)

    def columns(self, emit: Callable[[Any], None]) -> None:
        """Emit ``emit(column)`` for all tiles of columns, in pieces."""
        columns, pieces = -(-self.work.n // self.width), self.plan.column_pieces
        alone = _seconds(self.work, self.machine, self.plan.vectors, self.plan.spread)
        with parallel(pieces, self.machine, alone) as piece:
            begin = piece * columns // pieces
            with T.serial(0, (piece + 1) * columns // pieces - begin) as index:
                emit(begin + index)

    def tiles(self, rows: int, emit: Callable[[int, Any], None]) -> None:
        """Emit ``emit(count, first row)`` for tiles of rows."""
        with T.serial(0, -(-self.total // rows)) as turn:
            even_tiles(self.total, rows, turn, emit)

    def store(self, totals: Sequence[Any], row: Any, column: Any) -> None:
        """Emit the epilogue of a tile."""
        store_rows(self.work, self.width, self.lanes, self.epilogue, self.operands, self.y, totals, row, column)

    def exact_tile(self, rows: Rows, count: int, row: Any, column: Any) -> None:
        """Emit some rows by one tile of columns, with exact sums of each block; those that are not usual are left to others."""
        totals = zeros(count, self.width)
        clear(totals, self.width, self.lanes)
        self.words.along(lambda b, elements: self.exact_block(rows, totals, row, column, b, elements))
        for r, total in enumerate(totals):
            with T.If(rows.usual(row + r)), T.Then():
                self.store([total], row + r, column)

    def exact_block(self, rows: Rows, totals: Sequence[Any], row: Any, column: Any, b: Any, elements: int) -> None:
        """Emit what a block adds to a tile."""
        lanes, first, words = self.lanes, b * self.words.rows_of_block, -(-elements // self.words.per)
        sums = [[T.alloc_buffer((self.width,), "int32") for _ in totals] for _ in ("high", "low")]
        lane_of = [T.ramp(start, 1, lanes) for start in self.starts]
        for acc in (*sums[0], *sums[1]):
            for lane in lane_of:
                store(acc, [lane], T.broadcast(T.int32(0), lanes))

        def add(i: Any) -> None:
            vectors = [self.at(column, first + i, start) for start in self.starts]
            for pair in range(self.words.per // 2):
                at = b * (self.words.block // 2) + i * (self.words.per // 2) + pair
                for lane, word in zip(lane_of, vectors):
                    integers = self.words.pair(word, pair)
                    for r in range(len(totals)):
                        for acc, digits in ((sums[0][r], rows.high), (sums[1][r], rows.low)):
                            store(acc, [lane], dot(acc[lane], digits[row + r, at], integers, lanes))

        with T.serial(0, words) as i:
            add(i)
        kind = f"float32x{lanes}"
        for start, lane in zip(self.starts, lane_of):
            scale = self.at(column, first + words, start)
            for r, total in enumerate(totals):
                whole = sums[0][r][lane].astype(kind) * T.broadcast(T.float32(1 << LOW), lanes) + sums[1][r][lane].astype(kind)
                store(total, [lane], total[lane] + whole * T.broadcast(rows.scales[row + r, b], lanes) * scale)

    def float_tile(self, row: Any, column: Any) -> None:
        """Emit one row by one tile of columns."""
        totals = zeros(1, self.width)
        clear(totals, self.width, self.lanes)

        def add(k: Any, start: int, weight: Any) -> None:
            lane = T.ramp(start, 1, self.lanes)
            x = T.broadcast(self.x[row_at(self.work, row, k)], self.lanes)
            store(totals[0], [lane], totals[0][lane] + x * weight)

        self.weights(column, add)
        self.store(totals, row, column)

    def spread_tiles(self, column: Any) -> None:
        """Emit all rows by one tile of columns, whose weights are spread first."""
        spread = T.alloc_buffer((self.work.k, self.width), "float32")
        self.weights(column, lambda k, start, weight: store(spread, [k, T.ramp(start, 1, self.lanes)], weight))

        def tile(count: int, row: Any) -> None:
            totals = zeros(count, self.width)
            clear(totals, self.width, self.lanes)
            multiply_add(
                totals, self.width, self.lanes, self.work.k, lambda r, k: self.x[row_at(self.work, row + r, k)], lambda k, j: spread[k, j]
            )
            self.store(totals, row, column)

        self.tiles(self.plan.rows, tile)

    def weights(self, column: Any, emit: Callable[[Any, int, Any], None]) -> None:
        """Emit ``emit(k, first column of a vector, weights)`` for all weights of a tile of columns."""
        per = self.words.per

        def block(b: Any, elements: int) -> None:
            first, words = b * self.words.rows_of_block, -(-elements // per)
            scales = [self.at(column, first + words, start) for start in self.starts]

            def rows(i: Any, there: int) -> None:
                for start, scale in zip(self.starts, scales):
                    word = self.at(column, first + i, start)
                    for e in range(there):
                        emit(b * self.words.block + i * per + e, start, self.words.number(word, e) * scale)

            if elements // per:
                with T.serial(0, elements // per) as i:
                    rows(i, per)
            if elements % per:
                rows(elements // per, elements % per)

        self.words.along(block)

    def at(self, column: Any, row: Any, start: int) -> Any:
        """Return a vector of words of a tile of columns."""
        return self.words.at(self.w, row, column * self.plan.vectors + start // self.lanes)


def _seconds(work: Dense, machine: Machine, vectors: int, spread: int) -> float:
    """Estimate the time of one core."""
    total, columns = work.batch * work.m, -(-work.n // (vectors * machine.lanes)) * vectors * machine.lanes
    step = columns * work.k * 2 / (machine.gflops * 1e9)
    nbytes = float(Words.of(work, machine).array.nbytes)
    stream = nbytes / machine.stream_rate(nbytes)
    if spread:
        return overlapped(_OPENING * step, stream) + total * step + 2e-7
    return overlapped(total * step * (_DOTS if machine.vnni else _PAIRS), stream) + 2e-7


FAMILY = _WeightsOnly()
