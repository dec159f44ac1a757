# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and products on tensor cores: factors in float16, sums in float32.

The tile's results go through shared memory to what follows the product (bias, activation, residual).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cuda.cost import Mma, mma_cycles
from dycl_tvm.backends.tir_cuda.device import gpu_of
from dycl_tvm.backends.tir_cuda.matrices import read_product, whole
from dycl_tvm.backends.tir_cuda.tiled_kernel import TERMS, Copy, Tile, TiledKernel, cheapest, is_worth_tiles

#: Elements that a line of a tile is longer in shared memory, aligned as the loads want it.
_SKEW = 8


class _Tile(Tile):
    """Warps, and the 16x16 results of each."""

    UNIT, LANES = (16, 16), 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: both factors, and the results."""
        return 2 * (self.rows + self.columns + 2 * _SKEW) * (TERMS + _SKEW) + 4 * self.rows * self.columns


_TILES = tuple(
    _Tile(*sizes)
    for sizes in (
        (4, 1, 1, 1), (1, 4, 1, 1), (2, 2, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 2, 2), (4, 2, 1, 2), (2, 4, 2, 1), (4, 2, 2, 2),
        (2, 4, 2, 2),
    )
)  # fmt: skip


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
    if product is None or not is_worth_tiles(product):
        return None

    def cycles(tile: _Tile, blocks: int, steps: int) -> float:
        work = Mma(blocks, tile.threads, steps, TERMS * (tile.rows + tile.columns), tile.rows * tile.columns * TERMS, tile.shared_bytes)
        return mma_cycles(work, gpu, gpu.tensor_macs)

    tiles = (tile for tile in _TILES if tile.shared_bytes <= gpu.shared_bytes)
    return _Kernel(product, cheapest(product, tiles, gpu, cycles), gpu).function(fn)


def _half(factor: Any, round_it: bool) -> Any:
    while isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) in ("float16", "float32"):
        factor = factor.value
    dtype = str(factor.ty.dtype)
    if dtype == "float16":
        return factor
    return tirx.Cast("float16", factor) if dtype == "float32" and round_it else None


class _Copy(Copy):
    SKEW, DTYPE = _SKEW, "float16"

    def _own_lines(self, tile: Tile) -> bool:
        return self.factor.terms_last  # neighbours in memory stay neighbours

    def _unit(self, own: Any, term: Any) -> Any:
        return tirx.if_then_else(self.inside(own, term), self.element(own, term), tirx.FloatImm("float16", 0.0))


class _Kernel(TiledKernel):
    SUMS, COPY = "float32", _Copy

    def _tile(self, column: Any, row: Any, batch: Any, part: Any, thread: Any, partial: Any) -> None:
        p, tile = self.p, self.tile
        left, right = self._copies(column, row, batch, thread)
        sums = self._sums(8 * tile.results)
        results = T.alloc_buffer((tile.rows * tile.columns,), "float32", scope="shared")
        i0, j0 = tile.first(thread)

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
