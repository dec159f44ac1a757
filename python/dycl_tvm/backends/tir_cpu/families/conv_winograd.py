# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Winograd convolutions: 3x3, stride 1, packed input and output, F(2x2,3x3) and F(4x4,3x3).

An output tile of m x m comes of an input tile of a x a, a = m + 2, by Y = A^T [(G g G^T) * (B^T d B)] A (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", 2016): a * a multiplications in place of 9 m * m, 2.25 times fewer for m = 2 and 4 times
for m = 4. The sum over input channels makes the products a batch of a * a matrix products. The points of F(4,3) are
0, +-sqrt(1/2), +-sqrt(2) and infinity: their error is a quarter of that of the usual 0, +-1, +-2 (symmetric reciprocal points: Alam
et al., "Winograd Convolution for Deep Neural Networks: Efficient Point Selection", 2022), at the same number of operations.

Accuracy, max error / max abs output against float64: F(2,3) stays below 2e-6, F(4,3) below 8e-6, for up to 512 channels of normally
distributed values (tested; 3e-7 and 1.5e-6 are usual, 3e-7 for direct convolutions). "strict" allows no F(4,3).

The loops, for a block of tile rows at a time (its V stays in the second level cache)::

    V[x, ic] = B^T d B                            rows first, columns second
    for each group of oc blocks:
        M[x] = sum over ic of U[group, x, ic] * V[x, ic]    register tiles of oc blocks x cols tiles
        Y[group] = epilogue(A^T M A)

Either the blocks run in parallel (``split`` 0), each with scratch of its own, or the input channels and then the groups of one block do
(``split`` 1): then a thread reads only its part of the weights, which is what matters where there are more weights than pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.loops import epilogue_buffers, finish, is_parallel, parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.machine import Machine
from dycl_tvm.backends.tir_cpu.workload import NOTHING, Accuracy, Conv2D, Epilogue, Plan
from dycl_tvm.errors import UsageError

_Vectors = Callable[[int], Any]


@dataclass(frozen=True)
class _Transform:
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


_TRANSFORMS = {
    2: _Transform(2, ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)), _input_2, _output_2),
    4: _Transform(4, _g((0.0, _P, -_P, _Q, -_Q)), _input_4, _output_4),
}


@dataclass(frozen=True)
class _Shape:
    """All sizes of a kernel."""

    work: Conv2D
    m: int
    oc: int
    cols: int
    blocks: int
    lanes: int

    @staticmethod
    def of(work: Conv2D, plan: Plan, machine: Machine) -> _Shape:
        s = _Shape(work, plan["m"], plan["oc"], plan["cols"], plan["blocks"], machine.lanes)
        fits = s.m in _TRANSFORMS and 1 <= s.oc <= s.oc_blocks and 1 <= s.blocks <= s.rows
        if not fits or not 1 <= s.cols <= s.rows // s.blocks * s.tiles[1]:
            raise UsageError(f"This plan of the family winograd does not fit {work.x.shape} -> {work.y.shape}: {dict(plan.params)}")
        return s

    @property
    def transform(self) -> _Transform:
        return _TRANSFORMS[self.m]

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


class _Kernel:
    """Emits the loops of one kernel."""

    def __init__(self, s: _Shape, machine: Machine, epilogue: Epilogue, split: int) -> None:
        self.s, self.machine, self.epilogue, self.split = s, machine, epilogue, split
        self.launches = _launches(s, split, _work(s, machine))

    def emit(self, x: Any, u: Any, *rest: Any) -> None:
        s = self.s
        self.x, self.u, self.operands, self.y = x, u, rest[:-1], rest[-1]
        with T.serial(0, s.blocks) if self.split else parallel(s.blocks, self.machine, self.launches[0][1]) as block:
            self.block(block)

    def block(self, block: Any) -> None:
        """Emit all of a block of tile rows."""
        s = self.s
        a, lanes = s.transform.a, s.lanes
        first = block * s.rows // s.blocks
        rows = (block + 1) * s.rows // s.blocks - first if s.rows % s.blocks else s.block_rows
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
            if full and rest:
                with T.If(group < full):
                    with T.Then():
                        self.group(v, m, group, s.oc, first, rows)
                    with T.Else():
                        self.group(v, m, group, rest, first, rows)
            else:
                self.group(v, m, group, s.groups[0], first, rows)

    def loop(self, extent: int, launch: int) -> Any:
        return parallel(extent, self.machine, self.launches[launch][1]) if self.split else T.serial(0, extent)

    # -- input ---------------------------------------------------------------------------------------------------------

    def input(self, v: Any, z: Any, c: Any, first: Any, rows: Any) -> None:
        """Emit V of a block of input channels: Z = B^T d for all columns of a row of tiles, then V = Z B."""
        s, work, t = self.s, self.s.work, self.s.transform
        height, width = work.x.shape[2:]
        top, left = work.padding[:2]
        tile_rows, tile_cols = s.tiles
        z_width = tile_cols * s.m + 2
        for begin, end in ((0, left), (left + width, z_width)):  # columns of the padding
            if begin < end:
                with T.grid(t.a, end - begin) as (i, q), T.vectorized(0, s.lanes) as e:
                    store(z, (i * z_width + begin + q, e), tirx.const(0, "float32"))
        with T.serial(0, rows) as r:
            image, h = self.row_of(first + r)
            with T.serial(0, width) as q:
                d = T.alloc_buffer((t.a, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for i in range(t.a):
                        row = h * s.m - top + i
                        outside = i < top or (tile_rows - 1) * s.m - top + i >= height  # of any tile
                        inside = tirx.max(tirx.min(row, height - 1), 0) if outside else row
                        value = self.x[image, c, inside, q, e]
                        if outside:
                            value = tirx.Select(tirx.all(row >= 0, row < height), value, tirx.const(0, "float32"))
                        store(d, (i, e), value)
                    for i, value in enumerate(t.input(lambda i: d[i, e])):
                        store(z, (i * z_width + left + q, e), value)
            with T.serial(0, tile_cols) as w:
                for i in range(t.a):
                    d = T.alloc_buffer((t.a, s.lanes), "float32")
                    with T.vectorized(0, s.lanes) as e:
                        for j in range(t.a):
                            store(d, (j, e), z[i * z_width + w * s.m + j, e])
                        for j, value in enumerate(t.input(lambda j: d[j, e])):
                            store(v, ((i * t.a + j) * s.v_stride + c * (s.block_rows * tile_cols) + r * tile_cols + w, e), value)

    def row_of(self, row: Any) -> tuple[Any, Any]:
        """Return the image of a row of tiles, and the row in it."""
        if self.s.work.y.shape[0] == 1:
            return 0, row
        return row // self.s.tiles[0], row % self.s.tiles[0]

    # -- products ------------------------------------------------------------------------------------------------------

    def group(self, v: Any, m: Any, group: Any, blocks: int, first: Any, rows: Any) -> None:
        """Emit the products of a group of ``blocks`` output blocks, and their output."""
        s, a = self.s, self.s.transform.a
        count = rows * s.tiles[1]
        with T.serial(0, a * a) as x:
            with T.serial(0, (count + s.cols - 1) // s.cols) as j:
                # the last tile of columns overlaps the one before
                self.tile(v, m, x, tirx.min(j * s.cols, count - s.cols), (group * s.oc * a * a + x * blocks) * s.ci, blocks)
        with T.serial(0, blocks) as n:
            self.output(m, n, group * s.oc + n, first, rows)

    def tile(self, v: Any, m: Any, x: Any, begin: Any, u_begin: Any, blocks: int) -> None:
        """Emit M[x, all ``blocks``, ``cols`` tiles from ``begin``]."""
        s = self.s
        per_buffer = 512 // (4 * s.lanes)
        cells = [(n, j) for j in range(s.cols) for n in range(blocks)]  # a broadcast V is used up before the next
        buffers = [
            T.alloc_buffer((min(per_buffer, len(cells) - at), s.lanes), "float32") for at in range(0, len(cells), per_buffer)
        ]
        place = {cell: (buffers[k // per_buffer], k % per_buffer) for k, cell in enumerate(cells)}
        for buffer, k in place.values():
            with T.vectorized(0, s.lanes) as e:
                store(buffer, (k, e), tirx.const(0, "float32"))
        columns = s.block_rows * s.tiles[1]

        def step(c: Any, lane: Any) -> None:
            for n, j in cells:
                buffer, k = place[n, j]
                with T.vectorized(0, s.lanes) as e:
                    product = v[x * s.v_stride + c * columns + begin + j, lane] * self.u[u_begin + (c * s.lanes + lane) * blocks + n, e]
                    store(buffer, (k, e), buffer[k, e] + product)

        full, rest = divmod(s.ci, s.lanes)
        if full:
            with T.serial(0, full) as c, T.serial(0, s.lanes // 4) as lane_4:
                for lane in range(4):
                    step(c, lane_4 * 4 + lane)
        if rest:
            with T.serial(0, rest) as lane:
                step(full, lane)
        for n, j in cells:
            buffer, k = place[n, j]
            with T.vectorized(0, s.lanes) as e:
                store(m, (x * s.m_stride + n * columns + begin + j, e), buffer[k, e])

    # -- output --------------------------------------------------------------------------------------------------------

    def output(self, m: Any, n: Any, block: Any, first: Any, rows: Any) -> None:
        """Emit Y = epilogue(A^T M A) of an output block, the ``n``-th of its group."""
        s, t = self.s, self.s.transform
        height, width = s.work.y.shape[2:]
        columns = s.block_rows * s.tiles[1]
        with T.serial(0, rows) as r, T.serial(0, s.tiles[1]) as w:
            image, h = self.row_of(first + r)
            half = [T.alloc_buffer((t.a, s.lanes), "float32") for _ in range(t.m)]
            for j in range(t.a):
                d = T.alloc_buffer((t.a, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for i in range(t.a):
                        store(d, (i, e), m[(i * t.a + j) * s.m_stride + n * columns + r * s.tiles[1] + w, e])
                    for i, value in enumerate(t.output(lambda i: d[i, e])):
                        store(half[i], (j, e), value)
            for i in range(t.m):
                result = T.alloc_buffer((t.m, s.lanes), "float32")
                with T.vectorized(0, s.lanes) as e:
                    for j, value in enumerate(t.output(lambda j: half[i][j, e])):
                        store(result, (j, e), value)
                for j in range(t.m):
                    row, column = h * t.m + i, w * t.m + j
                    guards = []
                    if (s.tiles[0] - 1) * t.m + i >= height:
                        guards.append(row < height)
                    if (s.tiles[1] - 1) * t.m + j >= width:
                        guards.append(column < width)
                    with _guarded(guards), T.vectorized(0, s.lanes) as e:
                        index = (image, block, row, column)
                        store(self.y, (*index, e), finish(self.epilogue, self.operands, s.work.y, result[j, e], index, e))


class _guarded:
    """``if all(conditions)``; nothing without conditions."""

    def __init__(self, conditions: Sequence[Any]) -> None:
        self.frames = [T.If(tirx.all(*conditions) if len(conditions) > 1 else conditions[0]), T.Then()] if conditions else []

    def __enter__(self) -> None:
        for frame in self.frames:
            frame.__enter__()

    def __exit__(self, *error: Any) -> None:
        for frame in reversed(self.frames):
            frame.__exit__(*error)


class _ConvWinograd:
    """The family; see families/__init__.py."""

    name = "winograd"

    def plans(self, work: Conv2D, machine: Machine, accuracy: Accuracy = "default") -> list[Plan]:
        """Return the plans for a convolution, best estimate first; [] if the family does not take it."""
        if not _takes(work, machine):
            return []
        found: dict[tuple[int, ...], Plan] = {}
        for m in (2,) if accuracy == "strict" else (2, 4):
            for oc, cols, blocks, split in _candidates(work, machine, m):
                params = (("m", m), ("oc", oc), ("cols", cols), ("blocks", blocks), ("split", split))
                plan = Plan(self.name, params, _seconds(_Shape(work, m, oc, cols, blocks, machine.lanes), split, machine))
                way = (m, blocks, split)
                if way not in found or plan.seconds < found[way].seconds:
                    found[way] = plan  # register tiles that differ a little would crowd out what differs much
        ranked = sorted(found.values(), key=lambda plan: plan.seconds)
        return sorted((p for m in (2, 4) for p in [q for q in ranked if q["m"] == m][:6]), key=lambda plan: plan.seconds)

    def kernel(self, work: Conv2D, plan: Plan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, y)."""
        s = _Shape.of(work, plan, machine)
        kernel = _Kernel(s, machine, epilogue, plan["split"])
        return prim_func(
            [
                ("x", work.x.physical, "float32"),
                ("u", self.packed_shape(work, plan, machine), "float32"),
                *epilogue_buffers(epilogue),
                ("y", work.y.physical, "float32"),
            ],
            kernel.emit,
        )

    def packed_shape(self, work: Conv2D, plan: Plan, machine: Machine) -> tuple[int, int]:
        """Vectors in the order in which they are used, [group, x, input channel, output block of the group], and their lanes."""
        s = _Shape.of(work, plan, machine)
        return s.oc_blocks * s.transform.a**2 * s.ci, s.lanes

    def pack(self, work: Conv2D, plan: Plan, machine: Machine) -> Any:
        """Return the PrimFunc (weights, packed weights): U = G g G^T, computed in float64."""
        s = _Shape.of(work, plan, machine)
        t, a = s.transform, s.transform.a
        co = work.y.shape[1]

        def body(w: Any, u: Any) -> None:
            with T.serial(0, s.oc_blocks) as block, T.serial(0, s.ci) as c, T.serial(0, s.lanes) as e:
                o = block * s.lanes + e
                half = T.alloc_buffer((a * 3,), "float64")
                inside = o < co if co % s.lanes else True
                for i in range(a):
                    for q in range(3):
                        terms = [_term(t.g[i][p], w[tirx.min(o, co - 1), c, p, q].astype("float64")) for p in range(3)]
                        store(half, (i * 3 + q,), _sum(terms))
                group = block // s.oc
                blocks = tirx.min(s.oc_blocks - group * s.oc, s.oc)
                for i in range(a):
                    for j in range(a):
                        at = group * s.oc * (a * a * s.ci) + ((i * a + j) * s.ci + c) * blocks + block % s.oc
                        value = _sum([_term(t.g[j][q], half[i * 3 + q]) for q in range(3)]).astype("float32")
                        zero = tirx.const(0, "float32")
                        store(u, (at, e), value if inside is True else tirx.Select(inside, value, zero))

        return prim_func([("w", work.weight_shape, "float32"), ("u", self.packed_shape(work, plan, machine), "float32")], body)


FAMILY = _ConvWinograd()


def _term(factor: float, value: Any) -> Any:
    return None if factor == 0 else tirx.const(factor, "float64") * value


def _sum(terms: Sequence[Any]) -> Any:
    some = [t for t in terms if t is not None]
    return sum(some[1:], some[0])


def _takes(work: Conv2D, machine: Machine) -> bool:
    return (
        work.kernel == (3, 3)
        and work.stride == (1, 1)
        and work.dilation == (1, 1)
        and work.groups == 1
        and work.x.block == work.y.block == machine.lanes
        and work.x.dtype == work.y.dtype == "float32"
        and min(work.y.shape) > 0
    )


def _candidates(work: Conv2D, machine: Machine, m: int) -> list[tuple[int, int, int, int]]:
    """Return (oc, cols, blocks, split) worth an estimate."""
    shape = _Shape(work, m, 1, 1, 1, machine.lanes)
    found = []
    blocks = sorted({min(shape.rows, b) for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, shape.rows)})
    most = 12 if machine.registers == 16 else 20  # accumulators: with more, LLVM spills, or needs longer for no gain
    for oc in range(1, min(shape.oc_blocks, 3 if machine.registers == 16 else 4) + 1):
        for b in blocks:
            count = shape.rows // b * shape.tiles[1]
            for cols in range(1, min(most // oc, count) + 1):
                found += [(oc, cols, b, split) for split in ((0, 1) if b <= 4 else (0,))]
    return found


#: Instructions of the transforms of a tile of a block of channels, in units of a multiply-add: input and output are alike (measured).
_TRANSFORM_COST = {2: 26.0, 4: 110.0}


@dataclass(frozen=True)
class _Work:
    """Seconds of one core for all of a kernel: input transform, products and output transform, streaming of weights."""

    input: float
    output: float
    stream: float

    @property
    def seconds(self) -> float:
        compute = self.input + self.output
        return max(compute, self.stream) + 0.25 * min(compute, self.stream)  # hardware prefetches, but not perfectly


def _work(s: _Shape, machine: Machine) -> _Work:
    multiply_add = 2e-9 * s.lanes / machine.gflops
    latency = 8 if machine.vector_bytes < 64 else 4  # multiply-adds in flight that a core needs
    products = 0.0
    for b in range(s.blocks):
        count = ((b + 1) * s.rows // s.blocks - b * s.rows // s.blocks) * s.tiles[1]
        for n in s.groups:
            # loads keep up with multiply-adds as long as they are no more
            step = max(n * s.cols, n + s.cols, latency)
            products += s.transform.a**2 * -(-count // s.cols) * (s.ci * step + 2 * n * s.cols + 12)
    transform = _TRANSFORM_COST[s.m] * s.rows * s.tiles[1]
    weights = 4.0 * s.oc_blocks * s.lanes * s.transform.a**2 * s.ci
    scratch = 4.0 * s.lanes * s.transform.a**2 * s.v_stride
    missed = min(1.0, max(0.0, 2 * weights / machine.l3 - 1.5))  # of the last level cache
    rate = 1e9 * machine.bandwidth * (_CACHED if weights + scratch > 0.75 * machine.l2 else 4 * _CACHED)
    stream = s.blocks * weights * ((1 - missed) / rate + missed / (1e9 * machine.bandwidth))
    return _Work(
        transform * s.ic_blocks * multiply_add, (1.07 * products + transform * s.oc_blocks) * multiply_add + 3e-7 * s.blocks, stream
    )


#: Speed of the last level cache, in units of the memory's.
_CACHED = 7.0


def _launches(s: _Shape, split: int, work: _Work) -> list[tuple[int, float]]:
    """Return what the kernel launches: pieces, and seconds of all of them on one core. A split kernel does that for each block."""
    if not split:
        return [(s.blocks, work.seconds)]
    return [(s.ic_blocks, work.input / s.blocks), (len(s.groups), (work.seconds - work.input) / s.blocks)]


def _seconds(s: _Shape, split: int, machine: Machine) -> float:
    """Estimate the seconds of a kernel with all cores."""
    total = 0.0
    for pieces, seconds in _launches(s, split, _work(s, machine)):
        if is_parallel(pieces, machine, seconds):
            seconds = seconds / pieces * -(-pieces // machine.cores) + machine.launch
        total += seconds * (s.blocks if split else 1)
    return total
