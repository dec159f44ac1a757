# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and products on tensor cores: factors in float16, sums in float32.

The tile's results go through shared memory to what follows the product (bias, activation, residual).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cuda.cost import Mma, adding_up, mma_cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of
from dycl_tvm.backends.tir_cuda.matrices import read_product, whole
from dycl_tvm.backends.tir_cuda.tiled_kernel import TERMS, Copy, TiledKernel

#: A side of what one instruction multiplies; it takes as many terms.
_SIDE = 16
#: Elements that a row of a tile is longer in shared memory: so neighbouring rows begin in different banks, aligned as the loads want it.
_SKEW = 8
#: Fewer rows, columns or terms leave most of an instruction idle.
_LEAST = 8
_MOST_PARTS = 16


@dataclass(frozen=True)
class Tile:
    """Warps of a block over rows and columns, the 16x16 results of a warp, and among how many blocks the terms are split."""

    row_warps: int
    column_warps: int
    row_results: int
    column_results: int
    parts: int = 1

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return _SIDE * self.row_warps * self.row_results

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return _SIDE * self.column_warps * self.column_results

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.row_warps * self.column_warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: both factors, and the results."""
        return 2 * (self.rows + self.columns + 2 * _SKEW) * (TERMS + _SKEW) + 4 * self.rows * self.columns


#: (row warps, column warps, results of a warp in rows and columns)
_TILES = (
    (4, 1, 1, 1), (1, 4, 1, 1), (2, 2, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 2, 2), (4, 2, 1, 2), (2, 4, 2, 1), (4, 2, 2, 2),
    (2, 4, 2, 2),
)  # fmt: skip


def choose(batch: int, rows: int, columns: int, terms: int, gpu: Gpu) -> Tile:
    """Return the tile of the lowest estimated cost; of equal ones the first."""

    def cost(tile: Tile) -> float:
        blocks = tile.parts * batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        steps = math.ceil(math.ceil(terms / TERMS) / tile.parts)
        work = Mma(blocks, tile.threads, steps, TERMS * (tile.rows + tile.columns), tile.rows * tile.columns * TERMS, tile.shared_bytes)
        return mma_cycles(work, gpu, gpu.tensor_macs) + adding_up(tile.parts, batch * rows * columns, gpu)

    parts = [p for p in (1, 2, 4, 8, _MOST_PARTS) if p == 1 or p * 2 * TERMS <= terms]
    found = [Tile(*sizes, parts=p) for sizes, p in itertools.product(_TILES, parts)]
    return min((t for t in found if t.shared_bytes <= gpu.shared_bytes), key=cost)


def tensor_cores(fn: Any, target: tvm.target.Target, half: bool) -> Any:
    """Return a function that computes a product of matrices, a convolution for example, on tensor cores, with what follows it.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled.
    target : tvm.target.Target
    half : bool
        Whether factors of float32 may be rounded to float16; those of float16 are taken anyway.

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None where the GPU has no tensor cores, and for other computations.
    """
    gpu = gpu_of(target)
    product = read_product(fn, "float32", lambda factor: _half(factor, half)) if gpu.tensor_macs else None
    if product is None or min(product.rows.size, product.columns.size, product.terms.size) < _LEAST:
        return None
    tile = choose(product.batch.size, product.rows.size, product.columns.size, product.terms.size, gpu)
    return _Kernel(product, tile, gpu).function(fn)


def _half(factor: Any, round_it: bool) -> Any:
    while isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) in ("float16", "float32"):
        factor = factor.value
    dtype = str(factor.ty.dtype)
    if dtype == "float16":
        return factor
    return tirx.Cast("float16", factor) if dtype == "float32" and round_it else None


class _Copy(Copy):
    """A line has the terms of a row or column where these are neighbours in memory, else the rows or columns of a term."""

    def _memory(self) -> tuple[Any, Any, int]:
        lines, stride = (self.extent, TERMS + _SKEW) if self.factor.terms_last else (TERMS, self.extent + _SKEW)
        # one dimension: TVM would leave out columns that are never written
        shared = T.alloc_buffer((lines * stride,), "float16", scope="shared")
        return shared, T.alloc_buffer((self.extent * TERMS // self.threads,), "float16", scope="local"), stride

    def place(self, own: Any, unit: Any) -> Any:
        line, column = (own, unit) if self.factor.terms_last else (unit, own)
        return line * whole(self.stride) + column

    def _unit(self, own: Any, term: Any) -> Any:
        return tirx.if_then_else(self.inside(own, term), self.element(own, term), tirx.FloatImm("float16", 0.0))

    def address(self, own: Any) -> Any:
        """Return where the part of a warp begins that has this row or column as its first."""
        return T.address_of(self.shared[self.place(own, whole(0))])


class _Kernel(TiledKernel):
    SUMS = "float32"
    tile: Tile

    def _tile(self, column: Any, row: Any, batch: Any, part: Any, thread: Any, partial: Any) -> None:
        p, tile = self.p, self.tile
        left = _Copy(p, p.left, p.rows, tile.rows, tile.threads, thread, batch, row)
        right = _Copy(p, p.right, p.columns, tile.columns, tile.threads, thread, batch, column)
        sums = T.alloc_buffer((tile.row_results * tile.column_results * 8,), "float32", scope="local")
        results = T.alloc_buffer((tile.rows * tile.columns,), "float32", scope="shared")
        with T.unroll(0, tile.row_results * tile.column_results * 8) as k:
            T.buffer_store(sums, self._zero(), [k])
        warp = tirx.floordiv(thread, whole(32))
        i0 = tirx.floordiv(warp, whole(tile.column_warps)) * whole(_SIDE * tile.row_results)
        j0 = tirx.floormod(warp, whole(tile.column_warps)) * whole(_SIDE * tile.column_results)

        def multiply() -> None:
            shape = f"{tile.row_results}, {tile.column_results}, {TERMS}, {int(p.left.terms_last)}, {int(p.right.terms_last)}"
            arguments = [T.address_of(sums[0]), left.address(i0), left.stride, right.address(j0), right.stride]
            T.evaluate(T.call_extern("int32", f"dycl_mma<{shape}>", *arguments))

        self._steps(part, left, right, multiply)
        to = T.address_of(results[i0 * whole(tile.columns) + j0])
        store = f"dycl_mma_store<{tile.row_results}, {tile.column_results}>"
        T.evaluate(T.call_extern("int32", store, to, tile.columns, T.address_of(sums[0])))
        T.evaluate(T.tvm_storage_sync("shared"))
        result = T.alloc_buffer((1,), "float32", scope="local")
        with T.serial(whole(0), whole(tile.rows * tile.columns // tile.threads)) as k:
            place = k * whole(tile.threads) + thread
            # outside of the condition: TVM makes the array as large as what it sees read, and the store above writes all of it
            T.buffer_store(result, results[place], [0])
            i, j = tirx.floordiv(place, whole(tile.columns)), tirx.floormod(place, whole(tile.columns))
            self._store(result[0], batch, row + i, column + j, part, partial)
