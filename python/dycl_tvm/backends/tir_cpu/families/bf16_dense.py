# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products with a constant right side in bfloat16: rows are rounded once, then tiles of them multiplied by panels of weights.

Weights (k, n) are packed to panels (ceil(n / width), ceil(k / 2), width) of pairs: half the bytes of float32, which is what bounds
products of few rows. ``splits`` keeps several sums over every splits-th pair, as the instruction takes six cycles. Of many rows, the
tiles of one panel fetch the next one into L2 meanwhile, so weights that come from memory are waited for once.
Error: see :mod:`bf16`; tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.bf16 import (
    LANES,
    PAIRS,
    ROUNDED,
    add_pairs,
    bf16_func,
    cycles_per_second,
    has_instructions,
    pairs,
    word,
)
from dycl_tvm.backends.tir_cpu.words.cost import MANY_ROWS, overlapped, pieces_of, pieces_of_rows, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import of_rounded, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import Row, in_vectors, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import add_splits, along_k, fetching
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles, first_of_tile
from dycl_tvm.backends.tir_cpu.words.vectors import clear, vectors, zeros
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: Sums that must be under way to hide the latency of an instruction: two begin in a cycle on Zen 5, and with 12 it is 1.4 times slower.
_IN_FLIGHT = 16
#: What an instruction waits for its loads, and for the weights that a tile reads from L2, in its own time (measured).
_LOAD, _FROM_L2 = 0.15, 0.1
#: The share of L2 that rounded rows may take while the panels pass by.
_ROWS_SHARE = 2
_WORD = 4
#: Rows of fine tiles, and up to how much slower they may be by the estimate.
_FEW, _ABOUT = 4, 1.1
#: Operations of an epilogue up to which it is written out for each vector of a tile; code that is longer does not stay in the caches of
#: instructions beside that of the sums (measured for GELU: three times slower).
_UNROLLED = 8


@dataclass(frozen=True)
class Bf16DensePlan(Plan):
    """Rows and vectors of a tile, sums of each result; pieces of the rows and of the columns."""

    rows: int
    vectors: int
    splits: int
    row_pieces: int
    column_pieces: int


class _Bf16Dense:
    """The family ``bf16`` of products."""

    name = "bf16"

    def plans(self, work: Dense, machine: Machine) -> list[Bf16DensePlan]:
        """Return tile choices, best estimate first; [] unless factors are bfloat16 and the right side is a weight that the batch shares."""
        if not (has_instructions(machine) and work.dtypes == ROUNDED and work.constant and work.shared and work.macs):
            return []
        total = work.batch * work.m
        found: dict[tuple[tuple[str, int], ...], Bf16DensePlan] = {}
        for rows, wide, splits in _tiles(total, work.n, machine):
            tiles, panels = -(-total // rows), -(-work.n // (wide * LANES))
            alone = _seconds(work, machine, rows, wide, splits)
            pieces = pieces_of(tiles, panels, machine)
            seconds = shared_product(alone, tiles, panels, pieces, machine) + _rounding(work, machine)
            plan = Bf16DensePlan(seconds, rows, wide, splits, *pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))[:12]

    def finer(self, work: Dense, plan: Bf16DensePlan, machine: Machine) -> Bf16DensePlan:
        """Return a plan with tiles of few rows that is about as fast as another one, for calls that decide how many rows there are."""
        return next((p for p in self.plans(work, machine) if p.rows <= _FEW and p.seconds <= _ABOUT * plan.seconds), plan)

    def packed(self, work: Dense, plan: Bf16DensePlan, machine: Machine) -> Tensor:
        """Return (panels, pairs of k, columns of a panel)."""
        width = plan.vectors * LANES
        return Tensor((-(-work.n // width), -(-work.k // 2), width))

    def pack(self, work: Dense, plan: Bf16DensePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), words)."""
        panels, steps, width = self.packed(work, plan, machine).physical

        def body(w: Any, packed: Any) -> None:
            with T.serial(0, panels) as p, T.serial(0, steps) as i, T.serial(0, width) as j:
                column = p * width + j

                def weight(k: Any) -> Any:
                    value = w[tirx.min(k, work.k - 1), tirx.min(column, work.n - 1)]
                    return tirx.if_then_else(tirx.all(k < work.k, column < work.n), value, T.float32(0))

                store(packed, [p, i, j], word(weight(2 * i), weight(2 * i + 1)))

        return prim_func([("w", (work.k, work.n), "float32"), ("packed", (panels, steps, width), "float32")], body)

    def kernel(self, work: Dense, plan: Bf16DensePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), words, epilogue operands, y (batch, m, n))."""
        epilogue = of_rounded(epilogue)
        rows, splits, width = plan.rows, plan.splits, plan.vectors * LANES
        row_pieces, column_pieces = plan.row_pieces, plan.column_pieces
        total = work.batch * work.m
        tiles, panels, steps = -(-total // rows), -(-work.n // width), -(-work.k // 2)
        words = -(-work.k // LANES) * PAIRS
        blocks = -(-tiles // max(1, machine.l2 // _ROWS_SHARE // (_WORD * words * rows)))
        together, high = -(-tiles // blocks), -(-total // tiles)  # tiles of a block of rows, and rows of the highest tile
        fetches = total >= MANY_ROWS and 2 * _WORD * panels * width * steps > machine.l2

        def body(x: Any, w: Any, *rest: Any) -> None:
            operands, y = rest[:-1], rest[-1]
            rounded = T.alloc_buffer((together * high, words), "int32")

            def round_rows(first: Any, count: Any) -> None:
                """Emit the rounding of a block of tiles, each to as many rows as the highest tile has."""
                pieces = pieces_of_rows(together, machine)
                with parallel(pieces, machine, _rounding(work, machine) / blocks) as piece:
                    begin = piece * count // pieces
                    with T.serial(0, (piece + 1) * count // pieces - begin) as t, T.serial(0, high) as r:
                        row = tirx.min(first_of_tile(total, rows, first + begin + t) + r, total - 1)

                        def put(number: Any, values: Any, at: Any = (begin + t) * high + r) -> None:
                            store(rounded, [at, T.ramp(number * PAIRS, 1, PAIRS)], pairs(values))

                        in_vectors(work.k, LANES, "float32", lambda k: x[row_at(work, row, k)], put)

            def tile(height: int, row: Any, panel: Any, at: Any, turn: Any, kept: Any) -> None:
                sums = zeros(height * splits, width)
                clear(sums, width, LANES)

                def step(k: Any, split: int) -> None:
                    add_pairs(sums[split::splits], width, lambda r: rounded[at + r, k], lambda start: w[panel, k, T.ramp(start, 1, LANES)])

                fetch = fetching(w, panel + 1, 0, steps, splits, turn, -(-together // row_pieces)) if fetches else None
                along_k(steps, splits, step, fetch)
                finished = add_splits(sums, width, LANES, splits)
                if kept is None:
                    store_rows(work, width, LANES, epilogue, operands, y, finished, row, panel)
                    return
                for r, total in enumerate(finished):
                    vectors(width, LANES, lambda j, r=r, total=total: store(kept, [r, j], total[j]))  # type: ignore[misc]
                with T.serial(0, height) as r:
                    store_rows(work, width, LANES, epilogue, operands, y, [Row(kept, r)], row + r, panel)

            def block_of(first: Any, count: Any) -> None:
                round_rows(first, count)
                alone = _seconds(work, machine, rows, plan.vectors, splits) / blocks
                with parallel(row_pieces * column_pieces, machine, alone) as piece:
                    part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
                    begin, end = part * count // row_pieces, (part + 1) * count // row_pieces
                    kept = T.alloc_buffer((high, width), "float32") if epilogue.operations > _UNROLLED else None
                    left, right = columns * panels // column_pieces, (columns + 1) * panels // column_pieces
                    with T.serial(0, right - left) as panel, T.serial(0, end - begin) as t:
                        at = begin + t

                        def emit(height: int, row: Any) -> None:
                            tile(height, row, left + panel, at * high, t, kept)

                        even_tiles(total, rows, first + at, emit)

            if blocks == 1:
                block_of(0, tiles)
            else:
                with T.serial(0, blocks) as b:
                    first = b * tiles // blocks
                    block_of(first, (b + 1) * tiles // blocks - first)

        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        return bf16_func(buffers, body)


FAMILY = _Bf16Dense()


def _tiles(total: int, n: int, machine: Machine) -> list[tuple[int, int, int]]:
    """Return (rows, vectors, splits) whose sums, and the weights of one pair, fit the registers."""
    found = []
    for wide in (1, 2, 3, 4, 6, 8):
        if wide > 1 and (wide - 1) * LANES >= n:
            continue
        most = min(total, max(1, (machine.registers - wide - 1) // wide))
        most = -(-total // -(-total // most))  # even tiles
        for rows in sorted({most, max(1, most - 1), max(1, most // 2)}):
            splits = max(1, min(8, machine.registers // 2 // (rows * wide)))
            found += [(rows, wide, s) for s in {1, splits}]
    return found


def _rounding(work: Dense, machine: Machine) -> float:
    """Estimate the time to round the left side once: two cycles a vector."""
    return 2.0 * work.batch * work.m * work.k / LANES / cycles_per_second(machine)


def _seconds(work: Dense, machine: Machine, rows: int, wide: int, splits: int) -> float:
    """Estimate the time of one core without the rounding."""
    total, width = work.batch * work.m, wide * LANES
    tiles, panels, steps = -(-total // rows), -(-work.n // width), -(-work.k // 2)
    rows = -(-total // tiles)
    slots = max(_IN_FLIGHT / (rows * wide * splits), 1 + _LOAD * (rows + wide) / (rows * wide) + _FROM_L2 / rows)
    compute = total * panels * wide * steps * slots / cycles_per_second(machine) + 2e-9 * tiles * panels * rows * wide
    weights = float(_WORD * panels * width * steps)
    stream = weights / machine.stream_rate(weights)
    return overlapped(compute, stream) + 2e-7
