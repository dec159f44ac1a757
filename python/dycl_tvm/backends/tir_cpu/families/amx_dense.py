# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of several rows with a constant right side in bfloat16, by the tiles of AMX.

Each piece rounds its rows once, to left tiles that lie one after the other (planes, steps of k, rows, pairs), then multiplies blocks of
them by panels of weights (tiles of 16 columns, steps of k, planes, pairs, 16). One row is left to AVX512-BF16: it is bound by the stream
of weights, and a tile of one row has the speed of a vector.
Error: see :mod:`amx`; tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words import bf16
from dycl_tvm.backends.tir_cpu.words.amx import (
    PLANES,
    ROWS,
    Tiles,
    amx_func,
    cycles_per_second,
    even_rows,
    has_tiles,
    planes_of,
    products,
    release,
    scratch,
    shapes,
    split,
    split_weights,
)
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, round_row
from dycl_tvm.backends.tir_cpu.words.cost import overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import Row, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: The share of L2 that rounded rows may take while the panels pass by.
_ROWS_SHARE = 3


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
        """Return tile choices, best estimate first; [] unless factors are bfloat16, there are rows, and the right side is one weight."""
        planes = planes_of(work.dtypes)
        if not planes or not (has_tiles(machine) and work.constant and work.shared and work.macs and work.batch * work.m > 1):
            return []
        found: dict[tuple[tuple[str, int], ...], AmxDensePlan] = {}
        for high, wide in shapes(_row_tiles(work), -(-work.n // LANES)):
            blocks, panels = -(-_row_tiles(work) // high), -(-work.n // (wide * LANES))
            alone, rounding = _seconds(work, machine, high, wide, planes), planes * _rounding(work, machine)
            pieces = pieces_of(blocks, panels, machine)
            plan = AmxDensePlan(shared_product(alone, blocks, panels, pieces, machine, rounding), high, wide, *pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))

    def packed(self, work: Dense, plan: AmxDensePlan, machine: Machine) -> Tensor:
        """Return (tiles of columns, steps of k, planes, pairs of a step, columns of a tile)."""
        return Tensor((-(-work.n // LANES), _steps(work), PLANES[work.dtypes.weights], _pairs(work), LANES))

    def pack(self, work: Dense, plan: AmxDensePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), words)."""
        shape = self.packed(work, plan, machine).physical

        def body(w: Any, packed: Any) -> None:
            tiles, steps, planes, pairs, lanes = shape
            with T.serial(0, tiles) as t, T.serial(0, steps) as s, T.serial(0, pairs) as e, T.serial(0, lanes) as j:
                column, first = t * LANES + j, 2 * (s * pairs + e)

                def weight(k: Any) -> Any:
                    value = w[tirx.min(k, work.k - 1), tirx.min(column, work.n - 1)]
                    return tirx.if_then_else(tirx.all(k < work.k, column < work.n), value, T.float32(0))

                split_weights(weight(first), weight(first + 1), planes, lambda i, word: store(packed, [t, s, i, e, j], word))

        return prim_func([("w", (work.k, work.n), "float32"), ("packed", shape, "float32")], body)

    def kernel(self, work: Dense, plan: AmxDensePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), words, epilogue operands, y (batch, m, n))."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        return amx_func(buffers, lambda x, w, *rest: _body(work, plan, machine, epilogue, x, w, rest[:-1], rest[-1]))


FAMILY = _AmxDense()


def _body(work: Dense, plan: AmxDensePlan, machine: Machine, epilogue: Epilogue, x: Any, w: Any, operands: Any, y: Any) -> None:
    total, steps, pairs, planes = work.batch * work.m, _steps(work), _pairs(work), PLANES[work.dtypes.weights]
    high, wide, row_pieces, column_pieces = plan.high, plan.wide, plan.row_pieces, plan.column_pieces
    tiles = _tiles(work, high, wide, planes)
    rows, column_tiles = tiles.rows, -(-work.n // LANES)
    blocks, panels = -(-_row_tiles(work) // high), -(-column_tiles // wide)
    # rows that stay in L2 while all panels pass by
    together = min(-(-blocks // row_pieces), max(1, machine.l2 // _ROWS_SHARE // (4 * planes * steps * pairs * rows * high)))

    def product(block: Any, panel: Any, start: Any, count: int, across: int, left: Any, sums: Any) -> None:
        """Emit ``count`` x ``across`` tiles; ``start`` is the first row of ``left``."""
        tiles.clear(count, across)
        with T.serial(0, steps) as s:
            for x_plane, w_plane in products(planes):
                tiles.step(
                    [T.address_of(left[x_plane, s, (block * high + i) * rows - start, 0]) for i in range(count)],
                    4 * pairs,
                    [T.address_of(w[panel * wide + j, s, w_plane, 0, 0]) for j in range(across)],
                )
        tiles.keep(count, across, sums)
        first = block * high * rows
        with T.serial(0, tirx.min(count * rows, total - first)) as r:
            store_rows(work, wide * LANES, LANES, epilogue, operands, y, [Row(sums, r)], first + r, panel)

    def blocks_of(first: Any, end: Any, columns: Any, left: Any, sums: Any) -> None:
        start = first * high * rows
        with T.serial(0, tirx.min(end * high * rows, total) - start) as r:
            _round(work, planes, x, left, start + r, r)
        begin, finish = columns * panels // column_pieces, (columns + 1) * panels // column_pieces
        with T.serial(0, finish - begin) as p, T.serial(0, end - first) as b:
            panel, block = begin + p, first + b

            def across(block: Any, count: int) -> None:
                block_of(panel, column_tiles, wide, lambda panel, n: product(block, panel, start, count, n, left, sums))

            block_of(block, _row_tiles(work), high, across)

    seconds = _seconds(work, machine, high, wide, planes)
    with parallel(row_pieces * column_pieces, machine, seconds) as piece:
        part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
        left = scratch((planes, steps, together * high * rows, pairs), "int32")
        sums = scratch((high * rows, wide * LANES), "float32")
        tiles.configure()
        first, end = part * blocks // row_pieces, (part + 1) * blocks // row_pieces
        if -(-blocks // row_pieces) <= together:
            blocks_of(first, end, columns, left, sums)
        else:
            with T.serial(0, (end - first + together - 1) // together) as b:
                blocks_of(first + b * together, tirx.min(first + (b + 1) * together, end), columns, left, sums)
        release()


def _round(work: Dense, planes: int, x: Any, left: Any, row: Any, at: Any) -> None:
    """Emit the rounding of one row to row ``at`` of the left tiles, zeros up to the last pair."""
    pairs = _pairs(work)

    def put(pair: Any, values: Any) -> None:
        split(values, planes, lambda plane, words: store(left, [plane, pair // pairs, at, T.ramp(pair % pairs, 1, PAIRS)], words))

    round_row(work.k, lambda k: x[row_at(work, row, k)], put)
    for pair in range(-(-work.k // LANES) * PAIRS, _steps(work) * pairs, PAIRS):
        put(pair, None)


def _pairs(work: Dense) -> int:
    """Return the pairs of a step of k; a short k has tiles of half as many."""
    return PAIRS if work.k <= 2 * PAIRS else ROWS


def _steps(work: Dense) -> int:
    return -(-work.k // (2 * _pairs(work)))


def _row_tiles(work: Dense) -> int:
    return -(-work.batch * work.m // ROWS)


def _tiles(work: Dense, high: int, wide: int, planes: int) -> Tiles:
    return Tiles(even_rows(work.batch * work.m), _pairs(work), high, wide, planes)


# ---- choice of tiles -------------------------------------------------------------------------------------------------


def _rounding(work: Dense, machine: Machine) -> float:
    """Estimate the time to round the left side once: two cycles a vector."""
    return 2.0 * work.batch * work.m * work.k / LANES / bf16.cycles_per_second(machine)


def _seconds(work: Dense, machine: Machine, high: int, wide: int, planes: int) -> float:
    """Estimate the time of one core without the rounding."""
    tiles, steps = _tiles(work, high, wide, planes), _steps(work)
    blocks, panels = -(-_row_tiles(work) // high), -(-work.n // (wide * LANES))
    compute = blocks * panels * (steps * tiles.step_cycles(high, wide) + tiles.end_cycles(high, wide)) / cycles_per_second(machine)
    weights = 4.0 * planes * panels * wide * LANES * steps * tiles.pairs
    stream = weights / machine.stream_rate(weights)
    return overlapped(compute, stream) + 2e-7
