# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products with a constant right side in bfloat16: each piece rounds its rows once, then multiplies tiles of rows by panels of weights.

Weights (k, n) are packed to panels (ceil(n / width), ceil(k / 2), width) of pairs: half the bytes of float32, which is what bounds
products of few rows. ``splits`` keeps several sums over every splits-th pair, as the instruction takes six cycles.
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
    bf16_func,
    cycles_per_second,
    dot,
    has_instructions,
    pairs,
    round_row,
    word,
)
from dycl_tvm.backends.tir_cpu.words.cost import overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import add_splits, along_k
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles
from dycl_tvm.backends.tir_cpu.words.vectors import clear, zeros
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: Sums that must be under way to hide the latency of an instruction.
_IN_FLIGHT = 7
#: The share of L2 that rounded rows may take while the panels pass by.
_ROWS_SHARE = 3


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
            seconds = shared_product(alone, tiles, panels, pieces, machine, _rounding(work, machine))
            plan = Bf16DensePlan(seconds, rows, wide, splits, *pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))[:12]

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
        rows, splits, width = plan.rows, plan.splits, plan.vectors * LANES
        row_pieces, column_pieces = plan.row_pieces, plan.column_pieces
        total = work.batch * work.m
        tiles, panels, steps = -(-total // rows), -(-work.n // width), -(-work.k // 2)
        words = -(-work.k // LANES) * PAIRS
        block = min(-(-tiles // row_pieces), max(1, machine.l2 // _ROWS_SHARE // (2 * work.k * rows)))

        def first_row(tile: Any) -> Any:
            base, more = divmod(total, tiles)
            return tile * base + (tirx.min(tile, more) if more else 0)

        def body(x: Any, w: Any, *rest: Any) -> None:
            operands, y = rest[:-1], rest[-1]

            def tile(count: int, row: Any, panel: Any, rounded: Any, start: Any) -> None:
                sums = zeros(count * splits, width)
                clear(sums, width, LANES)

                def step(k: Any, split: int) -> None:
                    for j in range(0, width, LANES):
                        lane = T.ramp(j, 1, LANES)
                        for r in range(count):
                            acc = sums[r * splits + split]
                            store(acc, [lane], dot(acc[lane], rounded[row - start + r, k], w[panel, k, lane]))

                along_k(steps, splits, step)
                store_rows(work, width, LANES, epilogue, operands, y, add_splits(sums, width, LANES, splits), row, panel)

            def block_of(first: Any, end: Any, columns: Any, rounded: Any) -> None:
                start = first_row(first)
                with T.serial(0, first_row(end) - start) as r:
                    round_row(
                        work.k,
                        lambda k: x[row_at(work, start + r, k)],
                        lambda k, values: store(rounded, [r, T.ramp(k, 1, PAIRS)], pairs(values)),
                    )
                begin, finish = columns * panels // column_pieces, (columns + 1) * panels // column_pieces
                with T.serial(0, finish - begin) as panel, T.serial(0, end - first) as index:
                    even_tiles(total, rows, first + index, lambda count, row: tile(count, row, begin + panel, rounded, start))

            with parallel(row_pieces * column_pieces, machine, _seconds(work, machine, rows, plan.vectors, splits)) as piece:
                part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
                rounded = T.alloc_buffer((block * rows, words), "int32")
                first, end = part * tiles // row_pieces, (part + 1) * tiles // row_pieces
                if -(-tiles // row_pieces) <= block:
                    block_of(first, end, columns, rounded)
                else:
                    with T.serial(0, (end - first + block - 1) // block) as b:
                        block_of(first + b * block, tirx.min(first + (b + 1) * block, end), columns, rounded)

        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        return bf16_func(buffers, body)


FAMILY = _Bf16Dense()


def _tiles(total: int, n: int, machine: Machine) -> list[tuple[int, int, int]]:
    """Return (rows, vectors, splits) whose sums, and the weights of one pair, fit the registers."""
    found = []
    for wide in (1, 2, 3, 4, 6, 8):
        if wide > 1 and (wide - 1) * LANES >= n:
            continue
        most = min(total, max(1, (machine.registers - wide - 1) // wide), 8 if wide <= 2 else 7)  # LLVM spills with more rows
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
    slots = max(1.06, _IN_FLIGHT / (rows * wide * splits), (rows + wide) / (rows * wide))
    compute = total * panels * wide * steps * slots / cycles_per_second(machine) + 2e-9 * tiles * panels * rows * wide
    weights = 4.0 * panels * width * steps
    stream = weights / machine.stream_rate(weights)
    return overlapped(compute, stream) + 2e-7
