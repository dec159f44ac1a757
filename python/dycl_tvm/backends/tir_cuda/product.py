# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of matrices: tiles of both in shared memory, a tile of the result in the registers of each thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from dycl_tvm.backends.tir_cuda.blocks import divisors, single_reduction
from dycl_tvm.backends.tir_cuda.cost import Tiled, cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of


@dataclass(frozen=True)
class Tile:
    """Threads over rows and columns, the rows and columns that a thread computes, and the terms of a step."""

    row_threads: int
    row_results: int
    column_threads: int
    column_results: int
    terms: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.row_threads * self.row_results

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.column_threads * self.column_results

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.column_threads


def tiles(m: int, n: int, k: int, gpu: Gpu) -> Iterator[Tile]:
    """Yield the tiles that divide an ``m x n`` product of ``k`` terms evenly and fit a GPU."""
    for ty, ry, tx, rx in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8), (4, 8, 16, 32), (1, 2, 4)):
        if m % (ty * ry) or n % (tx * rx) or not gpu.warp <= ty * tx <= 256:
            continue
        for terms in divisors(k):
            if 4 <= terms <= 64 and terms * (ty * ry + tx * rx) * 4 <= gpu.shared_bytes // 2:
                yield Tile(ty, ry, tx, rx, terms)


def choose(batch: int, m: int, n: int, k: int, gpu: Gpu) -> Tile | None:
    """Return the tile of the lowest estimated cost."""

    def cost(tile: Tile) -> float:
        blocks = batch * (m // tile.rows) * (n // tile.columns)
        elements = tile.terms * (tile.rows + tile.columns)
        return cycles(Tiled(blocks, tile.threads, k // tile.terms, elements, tile.row_results, tile.column_results, k), gpu)

    return min(tiles(m, n, k, gpu), key=cost, default=None)


def product(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a product of matrices, or of batches of them, with what follows it element by element."""
    parts = single_reduction(fn)
    if parts is None or len(parts.spatial) < 2 or len(parts.reduced) != 1:
        return None
    schedule, reduction, last = parts.schedule, parts.reduction, parts.last
    operands = _operands(schedule.get(reduction))
    if operands is None:
        return None
    *lead, m, n = parts.spatial
    tile = choose(math.prod(lead), m, n, parts.reduced[0], gpu_of(target))
    if tile is None:
        return None
    copies = [schedule.cache_read(reduction, k, "shared") for k in range(2)]
    if last is None:
        last = schedule.cache_write(reduction, 0, "local")
    loops = schedule.get_loops(last)
    if [int(schedule.get(loop).extent) for loop in loops] != list(parts.spatial):
        return None
    *outer, i, j = loops
    bi, ti, ri = schedule.split(i, [None, tile.row_threads, tile.row_results])
    # columns of a thread lie apart: the threads of a warp read neighbouring elements
    bj, vj, tj = schedule.split(j, [None, tile.column_results, tile.column_threads])
    schedule.reorder(*outer, bi, bj, vj, ti, tj, ri)
    if outer:
        schedule.bind(schedule.fuse(*outer), "blockIdx.z")
    for loop, axis in ((bi, "blockIdx.y"), (bj, "blockIdx.x"), (vj, "vthread.x"), (ti, "threadIdx.y"), (tj, "threadIdx.x")):
        schedule.bind(loop, axis)
    schedule.unroll(ri)
    schedule.compute_at(reduction, tj, preserve_unit_loops=True)
    schedule.set_scope(reduction, 0, "local")
    *_, rows, columns, k = schedule.get_loops(reduction)
    steps, terms = schedule.split(k, [None, tile.terms])
    schedule.reorder(steps, terms, rows, columns)
    schedule.unroll(rows)
    for copy, terms_last in zip(copies, operands):
        schedule.compute_at(copy, steps, preserve_unit_loops=True)
        around = len(schedule.get_loops(reduction)) - 3  # the loops outside of and with the steps
        _, fy, fx = schedule.split(schedule.fuse(*schedule.get_loops(copy)[around:]), [None, tile.row_threads, tile.column_threads])
        schedule.bind(fy, "threadIdx.y")
        schedule.bind(fx, "threadIdx.x")
        if terms_last:  # rows of an odd length: the threads of a warp that read a column hit different banks
            schedule.storage_align(copy, 0, -2, 2, 1)
    schedule.decompose_reduction(reduction, steps)
    return schedule.mod["main"]


def _operands(block: Any) -> tuple[bool, bool] | None:
    """Return for each operand whether its terms are the last axis; None where it is no product of two matrices."""
    axes = [v.var for v in block.iter_vars]
    *_, i, j, k = axes
    if len(block.reads) != 2 or any(int(v.iter_type) != tirx.IterVar.DataPar for v in block.iter_vars[:-1]):
        return None
    found = []
    for read, own in zip(block.reads, (i, j)):
        if len(read.region) < 2:
            return None
        two = [r.min for r in read.region[-2:]]
        plain = [any(t.same_as(a) for a in axes) for t in two]
        if not all(plain) or not any(t.same_as(k) for t in two) or not any(t.same_as(own) for t in two):
            return None
        found.append(bool(two[-1].same_as(k)))
    return found[0], found[1]
