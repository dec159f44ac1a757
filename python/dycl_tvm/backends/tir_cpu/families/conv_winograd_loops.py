# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The loops of Winograd convolutions; conv_winograd.py has the algorithm."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Extent, sizes_of
from dycl_tvm.backends.tir_cpu.families.conv_few import Places, emit_few
from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import guarded, is_parallel, parallel, store, there_are
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.storage import read, write
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Epilogue
from dycl_tvm.errors import UsageError

#: Multiply-adds that must be under way to hide their latency, on cores with two units and latency 4.
_IN_FLIGHT = 8
_Vectors = Callable[[int], Any]


@dataclass(frozen=True)
class Transform:
    """The transforms of F(m, 3) in one dimension, as expressions, and G as numbers."""

    m: int
    g: tuple[tuple[float, float, float], ...]
    input: Callable[[_Vectors], list[Any]]
    output: Callable[[_Vectors], list[Any]]

    @property
    def a(self) -> int:
        """Size of an input tile."""
        return self.m + 2


def _input_2(d: _Vectors) -> list[Any]:
    return [d(0) - d(2), d(1) + d(2), d(2) - d(1), d(1) - d(3)]


def _output_2(m: _Vectors) -> list[Any]:
    return [m(0) + m(1) + m(2), m(1) - m(2) - m(3)]


#: Points of F(4,3): 0, P, -P, Q, -Q, infinity.
_P, _Q = math.sqrt(0.5), math.sqrt(2.0)


def _input_4(d: _Vectors) -> list[Any]:
    even_p, odd_p = d(4) - 2.0 * d(2), d(3) - 2.0 * d(1)  # x^k (x^2 - Q^2)
    even_q, odd_q = d(4) - 0.5 * d(2), d(3) - 0.5 * d(1)  # x^k (x^2 - P^2)
    return [
        d(4) - 2.5 * d(2) + d(0),
        even_p + _P * odd_p,
        even_p - _P * odd_p,
        even_q + _Q * odd_q,
        even_q - _Q * odd_q,
        d(5) - 2.5 * d(3) + d(1),
    ]


def _output_4(m: _Vectors) -> list[Any]:
    even_p, odd_p = m(1) + m(2), m(1) - m(2)
    even_q, odd_q = m(3) + m(4), m(3) - m(4)
    return [
        m(0) + even_p + even_q,
        _P * odd_p + _Q * odd_q,
        0.5 * even_p + 2.0 * even_q,
        0.5 * _P * odd_p + 2.0 * _Q * odd_q + m(5),
    ]


def _g(points: Sequence[float]) -> tuple[tuple[float, float, float], ...]:
    """Rows (1, p, p^2) / prod(p - other points), and (0, 0, 1) for infinity."""
    rows = []
    for p in points:
        scale = math.prod(p - q for q in points if q != p)
        rows.append((1 / scale, p / scale, p * p / scale))
    return (*rows, (0.0, 0.0, 1.0))


TRANSFORMS = {
    2: Transform(2, ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)), _input_2, _output_2),
    4: Transform(4, _g((0.0, _P, -_P, _Q, -_Q)), _input_4, _output_4),
}


@dataclass(frozen=True)
class WinogradPlan(Plan):
    """F(m, 3); blocks of outputs and columns of a register tile; blocks of tile rows; whether each of these is split among threads."""

    m: int
    oc: int
    cols: int
    blocks: int
    split: int

    @property
    def strict(self) -> bool:
        """F(2,3) rounds like a direct sum, F(4,3) does not."""
        return self.m == 2


@dataclass(frozen=True)
class Shape:
    """All sizes of a kernel."""

    work: Conv2D
    m: int
    oc: int
    cols: int
    blocks: int
    lanes: int

    @staticmethod
    def of(work: Conv2D, plan: WinogradPlan, machine: Machine) -> Shape:
        s = Shape(work, plan.m, plan.oc, plan.cols, plan.blocks, machine.lanes)
        fits = s.m in TRANSFORMS and 1 <= s.oc <= s.oc_blocks and 1 <= s.blocks <= s.rows
        if not fits or not 1 <= s.cols <= s.rows // s.blocks * s.tiles[1]:
            raise UsageError(f"This plan of the family winograd does not fit {work.x.shape} -> {work.y.shape}: {dict(plan.params)}")
        return s

    @property
    def transform(self) -> Transform:
        return TRANSFORMS[self.m]

    @property
    def ci(self) -> int:
        return self.work.x.shape[1]

    @property
    def ic_blocks(self) -> int:
        return -(-self.ci // self.lanes)

    @property
    def oc_blocks(self) -> int:
        return -(-self.work.y.shape[1] // self.lanes)

    @property
    def groups(self) -> list[int]:
        """Output blocks of each group: ``oc``, and what remains."""
        full, rest = divmod(self.oc_blocks, self.oc)
        return [self.oc] * full + [rest] * (rest > 0)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of an image: rows, columns."""
        return -(-self.work.y.shape[2] // self.m), -(-self.work.y.shape[3] // self.m)

    @property
    def rows(self) -> int:
        """Rows of tiles of all images."""
        return self.work.y.shape[0] * self.tiles[0]

    @property
    def block_rows(self) -> int:
        """Rows of the largest block; the smallest has at most one less."""
        return -(-self.rows // self.blocks)

    @property
    def v_stride(self) -> int:
        """Vectors from one V[x] to the next: odd, so that the a * a streams do not fall into one set of the cache."""
        return (self.ic_blocks * self.block_rows * self.tiles[1]) | 1

    @property
    def m_stride(self) -> int:
        """As ``v_stride``, of M."""
        return (self.oc * self.block_rows * self.tiles[1]) | 1


class Loops:
    """Emits the loops of one kernel.

    ``seconds`` are those of each parallel loop, on one core; ``own`` of images, rows and columns of the output those that are wanted,
    and of rows and columns of the input those that there are: behind them it is zero, whatever lies there. Up to ``few`` places of the
    output are computed as the sums that they are (:mod:`conv_few`), of weights that are one more input behind the operands.
    """

    def __init__(
        self,
        s: Shape,
        machine: Machine,
        epilogue: Epilogue,
        split: int,
        seconds: Sequence[float],
        own: Sequence[Extent | None] = (),
        few: int = 0,
    ) -> None:
        self.s, self.machine, self.epilogue, self.split, self.seconds, self.own = s, machine, epilogue, split, seconds, own
        self.few = few

    def emit(self, x: Any, u: Any, *rest: Any) -> None:
        s, sizes = self.s, sizes_of(self.own)
        count = len(rest) - 1 - len(sizes)
        operands = count - 1 if self.few else count
        self.x, self.u, self.operands, self.y = x, u, rest[:operands], rest[-1]
        #: Rows and columns of tiles of an image, and rows of all images.
        self.tile_rows, self.tile_cols, self.rows = *s.tiles, s.rows
        #: Rows and columns of the input: what lies behind them is not read.
        self.in_rows, self.in_cols = s.work.x.shape[2:]
        if self.own:
            number = dict(zip(sizes, rest[count:-1]))
            batch, _, *around = s.work.y.shape
            every = (batch, *around, *s.work.x.shape[2:])
            images, rows, columns, in_rows, in_cols = (there_are(e, n, number) for e, n in zip(self.own, every))
            # what a tile reads behind what is wanted of it is zero too: memory of other things may hold denormal numbers, which are slow
            top, left, _, _ = s.work.padding
            self.in_rows = T.bind(tirx.min(in_rows, rows + (s.work.kernel[0] - 1 - top)))
            self.in_cols = T.bind(tirx.min(in_cols, columns + (s.work.kernel[1] - 1 - left)))
            # at least one: TVM computes quotients by them ahead of the loops that are not entered where there is none
            self.tile_rows, self.tile_cols = (T.bind((tirx.max(n, 1) + (s.m - 1)) // s.m) for n in (rows, columns))
            self.rows = T.bind(images * self.tile_rows)
            if self.few:
                with T.If(images * rows * columns <= self.few):
                    with T.Then():
                        places = Places(images, rows, columns, self.in_rows, self.in_cols)
                        emit_few(s.work, self.epilogue, x, rest[operands], self.operands, self.y, places)
                    with T.Else():
                        self.blocks()
                return
        self.blocks()

    def blocks(self) -> None:
        """Emit the loop over blocks of tile rows."""
        s = self.s
        if self.own:
            # rows that are short are more to a block: each block reads all weights
            most = s.block_rows * s.tiles[1] // self.tile_cols
            if not self.split and is_parallel(s.blocks, self.machine, self.seconds[0]):
                each = tirx.truncdiv(self.rows - 1, self.machine.cores) + 1
                most = tirx.max(tirx.min(most, each), s.block_rows)
            blocks = tirx.truncdiv(self.rows - 1, most) + 1
            # in memory: TVM would write the quotients wherever the number is read
            number = T.alloc_buffer((1,), "int32")
            store(number, (0,), tirx.truncdiv(self.rows + (blocks - 1), blocks))
            self.block_rows = number[0]
        with T.serial(0, s.blocks) if self.split else parallel(s.blocks, self.machine, self.seconds[0]) as block:
            self.block(block)

    def block(self, block: Any) -> None:
        """Emit all of a block of tile rows."""
        s = self.s
        a, lanes = s.transform.a, s.lanes
        if self.own:  # whole blocks, as long as there are rows
            first = T.bind(block * self.block_rows)
            rows = T.bind(tirx.max(tirx.min(self.rows - first, self.block_rows), 0))
        else:
            first = block * s.rows // s.blocks
            rows = (block + 1) * s.rows // s.blocks - first if s.rows % s.blocks else s.block_rows
        #: Columns of V and M, and from one point of them to the next; what is wanted of them lies close together.
        self.columns, self.v_stride, self.m_stride = s.block_rows * s.tiles[1], s.v_stride, s.m_stride
        if self.own:
            self.columns = T.bind(tirx.max(rows * self.tile_cols, s.cols))
            self.v_stride = T.bind(s.ic_blocks * self.columns // 2 * 2 + 1)
            self.m_stride = T.bind(s.oc * self.columns // 2 * 2 + 1)
        v = T.alloc_buffer((a * a * s.v_stride, lanes), "float32")
        z_shape, m_shape = (a * (s.tiles[1] * s.m + 2), lanes), (a * a * s.m_stride, lanes)
        if not self.split:  # one scratch for all of the loop
            z, m = T.alloc_buffer(z_shape, "float32"), T.alloc_buffer(m_shape, "float32")
        with self.loop(s.ic_blocks, 0) as c:
            self.input(v, T.alloc_buffer(z_shape, "float32") if self.split else z, c, first, rows)
        with self.loop(len(s.groups), 1) as group:
            if self.split:
                m = T.alloc_buffer(m_shape, "float32")
            full, rest = divmod(s.oc_blocks, s.oc)
            if rest:
                with T.If(group < full):
                    with T.Then():
                        self.products(v, m, group, s.oc, rows)
                    with T.Else():
                        self.products(v, m, group, rest, rows)
            else:
                self.products(v, m, group, s.oc, rows)
            with T.serial(0, tirx.min(s.oc_blocks - group * s.oc, s.oc) if rest else s.oc) as n:
                self.output(m, n, group * s.oc + n, first, rows)

    def loop(self, extent: int, launch: int) -> Any:
        return parallel(extent, self.machine, self.seconds[launch]) if self.split else T.serial(0, extent)

    # -- input ---------------------------------------------------------------------------------------------------------

    def input(self, v: Any, z: Any, c: Any, first: Any, rows: Any) -> None:
        """Emit V of a block of input channels: Z = B^T d for all columns of a row of tiles, then V = Z B."""
        s, work, t = self.s, self.s.work, self.s.transform
        left, tile_cols = work.padding[1], self.tile_cols
        z_width = s.tiles[1] * s.m + 2
        # columns that there are, as far as tiles reach, and those that are zero
        there, reached = self.in_cols, z_width
        if self.own:
            reached = tile_cols * s.m + 2
            there = tirx.min(there, reached - left)
        for begin, end in ((0, left), (left + there, reached)):
            if self.own or begin < end:
                with T.grid(t.a, end - begin) as (i, q), T.vectorized(0, s.lanes) as e:
                    store(z, (i * z_width + begin + q, e), tirx.const(0, "float32"))
        if self.own:
            count = rows * tile_cols
            with T.serial(0, self.reached(count) - count) as k, T.serial(0, t.a * t.a) as at, T.vectorized(0, s.lanes) as e:
                store(v, (at * self.v_stride + c * self.columns + count + k, e), tirx.const(0, "float32"))
        with T.serial(0, rows) as r:
            image, h = self.row_of(first + r)
            if self.own:
                top = h * s.m - work.padding[0]
                with T.If(tirx.all(top >= 0, top + t.a <= self.in_rows)):
                    with T.Then():
                        self.rows_of(z, z_width, image, c, h, there, True)
                    with T.Else():
                        self.rows_of(z, z_width, image, c, h, there, False)
            else:
                self.rows_of(z, z_width, image, c, h, there, False)
            with T.serial(0, tile_cols) as w, T.serial(0, t.a) as i:
                d = T.alloc_buffer((t.a, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for j in range(t.a):
                        store(d, (j, e), z[i * z_width + w * s.m + j, e])
                    for j, value in enumerate(t.input(_rows(d, e))):
                        store(v, ((i * t.a + j) * self.v_stride + c * self.columns + r * tile_cols + w, e), value)

    def rows_of(self, z: Any, z_width: int, image: Any, c: Any, h: Any, there: Any, inside: bool) -> None:
        """Emit Z of a row of tiles, all of whose rows may be known to be ``inside`` of the input."""
        s, work, t = self.s, self.s.work, self.s.transform
        top, left = work.padding[:2]
        with T.serial(0, there) as q:
            d = T.alloc_buffer((t.a, s.lanes), "float32")
            for i in range(t.a):
                row = h * s.m - top + i
                always = not self.own and i >= top and (s.tiles[0] - 1) * s.m - top + i < work.x.shape[2]  # whatever the tile
                if inside or always:
                    with T.vectorized(0, s.lanes) as e:
                        store(d, (i, e), read(self.x, work.x, (image, c, row, q, e)))
                    continue
                # a branch: a Select would read the row before it knows
                with T.If(tirx.all(row >= 0, row < self.in_rows)):
                    with T.Then(), T.vectorized(0, s.lanes) as e:
                        store(d, (i, e), read(self.x, work.x, (image, c, row, q, e)))
                    with T.Else(), T.vectorized(0, s.lanes) as e:
                        store(d, (i, e), tirx.const(0, "float32"))
            with T.vectorized(0, s.lanes) as e:
                for i, value in enumerate(t.input(_rows(d, e))):
                    store(z, (i * z_width + left + q, e), value)

    def row_of(self, row: Any) -> tuple[Any, Any]:
        """Return the image of a row of tiles, and the row in it."""
        if self.s.work.y.shape[0] == 1:
            return 0, row
        return row // self.tile_rows, row % self.tile_rows

    # -- products ------------------------------------------------------------------------------------------------------

    def products(self, v: Any, m: Any, group: Any, blocks: int, rows: Any) -> None:
        """Emit the products of a group of ``blocks`` output blocks."""
        s, a = self.s, self.s.transform.a
        count = rows * self.tile_cols
        with T.serial(0, a * a) as x:
            u_begin = (group * s.oc * a * a + x * blocks) * s.ci
            if not self.own:
                with T.serial(0, (count + s.cols - 1) // s.cols) as j:
                    # the last tile of columns overlaps the one before
                    self.tile(v, m, x, tirx.min(j * s.cols, count - s.cols), u_begin, blocks, s.cols)
                return
            narrow, full = self.narrow, self.whole_tiles(count)
            # the last one of each kind may overlap the one before, or read zeros and write what nobody looks at
            with T.serial(0, full) as j:
                self.tile(v, m, x, tirx.min(j * s.cols, tirx.max(count - s.cols, 0)), u_begin, blocks, s.cols)
            with T.serial(0, (tirx.max(count - full * s.cols, 0) + narrow - 1) // narrow) as j:
                self.tile(v, m, x, tirx.min(full * s.cols + j * narrow, tirx.max(count - narrow, 0)), u_begin, blocks, narrow)

    @property
    def narrow(self) -> int:
        """Columns of the tiles of products that compute what is left behind whole ones."""
        return -(-self.s.cols // 4)

    def whole_tiles(self, count: Any) -> Any:
        """Return how many whole tiles there are of ``count`` columns.

        What is left is a few narrow ones, or one whole that overlaps the one before: little code and waste.
        """
        few = (self.s.cols // self.narrow - 1) * self.narrow
        return (count + self.s.cols - 1 - few) // self.s.cols

    def reached(self, count: Any) -> Any:
        """Return up to which column products read where ``count`` are wanted."""
        whole = tirx.max(self.whole_tiles(count) * self.s.cols, self.narrow)
        return tirx.max(count, tirx.min(whole, self.s.cols))

    def tile(self, v: Any, m: Any, x: Any, begin: Any, u_begin: Any, blocks: int, cols: int) -> None:
        """Emit M[x, all ``blocks``, ``cols`` tiles from ``begin``]."""
        s = self.s
        per_buffer = 512 // (4 * s.lanes)
        #: Sums of each cell: additions of a tile of few would wait for each other.
        apart = max(1, min(4, _IN_FLIGHT // (blocks * cols)))
        # a broadcast V is used up before the next
        cells = [(n, j, k) for k in range(apart) for j in range(cols) for n in range(blocks)]
        buffers = [T.alloc_buffer((min(per_buffer, len(cells) - at), s.lanes), "float32") for at in range(0, len(cells), per_buffer)]
        place = {cell: (buffers[k // per_buffer], k % per_buffer) for k, cell in enumerate(cells)}
        for buffer, k in place.values():
            with T.vectorized(0, s.lanes) as e:
                store(buffer, (k, e), tirx.const(0, "float32"))

        def step(c: Any, lane: Any, which: int) -> None:
            for n, j, part in cells:
                if part != which:
                    continue
                buffer, k = place[n, j, part]
                with T.vectorized(0, s.lanes) as e:
                    product = (
                        v[x * self.v_stride + c * self.columns + begin + j, lane] * self.u[u_begin + (c * s.lanes + lane) * blocks + n, e]
                    )
                    store(buffer, (k, e), buffer[k, e] + product)

        full, rest = divmod(s.ci, s.lanes)
        if full:
            with T.serial(0, full) as c, T.serial(0, s.lanes // 4) as lane_4:
                for lane in range(4):
                    step(c, lane_4 * 4 + lane, lane % apart)
        if rest:
            with T.serial(0, rest) as lane:
                step(full, lane, 0)
        for n, j, part in cells:
            if part:
                continue
            sums = [place[n, j, k] for k in range(apart)]
            with T.vectorized(0, s.lanes) as e:
                total = functools.reduce(operator.add, (buffer[k, e] for buffer, k in sums))
                store(m, (x * self.m_stride + n * self.columns + begin + j, e), total)

    # -- output --------------------------------------------------------------------------------------------------------

    def output(self, m: Any, n: Any, block: Any, first: Any, rows: Any) -> None:
        """Emit Y = epilogue(A^T M A) of an output block, the ``n``-th of its group."""
        s, t = self.s, self.s.transform
        height, width = s.work.y.shape[2:]
        with T.serial(0, rows) as r, T.serial(0, self.tile_cols) as w:
            image, h = self.row_of(first + r)
            half = [T.alloc_buffer((t.a, s.lanes), "float32") for _ in range(t.m)]
            for j in range(t.a):
                d = T.alloc_buffer((t.a, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for i in range(t.a):
                        store(d, (i, e), m[(i * t.a + j) * self.m_stride + n * self.columns + r * self.tile_cols + w, e])
                    for i, value in enumerate(t.output(_rows(d, e))):
                        store(half[i], (j, e), value)
            for i in range(t.m):
                result = T.alloc_buffer((t.m, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for j, value in enumerate(t.output(_rows(half[i], e))):
                        store(result, (j, e), value)
                for j in range(t.m):
                    row, column = h * t.m + i, w * t.m + j
                    guards = []
                    if (s.tiles[0] - 1) * t.m + i >= height:
                        guards.append(row < height)
                    if (s.tiles[1] - 1) * t.m + j >= width:
                        guards.append(column < width)
                    with guarded(guards), T.vectorized(0, s.lanes) as e:
                        index = (image, block, row, column)
                        write(self.y, s.work.y, (*index, e), finish(self.epilogue, self.operands, s.work.y, result[j, e], index, e))


def _rows(buffer: Any, lane: Any) -> Callable[[int], Any]:
    return lambda row: buffer[row, lane]
