# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of many rows with a constant right side: blocks that stay in L2, and the next panel of weights fetched meanwhile.

Weights lie in panels as in :mod:`dense`. A block of rows, and of the sum if it is long, stays in L2 while all panels pass by; between
blocks of the sum, sums wait in the output. During the tiles of one panel the next is fetched into L2, a line every few steps, so weights
that come from memory are waited for once. Rows that lie a multiple of a page apart, and so fall into few sets of L1, are copied apart
first (``copied``). The structure is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (ACM TOMS 34, 2008).
Error: as any float32 product, |error| <= k 2^-24 sum |x w|; blocks of the sum keep that of long ones near a chain of 768.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families import dense
from dycl_tvm.backends.tir_cpu.words.cost import MANY_ROWS, multiply_add_loss, overlapped, pieces_of, shared_product
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.rows import WantedRows, add_rows, even_tiles_of_wanted, row_at, store_rows
from dycl_tvm.backends.tir_cpu.words.sums import add_products, along_k, fetching, unrolled
from dycl_tvm.backends.tir_cpu.words.vectors import clear, zeros
from dycl_tvm.backends.tir_cpu.words.workload import FLOAT32, NOTHING, Dense, Epilogue, Tensor

#: Longest blocks of the sum: a row of one takes a tenth of L1.
_DEPTH = 768
#: Parts of L2: of a block of rows, and of a panel with the next one.
_ROWS_PART, _PANELS_PART = 0.45, 0.4
_PAGE, _LINE, _FLOAT = 4096, 64, 4
#: Seconds of a row and a vector of a tile beside its multiply-adds, and the part of the weights' stream that is not hidden.
_STORE, _WAITED = 1e-9, 0.03
#: Rows of fine tiles, and up to how much slower they may be by the estimate. Measured, they are as fast as others, with 4 vectors in 32
#: registers and 3 in 16.
_FEW, _ABOUT = 4, 1.1
#: How quickly rows are copied, over the machine's bandwidth (measured).
_COPY = 2.8


@dataclass(frozen=True)
class BlockedPlan(Plan):
    """Rows and vectors of a tile, steps of a block of the sum, whether rows are copied; pieces of the rows and the columns."""

    rows: int
    vectors: int
    depth: int
    copied: int
    row_pieces: int
    column_pieces: int


class _Blocked:
    name = "dense_blocked"

    def plans(self, work: Dense, machine: Machine) -> list[BlockedPlan]:
        """Return tile choices, best estimate first; [] unless many rows meet a weight that the batch shares."""
        total = work.batch * work.m
        if not (work.constant and work.shared and work.dtypes == FLOAT32) or total < MANY_ROWS:
            return []
        found = []
        for wide in _vectors(work.n, machine):
            most = (machine.registers - wide - 1 - (wide == 1)) // wide
            found.append(_plan(work, machine, -(-total // -(-total // most)), wide))  # even tiles
        return _sorted(found)

    def finer(self, work: Dense, plan: BlockedPlan, machine: Machine) -> BlockedPlan:
        """Return a plan with tiles of few rows that is about as fast as another one.

        Calls that decide how many rows there are have whole tiles computed, and those of sequences may begin anywhere.
        """
        # with 2 vectors a step has too many loads (measured: 1.12 times)
        few = _sorted([_plan(work, machine, _FEW, n) for n in (4, 3) if _FEW * n + n + 1 <= machine.registers])
        return few[0] if few and plan.rows > _FEW and few[0].seconds <= _ABOUT * plan.seconds else plan

    def packed(self, work: Dense, plan: BlockedPlan, machine: Machine) -> Tensor:
        """Return (panels, k, columns of a panel)."""
        return dense.packed_panels(work, plan.vectors * machine.lanes)

    def pack(self, work: Dense, plan: BlockedPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (k, n), packed weights)."""
        return dense.pack_panels(work, plan.vectors * machine.lanes)

    def kernel(self, work: Dense, plan: BlockedPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x (batch, m, k), packed weights, epilogue operands, y (batch, m, n))."""
        return self.kernel_of(work, plan, machine, epilogue, None)

    def kernel_of(self, work: Dense, plan: BlockedPlan, machine: Machine, epilogue: Epilogue, wanted: WantedRows | None) -> Any:
        """Return the PrimFunc of :meth:`kernel` that reads no other rows than those that are ``wanted``."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)
        return prim_func(buffers, lambda x, w, *rest: _Kernel(work, plan, machine, epilogue, x, w, rest[:-1], rest[-1], wanted).emit())


def _plan(work: Dense, machine: Machine, rows: int, wide: int) -> BlockedPlan | None:
    """Return the plan for tiles of some rows and vectors; None where the panels of weights would be too large."""
    total, width, depth = work.batch * work.m, wide * machine.lanes, _depth(work.k)
    if 2 * _FLOAT * depth * width > _PANELS_PART * machine.l2:
        return None
    # rows a multiple of a page apart fall into few sets of L1, which has 8 ways of a page, and not for them alone
    copied = rows > 4 * _PAGE // math.gcd(_PAGE, _FLOAT * work.k)
    tiles, panels = -(-total // rows), -(-work.n // width)
    pieces = pieces_of(tiles, panels, machine) if not copied else (1, min(panels, machine.cores))  # each piece copies
    copying = _FLOAT * total * work.k / (_COPY * machine.bandwidth * 1e9) if copied else 0.0
    seconds = shared_product(_seconds(work, machine, rows, wide), tiles, panels, pieces, machine, once=copying)
    return BlockedPlan(seconds, rows, wide, depth, int(copied), *pieces)


def _sorted(plans: Sequence[BlockedPlan | None]) -> list[BlockedPlan]:
    return sorted((p for p in plans if p is not None), key=lambda p: (p.seconds, p.params))


def _vectors(n: int, machine: Machine) -> Sequence[int]:
    """Return the vectors that a panel may have: with few a tile has more rows, with more a step has fewer loads."""
    if n <= machine.lanes:
        return (1,)
    return (2, 3) if machine.registers >= 32 and n > 2 * machine.lanes else (2,)


def _depth(k: int) -> int:
    """Return the steps of a block of the sum; all but the last have as many."""
    unroll = unrolled(1)
    return k if k <= _DEPTH else -(-k // -(-k // _DEPTH) // unroll) * unroll


def _seconds(work: Dense, machine: Machine, rows: int, wide: int) -> float:
    """Estimate the time of one core."""
    total, width = work.batch * work.m, wide * machine.lanes
    tiles, panels = -(-total // rows), -(-work.n // width)
    depth = _depth(work.k)
    loss = multiply_add_loss(rows, wide, _FLOAT * depth * width, machine)
    compute = 2.0 * total * panels * width * work.k / (machine.gflops * 1e9) * loss
    blocks = -(-work.k // depth)
    weights = float(_FLOAT * panels * width * work.k)
    return overlapped(compute, weights / machine.stream_rate(weights), _WAITED) + _STORE * tiles * panels * rows * wide * (2 * blocks - 1)


class _Kernel:
    """One kernel while it is written."""

    def __init__(
        self,
        work: Dense,
        plan: BlockedPlan,
        machine: Machine,
        epilogue: Epilogue,
        x: Any,
        w: Any,
        operands: Sequence[Any],
        y: Any,
        wanted: WantedRows | None,
    ) -> None:
        self.work, self.plan, self.machine, self.epilogue, self.wanted = work, plan, machine, epilogue, wanted
        self.x, self.w, self.operands, self.y = x, w, operands, y
        self.lanes, self.width, self.total = machine.lanes, plan.vectors * machine.lanes, work.batch * work.m
        self.tiles, self.panels = -(-self.total // plan.rows), -(-work.n // self.width)
        self.blocks = -(-work.k // plan.depth)
        share = -(-self.tiles // plan.row_pieces)
        #: Tiles of a block of rows.
        self.together = min(share, max(1, int(_ROWS_PART * machine.l2) // (_FLOAT * plan.depth * plan.rows)))
        self.whole = share == self.together

    def emit(self) -> None:
        """Emit all pieces."""
        plan, alone = self.plan, _seconds(self.work, self.machine, self.plan.rows, self.plan.vectors)
        with parallel(plan.row_pieces * plan.column_pieces, self.machine, alone) as piece:
            part, columns = (piece // plan.column_pieces, piece % plan.column_pieces) if plan.row_pieces > 1 else (0, piece)
            first, end = part * self.tiles // plan.row_pieces, (part + 1) * self.tiles // plan.row_pieces
            if self.whole:
                self.rows(first, end, columns)
                return
            with T.serial(0, (end - first + self.together - 1) // self.together) as b:
                start = first + b * self.together
                self.rows(start, tirx.min(start + self.together, end), columns)

    def rows(self, first: Any, end: Any, columns: Any) -> None:
        """Emit the tiles of rows first, ..., end - 1, block by block of the sum."""
        depth = self.plan.depth
        # a line more than the row, so that rows do not meet in one set
        shape = (self.together * self.plan.rows, depth + _LINE // _FLOAT)
        copy = T.alloc_buffer(shape, "float32") if self.plan.copied else None
        if self.blocks == 1:
            self.block(first, end, columns, copy, 0, depth, begins=True, ends=True)
            return
        self.block(first, end, columns, copy, 0, depth, begins=True, ends=False)
        if self.blocks > 2:
            with T.serial(0, self.blocks - 2) as b:
                self.block(first, end, columns, copy, (b + 1) * depth, depth, begins=False, ends=False)
        done = (self.blocks - 1) * depth
        self.block(first, end, columns, copy, done, self.work.k - done, begins=False, ends=True)

    def block(self, first: Any, end: Any, columns: Any, copy: Any, k: Any, steps: int, *, begins: bool, ends: bool) -> None:
        """Emit all panels of a piece over one block of rows and of the sum; the first one finds rows that have to be copied."""
        rows, pieces = self.plan.rows, self.plan.column_pieces
        begin = columns * self.panels // pieces
        with T.serial(0, (columns + 1) * self.panels // pieces - begin) as panel, T.serial(0, end - first) as index:

            def tile(count: int, row: Any, read: Sequence[Any]) -> None:
                at = index * rows
                if copy is not None:
                    with T.If(panel.equal(0)), T.Then():
                        self.copy(copy, at, read, k, steps)

                def left(r: int, step: Any) -> Any:
                    return self.x[row_at(self.work, read[r], k + step)] if copy is None else copy[at + r, step]

                self.tile(count, row, begin + panel, index, left, k, steps, begins=begins, ends=ends)

            even_tiles_of_wanted(self.total, rows, first + index, self.wanted, tile)

    def copy(self, copy: Any, at: Any, read: Sequence[Any], k: Any, steps: int) -> None:
        """Emit the copy of a tile's rows."""
        whole, rest = divmod(steps, self.lanes)
        for r, row in enumerate(read):
            if whole:
                with T.serial(0, whole) as q, T.vectorized(0, self.lanes) as v:
                    step = q * self.lanes + v
                    store(copy, [at + r, step], self.x[row_at(self.work, row, k + step)])
            for step in range(steps - rest, steps):
                store(copy, [at + r, step], self.x[row_at(self.work, row, k + step)])

    def tile(
        self, count: int, row: Any, panel: Any, turn: Any, left: Callable[[int, Any], Any], k: Any, steps: int, *, begins: bool, ends: bool
    ) -> None:
        """Emit one tile over a block of the sum; ``turn`` counts the tiles of the block, which fetch the next panel together."""
        sums = zeros(count, self.width)
        clear(sums, self.width, self.lanes)

        def step(at: Any, _: int) -> None:
            add_products(sums, self.width, self.lanes, lambda r: left(r, at), lambda j: self.w[panel, k + at, j])

        weights = _FLOAT * self.panels * self.width * self.work.k
        fetch = fetching(self.w, panel + 1, k, steps, 1, turn, self.together)
        along_k(steps, 1, step, fetch if 2 * weights > self.machine.l2 else None)
        if not begins:  # each block has a sum of its own: a long chain of additions rounds more
            add_rows(self.work, self.width, self.lanes, self.y, sums, row, panel)
        finished = (self.epilogue, self.operands) if ends else (NOTHING, ())
        store_rows(self.work, self.width, self.lanes, *finished, self.y, sums, row, panel)


FAMILY = _Blocked()
