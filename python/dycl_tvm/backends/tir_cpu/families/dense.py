# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of one row or a few with a constant right side: they wait for their weights (for many rows see :mod:`dense_blocked`).

Weights (k, n) are packed to panels (ceil(n / width), k, width), zero beyond n: a tile of rows x one panel reads them in exactly the order
of memory. Few rows are bound by that stream and by the latency of an addition. Where weights come from memory, few rows read several
panels side by side (``streams``): a CPU prefetches each up to the end of its page, and while one begins a page the others go on.
``splits`` keeps several sums over every splits-th k and adds them at the end. A long k over few columns is cut into ``k_pieces`` that
run in parallel.
Error: one rounding per multiply-add, |error| <= k 2^-24 sum |x w| (less with splits), as any float32 product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.cost import MANY_ROWS, overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import WantedRows, even_tiles_of_wanted, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import add_products, add_splits, along_k, multiply_add, unrolled
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.vectors import clear, vectors, zeros
from dycl_tvm.backends.tir_cpu.words.workload import FLOAT32, NOTHING, Dense, Epilogue, Tensor

#: Multiply-adds that must be under way to hide their latency, on cores with two units and latency 4.
_IN_FLIGHT = 8
#: What products take longer whose rows evict each other from L1; measured: 1.8.
_PAGE, _CROWDED = 4096, 1.6
#: Panels that are read side by side, and up to how many rows.
_STREAMS, _STREAMED_ROWS = 4, 6
#: How much quicker that reads weights from memory in pages of 4 KiB (measured: 1.3), and from a cache. Large pages gain nothing.
_STREAM_GAIN, _CACHED_GAIN = 1.25, 0.94


@dataclass(frozen=True)
class DensePlan(Plan):
    """Rows and vectors of a tile, sums of each result, panels side by side; pieces of the rows, the columns and the sum."""

    rows: int
    vectors: int
    splits: int
    streams: int
    row_pieces: int
    column_pieces: int
    k_pieces: int


class _Dense:
    name = "dense"

    def plans(self, work: Dense, machine: Machine) -> list[DensePlan]:
        """Return tile choices, best estimate first; [] unless few rows meet a weight that the batch shares."""
        total = work.batch * work.m
        if not (work.constant and work.shared and work.dtypes == FLOAT32) or total >= MANY_ROWS:
            return []
        found: dict[tuple[tuple[str, int], ...], DensePlan] = {}
        for rows, wide, splits, streams in _tiles(total, work.n, machine):
            tiles, groups = -(-total // rows), _groups(-(-work.n // (wide * machine.lanes)), streams)
            alone = _seconds(work, machine, rows, wide, splits, streams)
            k_pieces = 1
            if tiles * groups < machine.cores and alone > 4 * machine.launch and work.k >= 4096:
                k_pieces = 2 * machine.cores
            pieces = pieces_of(tiles, groups, machine)
            seconds = shared_product(alone, tiles, groups, pieces, machine, along_k=k_pieces)
            plan = DensePlan(seconds, rows, wide, splits, streams, *pieces, k_pieces)
            found[plan.params] = plan
        return sorted(found.values(), key=lambda p: (p.seconds, p.params))[:12]

    def packed(self, work: Dense, plan: DensePlan, machine: Machine) -> Tensor:
        """Return (panels, k, columns of a panel)."""
        return packed_panels(work, plan.vectors * machine.lanes)

    def pack(self, work: Dense, plan: DensePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), packed weights)."""
        return pack_panels(work, plan.vectors * machine.lanes)

    def kernel(self, work: Dense, plan: DensePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), packed weights, epilogue operands, y (batch, m, n))."""
        return self.kernel_of(work, plan, machine, epilogue, None)

    def kernel_of(self, work: Dense, plan: DensePlan, machine: Machine, epilogue: Epilogue, wanted: WantedRows | None) -> Any:
        """Return the PrimFunc of :meth:`kernel` that reads no other rows than those that are ``wanted``."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        make = _split_body if plan.k_pieces > 1 else _body
        return prim_func(buffers, lambda x, w, *rest: make(work, plan, machine, epilogue, x, w, rest[:-1], rest[-1], wanted))


def packed_panels(work: Dense, width: int) -> Tensor:
    """Return the array of the packed weights: (panels, k, columns of a panel)."""
    return Tensor((-(-work.n // width), work.k, width))


def pack_panels(work: Dense, width: int) -> Any:
    """Return the PrimFunc (weights (k, n), packed weights)."""
    packed_shape = packed_panels(work, width).physical
    panels, k, _ = packed_shape

    def body(w: Any, packed: Any) -> None:
        with T.serial(0, panels) as p, T.serial(0, k) as i, T.serial(0, width) as j:
            column = p * width + j
            value = w[i, column]
            if work.n % width:
                value = tirx.if_then_else(column < work.n, w[i, tirx.min(column, work.n - 1)], tirx.const(0, "float32"))
            store(packed, [p, i, j], value)

    return prim_func([("w", (work.k, work.n), "float32"), ("packed", packed_shape, "float32")], body)


def _body(
    work: Dense,
    plan: DensePlan,
    machine: Machine,
    epilogue: Epilogue,
    x: Any,
    w: Any,
    operands: Sequence[Any],
    y: Any,
    wanted: WantedRows | None,
) -> None:
    lanes, rows, splits, streams = machine.lanes, plan.rows, plan.splits, plan.streams
    width, total = plan.vectors * lanes, work.batch * work.m
    tiles, panels = -(-total // rows), -(-work.n // width)
    groups = _groups(panels, streams)
    row_pieces, column_pieces = plan.row_pieces, plan.column_pieces

    def tile(count: int, row: Any, read: Sequence[Any], first: Any, together: int) -> None:
        """Emit rows x the columns of the panels first, first + 1, ..., first + together - 1."""
        of_panels = [zeros(count * splits, width) for _ in range(together)]
        for sums in of_panels:
            clear(sums, width, lanes)

        def step(k: Any, split: int) -> None:
            for s, sums in enumerate(of_panels):
                add_products(
                    sums[split::splits],
                    width,
                    lanes,
                    lambda r: x[row_at(work, read[r], k)],
                    lambda j, s=s: w[first + s, k, j],  # type: ignore[misc]
                )

        along_k(work.k, splits, step)
        for s, sums in enumerate(of_panels):
            store_rows(work, width, lanes, epilogue, operands, y, add_splits(sums, width, lanes, splits), row, first + s)

    def tiles_of(group: Any, first: Any, end: Any) -> None:
        whole = panels // streams

        def emit(panel: Any, together: int) -> None:
            with T.serial(0, end - first) as index:
                even_tiles_of_wanted(total, rows, first + index, wanted, lambda count, row, read: tile(count, row, read, panel, together))

        if whole == groups:
            emit(group * streams, streams)
            return
        with T.If(group < whole):
            with T.Then():
                emit(group * streams, streams)
            with T.Else():  # what is left over, one by one
                emit(group + whole * (streams - 1), 1)

    def panels_of(columns: Any, first: Any, end: Any) -> None:
        begin = columns * groups // column_pieces
        with T.serial(0, (columns + 1) * groups // column_pieces - begin) as group:
            tiles_of(begin + group, first, end)

    seconds = _seconds(work, machine, rows, plan.vectors, splits, streams)
    with parallel(row_pieces * column_pieces, machine, seconds) as piece:
        part, columns = (piece // column_pieces, piece % column_pieces) if row_pieces > 1 else (0, piece)
        first, end = part * tiles // row_pieces, (part + 1) * tiles // row_pieces
        panels_of(columns, first, end)


def _split_body(
    work: Dense,
    plan: DensePlan,
    machine: Machine,
    epilogue: Epilogue,
    x: Any,
    w: Any,
    operands: Sequence[Any],
    y: Any,
    wanted: WantedRows | None,
) -> None:
    """Emit k in pieces: partial sums to memory, in parallel, then their sums."""
    lanes, rows, splits, pieces = machine.lanes, plan.rows, plan.splits, plan.k_pieces
    width, total = plan.vectors * lanes, work.batch * work.m
    tiles, panels = -(-total // rows), -(-work.n // width)
    unroll = unrolled(splits)
    length = -(-work.k // (pieces * unroll)) * unroll  # of all pieces but the last
    pieces = -(-work.k // length)
    partial = T.alloc_buffer((pieces, total, panels * width), "float32")

    def tile(count: int, row: Any, read: Sequence[Any], panel: Any, piece: Any, steps: int) -> None:
        sums = zeros(count * splits, width)
        clear(sums, width, lanes)
        multiply_add(
            sums,
            width,
            lanes,
            steps,
            lambda r, k: x[row_at(work, read[r], piece * length + k)],
            lambda k, j: w[panel, piece * length + k, j],
            splits,
        )
        for r, acc in enumerate(add_splits(sums, width, lanes, splits)):

            def element(j: Any, r: int = r, acc: Any = acc) -> None:
                store(partial, [piece, row + r, panel * width + j], acc[j])

            vectors(width, lanes, element)

    def whole(piece: Any, steps: int) -> None:
        with T.serial(0, panels) as panel, T.serial(0, tiles) as index:
            even_tiles_of_wanted(total, rows, index, wanted, lambda count, row, read: tile(count, row, read, panel, piece, steps))

    with T.parallel(0, pieces) as piece:
        block_of(piece, work.k, length, whole)
    with T.serial(0, total) as row, T.serial(0, panels) as panel:
        sums = zeros(1, width)
        clear(sums, width, lanes)
        with T.serial(0, pieces) as piece:
            vectors(width, lanes, lambda j: store(sums[0], [j], sums[0][j] + partial[piece, row, panel * width + j]))
        store_rows(work, width, lanes, epilogue, operands, y, sums, row, panel)


# ---- choice of tiles -------------------------------------------------------------------------------------------------


def _tiles(total: int, n: int, machine: Machine) -> list[tuple[int, int, int, int]]:
    """Return (rows, vectors, splits, streams) whose accumulators, and one row of the right side, fit the registers."""
    found = []
    for wide in (1, 2, 3, 4, 6, 8):
        if (wide > 1 and (wide - 1) * machine.lanes >= n) or wide * machine.vector_bytes > 512:
            continue
        most = min(total, max(1, (machine.registers - wide - 1) // wide))
        most = -(-total // -(-total // most))  # even tiles
        for rows in sorted({most, max(1, most - 1), max(1, most // 2)}):
            splits = max(1, min(8, machine.registers // 2 // (rows * wide)))
            found += [(rows, wide, s, 1) for s in {1, splits}]
    for wide in (1, 2, 4):
        sums = total * wide * _STREAMS
        if total <= _STREAMED_ROWS and _STREAMS * wide * machine.lanes <= n and sums < machine.registers:
            found += [(total, wide, s, _STREAMS) for s in {1, max(1, min(4, machine.registers // 2 // sums))}]
    return found


def _groups(panels: int, streams: int) -> int:
    """Return the groups of panels that are read side by side; those left over are groups of their own."""
    return panels // streams + panels % streams


def _seconds(work: Dense, machine: Machine, rows: int, wide: int, splits: int, streams: int) -> float:
    """Estimate the time of one core."""
    total, width = work.batch * work.m, wide * machine.lanes
    tiles, panels = -(-total // rows), -(-work.n // width)
    rows = -(-total // tiles)
    fma = 2.0 * total * panels * width * work.k / (machine.gflops * 1e9)
    columns = wide * streams
    waiting = _IN_FLIGHT / (rows * columns * splits)
    loading = (rows + columns) / (rows * columns)
    # rows that lie a multiple of a page apart fall into few sets of L1, which has 8 ways of a page, and not for them alone
    crowded = _CROWDED if rows > 4 * _PAGE // math.gcd(_PAGE, 4 * work.k) else 1.0
    compute = fma * max(1.06, waiting, loading) * crowded + 2e-9 * tiles * panels * rows * wide
    weights = 4.0 * panels * width * work.k
    from_memory = weights > machine.l3 / 2
    rate = machine.stream_rate(weights)
    if streams > 1:
        rate *= _STREAM_GAIN if from_memory else _CACHED_GAIN
    stream = weights / rate
    if machine.registers < 32:  # with 16 registers tiles of many rows are no gain (measured)
        return overlapped(compute, stream) + 2e-7
    # the first tile of rows waits for the panels, the others find them in a cache
    first = compute / tiles
    again = 0.0 if 4 * work.k * width * streams <= machine.l1 / 2 else weights / (7e9 * machine.bandwidth)
    return overlapped(first, stream) + (tiles - 1) * max(first, again) + 2e-7


FAMILY = _Dense()
