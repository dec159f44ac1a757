# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions as an implicit matrix product: tiles of the image and of the weights in shared memory, tiles of the result in registers.

A block of threads computes a patch of rows and columns for some filters. It goes through the channels in steps; in each it copies
the part of the padded image that the patch needs (every element once, for all taps of the filter) and the weights of these
channels. A thread computes ``filters x rows`` results: so many products for ``filters + rows`` loads from shared memory. What follows
the convolution (bias, activation, residual) is computed from the registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from dycl_tvm.backends.tir_cuda.blocks import bind_fused, divisors, threads_for
from dycl_tvm.backends.tir_cuda.cost import Tiled, adding_up, cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of


@dataclass(frozen=True)
class Shape:
    """A convolution: batch, filters, rows and columns of the result, channels, taps, and how far the image goes for them."""

    n: int
    f: int
    y: int
    x: int
    c: int
    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def patch(self, rows: int, columns: int) -> int:
        """Return how many elements of a channel a patch of the result needs."""
        high = (rows - 1) * self.stride[0] + (self.r - 1) * self.dilation[0] + 1
        wide = (columns - 1) * self.stride[1] + (self.s - 1) * self.dilation[1] + 1
        return high * wide


@dataclass(frozen=True)
class Tile:
    """How the work is cut: threads over columns, rows and filters, results of a thread, channels of a step.

    With ``parts`` > 1 the channels are split among so many blocks, and a second launch adds their results up.
    """

    columns: int
    row_threads: int
    row_results: int
    filter_threads: int
    filter_results: int
    channels: int
    parts: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.columns * self.row_threads * self.filter_threads

    @property
    def rows(self) -> int:
        """Rows of a patch."""
        return self.row_threads * self.row_results

    @property
    def filters(self) -> int:
        """Filters of a block."""
        return self.filter_threads * self.filter_results


def tiles(shape: Shape, gpu: Gpu) -> Iterator[Tile]:
    """Yield the tiles that divide a convolution evenly and fit a GPU."""
    columns = [d for d in divisors(shape.x) if d <= 32 and (d >= 4 or d == shape.x)] or [1]
    for px, ty, ry in itertools.product(columns, divisors(shape.y), (1, 2, 4, 8)):
        if shape.y % (ty * ry) or px * ty > 256:
            continue
        for tf, rf in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8)):
            tile = Tile(px, ty, ry, tf, rf, 1)
            if shape.f % (tf * rf) or not gpu.warp <= tile.threads <= 512 or ry * rf > 32:
                continue
            for channels in divisors(shape.c):
                elements = channels * (shape.patch(tile.rows, px) + tile.filters * shape.r * shape.s)
                if channels <= 32 and elements * 4 <= gpu.shared_bytes // 2:
                    for parts in (1, 2, 4, 8, 16):
                        if shape.c % (channels * parts) == 0:
                            yield Tile(px, ty, ry, tf, rf, channels, parts)


def cost(shape: Shape, tile: Tile, gpu: Gpu) -> float:
    """Return an estimate of the cycles of a convolution with a tile."""
    taps = shape.r * shape.s
    kernel = Tiled(
        blocks=tile.parts * shape.n * (shape.f // tile.filters) * (shape.y // tile.rows) * (shape.x // tile.columns),
        threads=tile.threads,
        steps=shape.c // tile.channels // tile.parts,
        elements=tile.channels * (shape.patch(tile.rows, tile.columns) + tile.filters * taps),
        rows=tile.row_results,
        columns=tile.filter_results,
        terms=shape.c * taps // tile.parts,
    )
    return cycles(kernel, gpu) + adding_up(tile.parts, shape.n * shape.f * shape.y * shape.x, gpu)


def choose(shape: Shape, gpu: Gpu) -> Tile | None:
    """Return the tile of the lowest cost; of equal ones the first."""
    return min(tiles(shape, gpu), key=lambda tile: cost(shape, tile, gpu), default=None)


def convolution(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a convolution in two dimensions without groups, with what stands before and after it."""
    schedule = s_tir.Schedule(fn)
    # not in the normal form of the other rules, which drops axes of length one
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    kinds = [_kind(schedule.get(block)) for block in blocks]
    main = [k for k, kind in enumerate(kinds) if kind == "SSSSRRR"]
    if len(main) != 1 or any("S" * len(kind) != kind for k, kind in enumerate(kinds) if k != main[0]):
        return None
    conv = blocks[main[0]]
    shape = _shape(schedule.get(conv))
    if shape is None:
        return None
    tile = choose(shape, gpu_of(target))
    if tile is None:
        return None
    partial = None
    if tile.parts > 1:
        parts, _ = schedule.split(schedule.get_loops(conv)[4], [tile.parts, None])
        partial = schedule.rfactor(parts, 0)
    last = _epilogue(schedule, conv, blocks[main[0] + 1 :])
    if partial is not None:
        _add_up(schedule, conv, last, gpu_of(target))
        conv, last = partial, schedule.cache_write(partial, 0, "local")
    _apply(schedule, conv, last, blocks[: main[0]], tile)
    return schedule.mod["main"]


def _kind(block: Any) -> str:
    """Return a letter for each axis: S for those of the result, R for those that are added up."""
    return "".join("S" if int(v.iter_type) == tirx.IterVar.DataPar else "R" for v in block.iter_vars)


def _shape(block: Any) -> Shape | None:
    """Read a convolution's shape off its block; None where it is another kind of reduction."""
    n, f, y, x, c, r, s = (v.var for v in block.iter_vars)
    if len(block.reads) != 2:
        return None
    image, weights = block.reads[0].region, block.reads[1].region
    if len(image) != 4 or len(weights) != 4:
        return None
    if not all(w.min.same_as(v) for w, v in zip(weights, (f, c, r, s))) or not (image[0].min.same_as(n) and image[1].min.same_as(c)):
        return None
    rows, columns = _step(image[2].min, y, r), _step(image[3].min, x, s)
    if rows is None or columns is None:
        return None
    sn, sf, sy, sx, sc, sr, ss = (int(v.dom.extent) for v in block.iter_vars)
    return Shape(sn, sf, sy, sx, sc, sr, ss, (rows[0], columns[0]), (rows[1], columns[1]))


def _step(index: Any, out: Any, tap: Any) -> tuple[int, int] | None:
    """Return (a, b) where an index is ``out * a + tap * b``."""

    found = [int(c) if isinstance(c, tirx.IntImm) else None for c in tvm.sym.detect_linear_equation(index, [out, tap])]
    if len(found) != 3 or found[0] is None or found[1] is None or found[2] != 0:
        return None
    return found[0], found[1]


def _epilogue(schedule: Any, conv: Any, after: list[Any]) -> Any:
    """Make one block of what follows the convolution; where nothing does, the block that copies the result out."""
    while len(after) > 1:
        schedule.compute_inline(after[0])
        after = after[1:]
    if not after:
        return schedule.cache_write(conv, 0, "local")
    schedule.set_scope(conv, 0, "local")
    return after[0]


def _add_up(schedule: Any, parts: Any, last: Any, gpu: Gpu) -> None:
    """Let a thread add up the parts of each result and compute what follows."""
    loops = schedule.get_loops(last)
    elements = math.prod(int(schedule.get(loop).extent) for loop in loops)
    threads = bind_fused(schedule, loops, threads_for(elements, gpu.multiprocessors))
    schedule.compute_at(parts, threads, preserve_unit_loops=True)
    around = len(schedule.get_loops(last))
    schedule.decompose_reduction(parts, schedule.get_loops(parts)[around])


def _apply(schedule: Any, conv: Any, last: Any, before: list[Any], tile: Tile) -> None:
    image = schedule.cache_read(conv, 0, "shared")
    weights = schedule.cache_read(conv, 1, "shared")
    for block in before:  # padding and other element-wise work on the image goes into the copy
        schedule.compute_inline(block)
    *outer, f, y, x = schedule.get_loops(last)  # the batch, and the parts before it
    n = schedule.fuse(*outer)
    bf, tf, rf = schedule.split(f, [None, tile.filter_threads, tile.filter_results])
    by, ty, ry = schedule.split(y, [None, tile.row_threads, tile.row_results])
    bx, tx = schedule.split(x, [None, tile.columns])
    schedule.reorder(n, bf, by, bx, tf, ty, tx, rf, ry)
    schedule.bind(n, "blockIdx.z")
    schedule.bind(bf, "blockIdx.y")
    schedule.bind(schedule.fuse(by, bx), "blockIdx.x")
    schedule.bind(tf, "threadIdx.y")
    threads = schedule.fuse(ty, tx)
    schedule.bind(threads, "threadIdx.x")
    schedule.unroll(rf)
    schedule.unroll(ry)
    schedule.compute_at(conv, threads, preserve_unit_loops=True)
    _, filters, rows, columns, c, r, s = schedule.get_loops(conv)[-7:]
    steps, channels = schedule.split(c, [None, tile.channels])
    schedule.reorder(steps, channels, r, s, filters, rows, columns)
    schedule.unroll(filters)
    schedule.unroll(rows)
    for copy in (image, weights):
        schedule.compute_at(copy, steps, preserve_unit_loops=True)
        around = len(schedule.get_loops(conv)) - 6  # the loops outside of and with the steps
        loops = schedule.get_loops(copy)[around:]
        _, fy, fx = schedule.split(schedule.fuse(*loops), [None, tile.filter_threads, tile.row_threads * tile.columns])
        schedule.bind(fy, "threadIdx.y")
        schedule.bind(fx, "threadIdx.x")
    schedule.decompose_reduction(conv, steps)
