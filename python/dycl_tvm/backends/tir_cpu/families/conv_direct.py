# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions: a tile of outputs (blocks of channels x rows x columns) in registers, one broadcast input element at a time.

Tiles at the border leave out the taps that fall into the padding, so nothing is padded or copied, and small images cost less than
the formula says. Tiles of one row find the taps' rows at run time; tiles of several rows, and the columns, at build time. Kernels so
wide that this would be too much code read a padded copy of the rows that a piece needs.

Two orders of the sum. Taps of a kernel's row one after the other, each over the lanes of a block: few elements are alive, so a tile
may fill the registers. Or lanes outside and taps inside (``interleaved``): tiles that are small, or small at the border, wait less
for their sums, but compilers keep the elements that taps share in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Limit, outer, sizes_of
from dycl_tvm.backends.tir_cpu.families.conv_direct_plans import WIDE_TAPS, DirectPlan, direct_plans, unrolled_lanes
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.words.convolution import Axis, Problem, Reach, Run, cut, problem, share, tiles
from dycl_tvm.backends.tir_cpu.words.cost import one_core
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import guarded, parallel, prefetch, prim_func, store, there_are
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import write
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


class _Direct:
    """The family ``direct``."""

    name = "direct"

    def plans(self, work: Conv2D, machine: Machine) -> list[DirectPlan]:
        """Return the tile choices for any float32 convolution with packed output whose groups are whole blocks."""
        return direct_plans(work, machine)

    def packed(self, work: Conv2D, plan: DirectPlan, machine: Machine) -> Tensor:
        """Vectors of weights in the order in which the kernel reads them."""
        p = problem(work)
        return Tensor((p.groups * p.outputs * p.reduction, p.lanes))

    def pack(self, work: Conv2D, plan: DirectPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), packed): tile of outputs by tile, step by step of
        its sum, one vector for each block of outputs."""
        p = problem(work)
        kh, kw = work.kernel

        def body(weights: Any, packed: Any) -> None:
            for run in cut(p.outputs, plan.blocks):
                with T.serial(0, p.groups) as g, _serial(run.first, run.last) as t:
                    first = g * p.outputs + run.position(t)
                    with T.serial(0, p.inputs) as c, T.serial(0, kh) as i, T.serial(0, kw) as k, T.serial(0, p.block) as e:
                        step = _step(p, plan, c, i, k, e)
                        with T.serial(0, run.size) as j, T.serial(0, p.lanes) as lane:
                            out, inp = (first + j) * p.lanes + lane, c * p.block + e
                            known = tirx.all(out < work.y.shape[1], inp < p.channels)
                            value = tirx.if_then_else(known, weights[out, inp, i, k], T.float32(0))
                            store(packed, [first * p.reduction + step * run.size + j, lane], value)

        shape = self.packed(work, plan, machine).physical
        return prim_func([("weights", work.weight_shape, "float32"), ("packed", shape, "float32")], body)

    def kernel(self, work: Conv2D, plan: DirectPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, operands of the epilogue, y)."""
        return DirectMaker(work, plan, machine, epilogue)()


FAMILY = _Direct()


@dataclass(frozen=True)
class DirectMaker(Maker):
    """Makes the kernel of a convolution, also for the first rows and columns of the output alone, which are what is its own.

    A tile that reaches over the last of these is computed as one or two of half the columns (as a whole one instead of two if its weights
    do not stay in the first cache meanwhile), which read nothing behind what wanted places read: memory of other things may hold denormal
    numbers there, and products of those take a hundred times as long.
    """

    work: Conv2D
    plan: DirectPlan
    machine: Machine
    epilogue: Epilogue

    def __call__(self, own: Sequence[Limit | None] = ()) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, sizes of the call, y)."""
        *inputs, y = weighted_buffers(self.work.x, FAMILY.packed(self.work, self.plan, self.machine), self.epilogue, self.work.y)
        numbers = sizes_of(own)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            operands, lengths = rest[: len(rest) - 1 - len(numbers)], dict(zip(numbers, rest[-1 - len(numbers) : -1]))
            wanted = [T.bind(there_are(e, n, lengths)) for e, n in zip(map(outer, own), self.work.y.shape[2:])]
            _Emitter(self.work, self.plan, self.machine, self.epilogue, x, weights, operands, rest[-1], wanted).emit()

        return prim_func([*inputs, *((f"length_{k}", (), "int64") for k in numbers), y], body)


class _Emitter:
    """Writes one kernel; of ``wanted`` rows and columns alone if they are given."""

    def __init__(
        self,
        work: Conv2D,
        plan: DirectPlan,
        machine: Machine,
        epilogue: Epilogue,
        x: Any,
        weights: Any,
        operands: Sequence[Any],
        y: Any,
        wanted: Sequence[Any] = (),
    ) -> None:
        self.work, self.plan, self.machine, self.epilogue = work, plan, machine, epilogue
        self.x, self.weights, self.operands, self.y, self.wanted = x, weights, operands, y, wanted
        p = self.p = problem(work, apart=bool(wanted))
        self.copied = bool(plan.copy)
        self.columns = cut(p.columns.out, plan.columns, None if self.copied else p.columns)
        self.one_row = plan.rows == 1
        self.rows = [Run(0, p.rows.out, 0, 1)] if self.one_row else cut(p.rows.out, plan.rows, p.rows)
        self.outputs = cut(p.outputs, plan.blocks)
        self.chunk = plan.inputs or p.inputs
        self.chunks = -(-p.inputs // self.chunk)
        #: Partial sums of a tile, also of one in two halves.
        self.slot = plan.blocks * plan.rows * (2 * -(-plan.columns // 2) if wanted else plan.columns)
        self.lane = T.ramp(0, 1, p.lanes)
        self.zero = T.broadcast(T.float32(0), p.lanes)

    def emit(self) -> None:
        p, plan = self.p, self.plan
        along = self.rows if p.rows.out > 1 else self.columns
        out_parts, parts = plan.output_parts, min(plan.parts, tiles(along))
        pieces = p.images * out_parts * parts
        with parallel(pieces, self.machine, one_core(self.work, self.machine)) as piece:
            n = tirx.floormod(tirx.floordiv(piece, parts), p.images)
            part, out_part = tirx.floormod(piece, parts), tirx.floordiv(piece, parts * p.images)
            span = share(part, parts, tiles(along))
            row_span, column_span = (span, (0, tiles(self.columns))) if p.rows.out > 1 else ((0, tiles(self.rows)), span)
            self.spans = row_span, column_span
            self.scratch(-(-tiles(along) // parts), row_span[0])
            self.fill_copy(n, row_span)
            #: The last row and column of the input, or of its copy, that any place reads which is wanted.
            self.ends = [
                T.bind(tirx.max(self.at(axis, count - 1, axis.kernel - 1), 0)) for axis, count in zip((p.rows, p.columns), self.wanted)
            ]
            if p.groups > 1:
                with _serial(*share(out_part, out_parts, p.groups)) as g:
                    self.blocks(n, g, (0, tiles(self.outputs)))
            else:
                self.blocks(n, 0, share(out_part, out_parts, tiles(self.outputs)))

    def blocks(self, n: Any, g: Any, span: tuple[Any, Any]) -> None:
        """Emit the loops over tiles of output blocks, chunks of input blocks, and tiles of positions."""
        for run in self.outputs:
            with _within(run, span) as t:
                block = g * self.p.outputs + run.position(t)
                if self.chunks == 1:
                    self.positions(n, g, block, run.size, 0)
                else:
                    with T.serial(0, self.chunks) as chunk:
                        self.positions(n, g, block, run.size, chunk)

    def positions(self, n: Any, g: Any, block: Any, blocks: int, chunk: Any) -> None:
        for rows in self.rows:
            with _within(rows, self.spans[0]) as i:
                for columns in self.columns:
                    with _within(columns, self.spans[1]) as j:
                        self.tile(n, g, block, blocks, rows, i, columns, j, chunk)

    def tile(self, n: Any, g: Any, block: Any, blocks: int, rows: Run, i: Any, columns: Run, j: Any, chunk: Any) -> None:
        """Emit a tile, or what is wanted of it."""
        if not self.wanted:
            _Tile(self, n, g, block, blocks, rows, i, columns, j).emit(chunk)
            return
        height, width = self.wanted
        above, left = height - rows.position(i), width - columns.position(j)
        half = -(-columns.size // 2)

        def part(first: Any, count: int, reach: Reach) -> None:
            _Tile(self, n, g, block, blocks, rows, i, replace(columns, reach=reach), j, Part(first, count)).emit(chunk)

        with guarded([above > 0, left > 0]), T.If(tirx.all(above >= rows.size, left >= columns.size)):
            with T.Then():
                _Tile(self, n, g, block, blocks, rows, i, columns, j).emit(chunk)
            with T.Else():  # each is code for each tap
                if half < columns.size and 4 * self.p.lanes * self.p.reduction * blocks > self.machine.l1 // 2:
                    with T.If(left > half):
                        with T.Then():
                            part(0, columns.size, columns.reach)
                        with T.Else():
                            part(0, half, columns.reach[:half])
                elif len(set(columns.reach)) < 2:
                    with T.serial(0, tirx.Select(left > half, 2, 1) if half < columns.size else 1) as k:
                        part(k * (columns.size - half), half, columns.reach[:half])
                else:
                    for first in sorted({0, columns.size - half}):
                        with guarded([left > half] if first else []):
                            part(first, half, columns.reach[first : first + half])

    # -- scratch -----------------------------------------------------------------------------------------------------------

    def scratch(self, tiles_of_piece: int, first_row: Any) -> None:
        """Allocate what a piece keeps outside of registers: a padded copy of its rows, partial sums between chunks."""
        p = self.p
        if self.copied:
            rows = ((tiles_of_piece if p.rows.out > 1 else 1) - 1) * p.rows.stride + (p.rows.kernel - 1) * p.rows.dilation + 1
            columns = (p.columns.out - 1) * p.columns.stride + (p.columns.kernel - 1) * p.columns.dilation + 1
            self.copy = T.alloc_buffer((p.groups * p.inputs, rows, columns, p.block), "float32")
            self.copy_shape = rows, columns
            self.copy_row = first_row
        if self.chunks > 1:
            other = tiles(self.columns) if p.rows.out > 1 else 1
            self.slots = other
            vectors = tiles_of_piece * other * self.slot
            self.partial = T.alloc_buffer((vectors, p.lanes), "float32")

    def fill_copy(self, n: Any, row_span: tuple[Any, Any]) -> None:
        if not self.copied:
            return
        p = self.p
        rows, columns = self.copy_shape
        with T.serial(0, p.groups * p.inputs) as c, T.serial(0, rows) as i, T.serial(0, columns) as j, T.vectorized(0, p.block) as v:
            row, column = p.rows.at(self.copy_row, 0) + i, j - p.columns.pad
            inside = tirx.all(row >= 0, row < p.rows.size, column >= 0, column < p.columns.size)
            store(self.copy, [c, i, j, v], tirx.if_then_else(inside, self.input(n, c, row, column, v), T.float32(0)))

    def input(self, n: Any, c: Any, row: Any, column: Any, lane: Any) -> Any:
        image, row, column = self.p.place(n, row, column)
        return self.x[image, c, row, column] if self.p.block == 1 else self.x[image, c, row, column, lane]

    def at(self, axis: Axis, out: Any, k: Any) -> Any:
        """The position under kernel position ``k`` of an output position, in the input or in the copy of it."""
        if not self.copied:
            return axis.at(out, k)
        first = self.copy_row if axis is self.p.rows else 0
        return (out - first) * axis.stride + k * axis.dilation

    def element(self, n: Any, c: Any, lane: Any, row: Any, i: Any, column: Any, k: Any, within: bool) -> Any:
        """The input element under kernel position (i, k) of output (row, column); one ``within`` what wanted places read."""
        at = [self.at(self.p.rows, row, i), self.at(self.p.columns, column, k)]
        if within:
            at = list(map(tirx.min, at, self.ends))
        return self.copy[c, at[0], at[1], lane] if self.copied else self.input(n, c, at[0], at[1], lane)


@dataclass(frozen=True)
class Part:
    """``count`` columns of a tile from the ``first`` on, of which not all need be wanted."""

    first: Any
    count: int


class _Tile:
    """Writes the code of one tile, or of a part of it."""

    def __init__(
        self, e: _Emitter, n: Any, g: Any, block: Any, blocks: int, rows: Run, i: Any, columns: Run, j: Any, part: Part | None = None
    ) -> None:
        self.e, self.n, self.g, self.block, self.blocks, self.rows, self.columns = e, n, g, block, blocks, rows, columns
        self.row, self.column, self.within = rows.position(i), columns.position(j), part is not None
        count = columns.size
        (row_begin, _), (column_begin, _) = e.spans
        self.slot = ((i - row_begin) * e.slots + j - column_begin) * e.slot if e.chunks > 1 else 0
        if part is not None:
            count = part.count
            self.column = self.column + part.first
            # the first is at 0, and the second one behind the first
            self.slot = self.slot + tirx.min(part.first, 1) * (e.slot // 2)
        self.points = [(a, b) for a in range(rows.size) for b in range(count)]

    def emit(self, chunk: Any) -> None:
        e, p = self.e, self.e.p
        self.acc = {(*point, k): T.alloc_buffer((p.lanes,), "float32") for point in self.points for k in range(self.blocks)}
        if e.chunks == 1:
            self.each(lambda a, at: store(a, [e.lane], e.zero))
            self.reduce(0, p.inputs)
            self.finish()
            return
        self.branch(
            chunk == 0,
            lambda: self.each(lambda a, at: store(a, [e.lane], e.zero)),
            lambda: self.each(lambda a, at: store(a, [e.lane], e.partial[self.slot + at, e.lane])),
        )
        last = (chunk + 1) * e.chunk
        self.reduce(chunk * e.chunk, last if p.inputs % e.chunk == 0 else tirx.min(last, p.inputs))
        self.branch(
            chunk == e.chunks - 1,
            self.finish,
            lambda: self.each(lambda a, at: store(e.partial, [self.slot + at, e.lane], a[e.lane])),
        )

    def each(self, do: Any) -> None:
        for k, a in enumerate(self.acc.values()):
            do(a, k)

    @staticmethod
    def branch(condition: Any, then: Any, otherwise: Any) -> None:
        with T.If(condition):
            with T.Then():
                then()
            with T.Else():
                otherwise()

    def finish(self) -> None:
        """Store the tile through the epilogue."""
        e, p = self.e, self.e.p
        for (a, b, k), acc in self.acc.items():
            image, row, column = p.place(self.n, self.row + a, self.column + b)
            with T.vectorized(0, p.lanes) as lane:
                index = [image, self.block + k, row, column]
                write(e.y, e.work.y, [*index, lane], finish(e.epilogue, e.operands, e.work.y, acc[lane], index, lane))

    # -- the sum -----------------------------------------------------------------------------------------------------------

    def reduce(self, begin: Any, end: Any) -> None:
        """Emit the loops over blocks of inputs and rows of the kernel."""
        e, p = self.e, self.e.p
        with _serial(begin, end) as c:
            if not e.one_row:
                for i in range(p.rows.kernel):
                    self.row_of_kernel(c, i, [row[i] for row in self.rows.reach])
            elif p.rows.kernel == 1 and not p.rows.padded:
                self.row_of_kernel(c, 0, [True])
            else:
                with _serial(*((0, p.rows.kernel) if e.copied else p.rows.bounds(self.row))) as i:
                    self.row_of_kernel(c, i, [True])

    def row_of_kernel(self, c: Any, i: Any, rows: list[bool]) -> None:
        """Emit one row of the kernel over one block of inputs."""
        e, p = self.e, self.e.p
        kernel = p.columns.kernel
        # a tap is used by the tile's points that it reaches
        taps = [[(a, b) for a, b in self.points if rows[a] and (e.copied or self.columns.reach[b][k])] for k in range(kernel)]
        if not any(taps):
            return
        # the last block may hold fewer channels than the others
        interleaved = e.plan.interleaved
        unroll, lanes = unrolled_lanes(p, len(self.acc) * (kernel if interleaved else 1))
        count = tirx.min(p.block, p.channels - c * p.block) if lanes is None else lanes // unroll
        if interleaved:
            with T.serial(0, count) as outer, T.unroll(0, unroll) as inner:
                for k, points in enumerate(taps):
                    self.tap(c, outer * unroll + inner, i, k, points)
            return
        wide = kernel * len(self.acc) > WIDE_TAPS and all(len(t) == len(self.points) for t in taps)
        with T.serial(0, kernel) if wide else nullcontext() as any_tap:
            each: list[tuple[Any, Any]] = [(any_tap, self.points)] if wide else list(enumerate(taps))
            for k, points in each:
                if points:
                    with T.serial(0, count) as outer, T.unroll(0, unroll) as inner:
                        self.tap(c, outer * unroll + inner, i, k, points)

    def tap(self, c: Any, lane: Any, i: Any, k: Any, points: list[tuple[int, int]]) -> None:
        """Emit the multiply-adds of one tap: weight vectors times broadcast elements."""
        e, p = self.e, self.e.p
        ahead = e.plan.ahead
        first = self.block * p.reduction + _step(p, e.plan, c, i, k, lane) * self.blocks
        for j in range(self.blocks if ahead and points else 0):
            prefetch(e.weights, [first + j + ahead, 0], cache=1)
        for a, b in points:
            element = e.element(self.n, self.g * p.inputs + c, lane, self.row + a, i, self.column + b, k, self.within)
            for j in range(self.blocks):
                acc = self.acc[a, b, j]
                store(acc, [e.lane], acc[e.lane] + T.broadcast(element, p.lanes) * e.weights[first + j, e.lane])


def _step(p: Problem, plan: DirectPlan, c: Any, i: Any, k: Any, lane: Any) -> Any:
    """Return which step of the sum a kernel position and an input channel are: the order in which the weights lie."""
    row = c * p.rows.kernel + i
    return (row * p.block + lane) * p.columns.kernel + k if plan.interleaved else (row * p.columns.kernel + k) * p.block + lane


@contextmanager
def _serial(begin: Any, end: Any) -> Iterator[Any]:
    """Loop over a range, which may be empty (then the end may lie below the begin).

    All loops begin at 0: TVM 0.27 mistakes bounds that depend on the variable of a loop with another begin.
    """
    extent = max(0, end - begin) if isinstance(begin, int) and isinstance(end, int) else tirx.max(0, end - begin)
    with T.serial(0, extent) as k:
        yield k if isinstance(begin, int) and begin == 0 else k + begin


def _within(run: Run, span: tuple[Any, Any]) -> AbstractContextManager[Any]:
    """Return the loop over the tiles of a run that lie in a span of tiles."""
    begin, end = span
    if isinstance(begin, int) and isinstance(end, int):
        return _serial(max(begin, run.first), min(end, run.last))
    return _serial(tirx.max(begin, run.first), tirx.min(end, run.last))
