# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of several rows with a constant right side in bfloat16, by the tiles of AMX.

Each piece rounds its rows once, to left tiles that lie one after the other (planes, blocks, steps of k, rows, pairs), then multiplies
blocks of them by panels of weights (tiles of 16 columns, steps of k, planes, pairs, 16). One row is left to AVX512-BF16: it is bound by
the stream of weights, and a tile of one row has the speed of a vector.
Error: see :mod:`amx`; tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words import bf16
from dycl_tvm.backends.tir_cpu.words.amx import (
    FACTORS,
    ROWS,
    Factors,
    Tiles,
    amx_func,
    can_multiply,
    cycles_per_second,
    even_rows,
    release,
    shapes,
)
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES
from dycl_tvm.backends.tir_cpu.words.cost import overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prefetch, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import Row, in_vectors, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.tiles import block_of, pieces
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: The share of L2 that rounded rows may take while the panels pass by.
_ROWS_SHARE = 2
#: Steps that are rounded for all rows of a block before the next ones are.
_TOGETHER = 4


@dataclass(frozen=True)
class AmxDensePlan(Plan):
    """Tiles of sums below and beside each other; pieces of the rows and of the columns."""

    high: int
    wide: int
    row_pieces: int
    column_pieces: int


class _AmxDense:
    """The family ``amx`` of products."""

    name = "amx"

    def plans(self, work: Dense, machine: Machine) -> list[AmxDensePlan]:
        """Return tile choices, best estimate first; [] unless tiles take the factors, there are rows, and the right side is one weight."""
        if not (can_multiply(work.dtypes, machine) and work.constant and work.shared and work.macs and work.batch * work.m > 1):
            return []
        factors = FACTORS[work.dtypes.weights]
        found: dict[tuple[tuple[str, int], ...], AmxDensePlan] = {}
        for high, wide in shapes(_row_tiles(work), -(-work.n // LANES)):
            blocks, panels = -(-_row_tiles(work) // high), -(-work.n // (wide * LANES))
            alone, rounding = _seconds(work, machine, high, wide, factors), _rounding(work, machine, factors)
            pieces = pieces_of(blocks, panels, machine)
            plan = AmxDensePlan(shared_product(alone, blocks, panels, pieces, machine, rounding), high, wide, *pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))

    def packed(self, work: Dense, plan: AmxDensePlan, machine: Machine) -> Tensor:
        """Return (tiles of columns, steps of k, planes, words of a step, columns of a tile)."""
        factors = FACTORS[work.dtypes.weights]
        steps, words = _steps(work, factors)
        return Tensor((-(-work.n // LANES), steps, factors.planes, words, factors.columns), factors.packed)

    def pack(self, work: Dense, plan: AmxDensePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), words)."""
        packed, factors = self.packed(work, plan, machine), FACTORS[work.dtypes.weights]
        tiles, steps, _, words, columns = packed.physical

        def body(w: Any, packed: Any) -> None:
            with T.serial(0, tiles) as t, T.serial(0, steps) as s, T.serial(0, words) as e, T.serial(0, LANES) as j:
                column, first = t * LANES + j, factors.elements * (s * words + e)

                def weight(neighbour: int) -> Any:
                    k = first + neighbour
                    value = w[tirx.min(k, work.k - 1), tirx.min(column, work.n - 1)]
                    return tirx.if_then_else(tirx.all(k < work.k, column < work.n), value, factors.zero)

                each = columns // LANES
                factors.split_weights(weight, lambda plane, element, value: store(packed, [t, s, plane, e, j * each + element], value))

        return prim_func([("w", (work.k, work.n), factors.plain), ("packed", packed.physical, factors.packed)], body)

    def kernel(self, work: Dense, plan: AmxDensePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), words, epilogue operands, y (batch, m, n))."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        factors = FACTORS[work.dtypes.weights]

        def body(x: Any, w: Any, *rest: Any) -> None:
            _body(work, plan, machine, factors, epilogue, x, w, rest[:-1], rest[-1])

        return amx_func(factors, buffers, body)


FAMILY = _AmxDense()


def _body(
    work: Dense, plan: AmxDensePlan, machine: Machine, factors: Factors, epilogue: Epilogue, x: Any, w: Any, operands: Any, y: Any
) -> None:
    (steps, words), planes = _steps(work, factors), factors.planes
    total, high, wide, row_pieces, column_pieces = work.batch * work.m, plan.high, plan.wide, plan.row_pieces, plan.column_pieces
    tiles = _tiles(work, high, wide, factors)
    rows, column_tiles = tiles.rows, -(-work.n // LANES)
    blocks, panels = -(-_row_tiles(work) // high), -(-column_tiles // wide)
    # rows that stay in L2 while all panels pass by
    together = min(-(-blocks // row_pieces), max(1, machine.l2 // _ROWS_SHARE // (4 * planes * steps * words * rows * high)))
    # each block fetches its part of the next panel from memory while it computes with this one
    lines, fetches = -(-planes * wide * words // together), 4 * planes * panels * wide * LANES * steps * words > machine.l2

    def product(block: Any, panel: Any, begin: Any, count: int, across: int, left: Any, sums: Any) -> None:
        """Emit ``count`` x ``across`` tiles; ``begin`` is the block whose rows are the first of ``left``."""
        tiles.clear(count, across)
        with T.serial(0, steps) as s:
            for line in range(lines if fetches else 0):
                # the lines of a panel lie one after the other
                prefetch(w, [(panel + 1) * wide, 0, 0, ((block - begin) * steps + s) * lines + line, 0], 2)
            for x_plane, w_plane in factors.products:
                tiles.step(
                    [T.address_of(left[x_plane, block - begin, s, i * rows, 0]) for i in range(count)],
                    4 * words,
                    [T.address_of(w[panel * wide + j, s, w_plane, 0, 0]) for j in range(across)],
                )
        tiles.keep(count, across, sums)
        first = block * high * rows
        with T.serial(0, tirx.min(count * rows, total - first)) as r:
            store_rows(work, wide * LANES, LANES, epilogue, operands, y, [Row(sums, r)], first + r, panel)

    def blocks_of(first: Any, end: Any, columns: Any, left: Any, sums: Any) -> None:
        with T.serial(0, end - first) as b:
            _round(work, factors, x, left, b, (first + b) * high * rows, high * rows)
        begin, finish = columns * panels // column_pieces, (columns + 1) * panels // column_pieces
        with T.serial(0, finish - begin) as p, T.serial(0, end - first) as b:
            panel, block = begin + p, first + b

            def across(block: Any, count: int) -> None:
                block_of(panel, column_tiles, wide, lambda panel, n: product(block, panel, first, count, n, left, sums))

            block_of(block, _row_tiles(work), high, across)

    seconds = _seconds(work, machine, high, wide, factors)
    with parallel(row_pieces * column_pieces, machine, seconds) as piece:
        part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
        left = T.alloc_buffer((planes, together, steps, high * rows, words), "int32")
        sums = T.alloc_buffer((high * rows, wide * LANES), factors.sums)
        tiles.configure()
        first, end = part * blocks // row_pieces, (part + 1) * blocks // row_pieces
        if -(-blocks // row_pieces) <= together:
            blocks_of(first, end, columns, left, sums)
        else:
            with T.serial(0, (end - first + together - 1) // together) as b:
                blocks_of(first + b * together, tirx.min(first + (b + 1) * together, end), columns, left, sums)
        release()


def _round(work: Dense, factors: Factors, x: Any, left: Any, block: Any, first: Any, rows: int) -> None:
    """Emit the rounding of ``rows`` rows from ``first`` on to a block of the left tiles, zeros up to the last word.

    Some steps of all rows at a time: all of one row would be a line in each of many pages, and those fall into few sets of L1.
    """
    steps, words = _steps(work, factors)
    # as many elements at a time as a step has, or a vector of 16
    size = words * factors.elements if factors.plain == "int8" and words == ROWS and work.k >= words * factors.elements else LANES
    count, there = size // factors.elements, tirx.min(rows, work.batch * work.m - first)

    def part(begin: Any, length: int) -> None:
        with T.serial(0, there) as r:

            def put(number: Any, plane: int, values: Any) -> None:
                at = (begin // size + number) * count
                store(left, [plane, block, at // words, r, T.ramp(at % words, 1, count)], values)

            def rounded(number: Any, values: Any) -> None:
                factors.split(values, lambda plane, values: put(number, plane, values))

            in_vectors(length, size, work.dtypes.x, lambda k: x[row_at(work, first + r, begin + k)], rounded)
            if not isinstance(begin, int) or begin + length < work.k:
                return
            for number in range(-(-length // size), steps * words // count - begin // size):
                factors.fill(count, 0, lambda plane, values, number=number: put(number, plane, values))  # type: ignore[misc]

    pieces(work.k, _TOGETHER * words * factors.elements, part)


def _steps(work: Dense, factors: Factors) -> tuple[int, int]:
    """Return the steps of k, and the words of each: as few as hold all, in whole vectors of 16 elements."""
    needed, whole = -(-work.k // factors.elements), factors.words
    steps = -(-needed // ROWS)
    return steps, -(-needed // (steps * whole)) * whole


def _row_tiles(work: Dense) -> int:
    return -(-work.batch * work.m // ROWS)


def _tiles(work: Dense, high: int, wide: int, factors: Factors) -> Tiles:
    return Tiles(even_rows(work.batch * work.m), _steps(work, factors)[1], high, wide, factors)


# ---- choice of tiles -------------------------------------------------------------------------------------------------


def _rounding(work: Dense, machine: Machine, factors: Factors) -> float:
    """Estimate the time to round the left side once: two cycles a vector."""
    return 2.0 * factors.planes * work.batch * work.m * work.k / LANES / bf16.cycles_per_second(machine)


def _seconds(work: Dense, machine: Machine, high: int, wide: int, factors: Factors) -> float:
    """Estimate the time of one core without the rounding."""
    tiles, (steps, words) = _tiles(work, high, wide, factors), _steps(work, factors)
    blocks, panels = -(-_row_tiles(work) // high), -(-work.n // (wide * LANES))
    cycles = steps * tiles.step_cycles(high, wide, steps, machine) + tiles.end_cycles(high, wide)
    weights = 4.0 * factors.planes * panels * wide * LANES * steps * words
    stream = weights / machine.stream_rate(weights)
    return overlapped(blocks * panels * cycles / cycles_per_second(machine), stream) + 2e-7
