# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of 8-bit integers with a constant right side: the loops of bf16_dense.py, with quads in the place of pairs.

Weights (k, n) are packed to panels (ceil(n / width), ceil(k / 4), width) of quads. Each piece copies its rows to words, with zeros behind
them, then multiplies tiles of rows by panels. ``splits`` keeps several sums over every splits-th quad. Sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.cost import overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.int8 import (
    QUAD,
    allowed,
    cycles_per_second,
    dots,
    flipped,
    int8_func,
    lane_of,
    products,
    start_of,
    store_offset,
    takes,
)
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import Row, in_vectors, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import along_k
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles, pieces
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: Sums that must be under way to hide the latency of an instruction.
_IN_FLIGHT = 8
#: The share of L2 that copied rows may take while the panels pass by.
_ROWS_SHARE = 3


@dataclass(frozen=True)
class Int8DensePlan(Plan):
    """Rows and vectors of a tile, sums of each result; pieces of the rows and of the columns."""

    rows: int
    vectors: int
    splits: int
    row_pieces: int
    column_pieces: int


class _Int8Dense:
    """The family ``int8`` of products."""

    name = "int8"

    def plans(self, work: Dense, machine: Machine) -> list[Int8DensePlan]:
        """Return tile choices, best estimate first."""
        if not (allowed(machine) and takes(work.dtypes) and work.constant and work.shared and work.macs):
            return []
        total = work.batch * work.m
        found: dict[tuple[tuple[str, int], ...], Int8DensePlan] = {}
        for rows, wide, splits in _tiles(total, work.n, machine):
            tiles, panels = -(-total // rows), -(-work.n // (wide * machine.lanes))
            alone = _seconds(work, machine, rows, wide, splits)
            pieces = pieces_of(tiles, panels, machine)
            copying = total * work.k / 16 / cycles_per_second(machine)
            plan = Int8DensePlan(shared_product(alone, tiles, panels, pieces, machine, copying), rows, wide, splits, *pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))[:12]

    def packed(self, work: Dense, plan: Int8DensePlan, machine: Machine) -> Tensor:
        """Return (panels, quads of k and the offsets, columns of a panel by four)."""
        width = plan.vectors * machine.lanes
        return Tensor((-(-work.n // width), -(-work.k // QUAD) + products(machine).offset, QUAD * width), "int8")

    def pack(self, work: Dense, plan: Int8DensePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), quads)."""
        shape, how, lanes = self.packed(work, plan, machine).shape, products(machine), machine.lanes
        width, steps = shape[2] // QUAD, -(-work.k // QUAD)

        def body(w: Any, packed: Any) -> None:
            with T.serial(0, shape[0]) as p, T.serial(0, steps) as i, T.serial(0, width) as j, T.serial(0, QUAD) as q:
                column, k = p * width + j, QUAD * i + q
                value = w[tirx.min(k, work.k - 1), tirx.min(column, work.n - 1)]
                at = j // lanes * (QUAD * lanes) + how.at(j % lanes, q, lanes) if how.halves else j * QUAD + q
                store(packed, [p, i, at], tirx.if_then_else(tirx.all(k < work.k, column < work.n), value, T.int8(0)))
            if how.offset:
                with T.grid(shape[0], width) as (p, j):

                    def each(add: Any) -> None:
                        with T.If(p * width + j < work.n), T.Then(), T.serial(0, work.k) as k:
                            add(w[k, p * width + j], tirx.floormod(k, QUAD))

                    store_offset(packed, [p, steps], j, each, how)

        return prim_func([("w", (work.k, work.n), "int8"), ("packed", shape, "int8")], body)

    def kernel(self, work: Dense, plan: Int8DensePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), quads, epilogue operands, y (batch, m, n))."""
        lanes, how = machine.lanes, products(machine)
        rows, splits, width = plan.rows, plan.splits, plan.vectors * lanes
        row_pieces, column_pieces = plan.row_pieces, plan.column_pieces
        total = work.batch * work.m
        tiles, panels, steps = -(-total // rows), -(-work.n // width), -(-work.k // QUAD)
        words = -(-steps // QUAD) * QUAD
        block = min(-(-tiles // row_pieces), max(1, machine.l2 // _ROWS_SHARE // (work.k * rows)))

        def first_row(tile: Any) -> Any:
            base, more = divmod(total, tiles)
            return tile * base + (tirx.min(tile, more) if more else 0)

        def body(x: Any, w: Any, *rest: Any) -> None:
            operands, y = rest[:-1], rest[-1]

            def tile(count: int, row: Any, panel: Any, copied: Any, kept: Any, start: Any) -> None:
                sums = [T.alloc_buffer((width,), "int32") for _ in range(count * splits)]
                columns_of = [T.ramp(j, 1, lanes) for j in range(0, width, lanes)]

                def vector(k: Any, j: int) -> Any:
                    return w[panel, k, T.ramp(j * lanes * QUAD, 1, lanes * QUAD)]

                for number, acc in enumerate(sums):
                    for j, lane in enumerate(columns_of):
                        offset = vector(steps, j) if how.offset and number % splits == 0 else None
                        store(acc, [lane], start_of(offset, lanes))

                def multiply(k: Any, split: int, words: Sequence[Any]) -> None:
                    for j, lane in enumerate(columns_of):
                        for r, word in enumerate(words):
                            acc = sums[r * splits + split]
                            store(acc, [lane], dots(acc[lane], word, vector(k, j), lanes))

                def step(k: Any, split: int) -> None:
                    multiply(k, split, [T.broadcast(copied[row - start + r, k], lanes) for r in range(count)])

                def four(first: Any, there: int = QUAD) -> None:
                    words = [T.bind(copied[row - start + r, T.ramp(first, 1, QUAD)]) for r in range(count)]
                    for k in range(there):
                        multiply(first + k, k % splits, [lane_of(word, k) for word in words])

                if how.lanes:
                    pieces(steps, QUAD, four)
                else:
                    along_k(steps, splits, step)
                for r in range(count):
                    first = sums[r * splits]
                    for other in sums[r * splits + 1 : (r + 1) * splits]:
                        for lane in columns_of:
                            store(first, [lane], first[lane] + other[lane])
                for r in range(count):
                    for lane in columns_of:
                        store(kept, [r, lane], sums[r * splits][lane])
                with T.serial(0, count) as r:
                    store_rows(work, width, lanes, epilogue, operands, y, [Row(kept, r)], row + r, panel)

            def block_of(first: Any, end: Any, columns: Any, copied: Any, kept: Any) -> None:
                start = first_row(first)
                with T.serial(0, first_row(end) - start) as r:

                    def put(number: Any, values: Any) -> None:
                        quads = flipped(T.reinterpret(f"int32x{QUAD}", values), QUAD, how)
                        store(copied, [r, T.ramp(number * QUAD, 1, QUAD)], quads)

                    in_vectors(work.k, QUAD * QUAD, "uint8", lambda k: x[row_at(work, start + r, k)], put)
                begin, finish = columns * panels // column_pieces, (columns + 1) * panels // column_pieces
                with T.serial(0, finish - begin) as panel, T.serial(0, end - first) as index:
                    even_tiles(total, rows, first + index, lambda count, row: tile(count, row, begin + panel, copied, kept, start))

            with parallel(row_pieces * column_pieces, machine, _seconds(work, machine, rows, plan.vectors, splits)) as piece:
                part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
                copied = T.alloc_buffer((block * rows, words), "int32")
                # one epilogue for all rows of a tile: it is long, and each copy of it takes the compiler time
                kept = T.alloc_buffer((rows, width), "int32")
                first, end = part * tiles // row_pieces, (part + 1) * tiles // row_pieces
                if -(-tiles // row_pieces) <= block:
                    block_of(first, end, columns, copied, kept)
                else:
                    with T.serial(0, (end - first + block - 1) // block) as b:
                        block_of(first + b * block, tirx.min(first + (b + 1) * block, end), columns, copied, kept)

        return int8_func(weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y), body, machine)


FAMILY = _Int8Dense()


def _tiles(total: int, n: int, machine: Machine) -> list[tuple[int, int, int]]:
    """Return (rows, vectors, splits) whose sums, and the weights of one quad, fit the registers."""
    found, how = [], products(machine)
    for wide in (1, 2, 3, 4, 6, 8):
        if wide > 1 and (wide - 1) * machine.lanes >= n:
            continue
        spare = how.registers + wide * how.registers_a_vector
        most = min(total, max(1, (machine.registers - spare) // wide), 8 if wide <= 2 else 7)
        most = -(-total // -(-total // most))  # even tiles
        for rows in sorted({most, max(1, most - 1), max(1, most // 2)}):
            splits = max(1, min(QUAD if how.lanes else 8, machine.registers // 2 // (rows * wide)))
            found += [(rows, wide, s) for s in {1, splits}]
    return found


def _seconds(work: Dense, machine: Machine, rows: int, wide: int, splits: int) -> float:
    """Estimate the time of one core without the copies."""
    total, width = work.batch * work.m, wide * machine.lanes
    tiles, panels, steps = -(-total // rows), -(-work.n // width), -(-work.k // QUAD)
    rows = -(-total // tiles)
    how = products(machine)
    loads = (rows / QUAD if how.lanes else rows) + wide
    slots = max(
        1.06 * how.cost + how.spread / wide + how.loading * loads / (rows * wide),
        _IN_FLIGHT / (rows * wide * splits),
        loads / (rows * wide),
    )
    compute = total * panels * wide * steps * slots / cycles_per_second(machine) + 3e-9 * tiles * panels * rows * wide
    weights = 4.0 * panels * width * steps
    stream = weights / machine.stream_rate(weights)
    return overlapped(compute, stream) + 2e-7
