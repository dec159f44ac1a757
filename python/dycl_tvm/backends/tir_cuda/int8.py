# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and products of integers of 8 bits: words of four terms in shared memory, exact sums in int32.

A thread adds up four products by one instruction (``dp4a``, from sm_61 on), or a warp 16 x 8 results of 32 terms on tensor cores
(``mma.m16n8k32``, from sm_80 on); one factor may have a sign and the other none. Of a convolution four neighbouring channels make a
word. Results are finished (bias, scale, quantisation) where they are, in registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cuda.cost import Mma, Tiled, adding_up, cycles, mma_cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of
from dycl_tvm.backends.tir_cuda.matrices import Product, inner_last, lie_together, read_product, whole
from dycl_tvm.backends.tir_cuda.tiled_kernel import TERMS, Copy, TiledKernel

#: Terms of a word, and words of a step.
_WORD = 4
_WORDS = TERMS // _WORD
#: Words that a line of a tile is longer in shared memory: so what a warp reads or writes at once lies in different banks.
_SKEW = 4
#: Rows and columns that one instruction of tensor cores computes.
_MMA = (16, 8)
#: With fewer rows, columns or terms most of a tile is idle.
_LEAST = 8
_MOST_PARTS = 16


@dataclass(frozen=True)
class Tile:
    """Groups over rows and columns (threads, or warps on tensor cores) and the results of each, in units of what it does at once."""

    row_groups: int
    column_groups: int
    row_results: int
    column_results: int
    parts: int = 1
    tensor_cores: bool = False

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns that a group computes at once."""
        return _MMA if self.tensor_cores else (1, 1)

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.unit[0] * self.row_groups * self.row_results

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.unit[1] * self.column_groups * self.column_results

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (32 if self.tensor_cores else 1) * self.row_groups * self.column_groups

    @property
    def words(self) -> int:
        """Words that a block copies in a step."""
        return _WORDS * (self.rows + self.columns)


def _tiles(gpu: Gpu) -> Iterator[Tile]:
    if gpu.byte_macs:
        sizes = itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4))
    else:
        sizes = itertools.product((4, 8, 16), (8, 16, 32), (1, 2, 4, 8), (1, 2, 4, 8))
    for found in sizes:
        tile = Tile(*found, tensor_cores=gpu.byte_macs > 0)
        whole_copies = not any(_WORDS * extent % tile.threads for extent in (tile.rows, tile.columns))
        if gpu.warp <= tile.threads <= 256 and whole_copies and tile.row_results * tile.column_results <= 16:
            yield tile


def choose(batch: int, rows: int, columns: int, terms: int, gpu: Gpu) -> Tile:
    """Return the tile of the lowest estimated cost; of equal ones the first."""

    def cost(tile: Tile) -> float:
        blocks = tile.parts * batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        steps = math.ceil(math.ceil(terms / TERMS) / tile.parts)
        if tile.tensor_cores:
            work = Mma(blocks, tile.threads, steps, tile.words, tile.rows * tile.columns * TERMS, 4 * tile.words)
            return mma_cycles(work, gpu, gpu.byte_macs) + adding_up(tile.parts, batch * rows * columns, gpu)
        each = Tiled(blocks, tile.threads, steps, tile.words, tile.row_results, tile.column_results, steps * _WORDS)
        return cycles(each, gpu) + adding_up(tile.parts, batch * rows * columns, gpu)

    parts = [p for p in (1, 2, 4, 8, _MOST_PARTS) if p == 1 or p * 2 * TERMS <= terms]
    found = (Tile(t.row_groups, t.column_groups, t.row_results, t.column_results, p, t.tensor_cores) for t in _tiles(gpu) for p in parts)
    return min(found, key=cost)


def int8(fn: Any, target: tvm.target.Target) -> Any:
    """Return a function that computes a product of matrices of 8 bits, a convolution for example, with what follows it.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled.
    target : tvm.target.Target

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None where the GPU has no instruction for it, and for other computations.
    """
    gpu = gpu_of(target)
    product = read_product(fn, "int32", _byte) if gpu.dot4 else None
    if product is None or min(product.rows.size, product.columns.size, product.terms.size) < _LEAST:
        return None
    tile = choose(product.batch.size, product.rows.size, product.columns.size, product.terms.size, gpu)
    return _Kernel(inner_last(product, _WORD), tile, gpu).function(fn)


def word_of(target: tvm.target.Target) -> int:
    """Return how many integers of 8 bits a GPU multiplies at once."""
    return _WORD if gpu_of(target).dot4 else 1


def _byte(factor: Any) -> Any:
    """Return a factor of int32 as the integer of 8 bits that it is."""
    value = factor.value if isinstance(factor, tirx.Cast) else factor
    return value if str(value.ty.dtype) in ("int8", "uint8") else None


class _Copy(Copy):
    """On tensor cores a line has the words of a row or column, else the rows or columns of a word."""

    PER = _WORD

    def __init__(self, tile: Tile, p: Product, *rest: Any) -> None:
        self.own_lines = tile.tensor_cores
        super().__init__(p, *rest)
        self.together = p.terms.extents[-1] % _WORD == 0 and lie_together(self.factor, p.terms)

    def _memory(self) -> tuple[Any, Any, int]:
        lines, stride = (self.extent, _WORDS + _SKEW) if self.own_lines else (_WORDS, self.extent + _SKEW)
        shared = T.alloc_buffer((lines * stride,), "int32", scope="shared")
        return shared, T.alloc_buffer((self.extent * _WORDS // self.threads,), "int32", scope="local"), stride

    def place(self, own: Any, unit: Any) -> Any:
        line, column = (own, unit) if self.own_lines else (unit, own)
        return line * whole(self.stride) + column

    def _unit(self, own: Any, term: Any) -> Any:
        zero = tirx.const(0, "int32")
        if self.together:
            word = T.call_extern("int32", "dycl_word", T.address_of(self.element(own, term)))
            return tirx.if_then_else(self.inside(own, term), word, zero)
        if self.p.terms.extents[-1] % _WORD == 0:
            return tirx.if_then_else(self.inside(own, term), self._packed([self.element(own, term, k) for k in range(_WORD)]), zero)
        terms = [term + whole(k) for k in range(_WORD)]
        dtype = str(self.factor.value.ty.dtype)
        return self._packed([tirx.if_then_else(self.inside(own, t), self.element(own, t), tirx.const(0, dtype)) for t in terms])

    def _packed(self, elements: list[Any]) -> Any:
        return T.call_extern("int32", "dycl_pack", *(e.astype("uint8").astype("int32") for e in elements))

    def address(self, own: Any) -> Any:
        """Return where a row or column begins."""
        return T.address_of(self.shared[self.place(own, whole(0))])


class _Kernel(TiledKernel):
    SUMS = "int32"
    tile: Tile

    def _tile(self, column: Any, row: Any, batch: Any, part: Any, thread: Any, partial: Any) -> None:
        p, tile = self.p, self.tile
        left = _Copy(tile, p, p.left, p.rows, tile.rows, tile.threads, thread, batch, row)
        right = _Copy(tile, p, p.right, p.columns, tile.columns, tile.threads, thread, batch, column)
        i0, j0 = self._first(thread)
        count = (4 if tile.tensor_cores else 1) * tile.row_results * tile.column_results
        sums = T.alloc_buffer((count,), "int32", scope="local")
        with T.unroll(0, count) as k:
            T.buffer_store(sums, self._zero(), [k])
        shape = f"{tile.row_results}, {tile.column_results}, {_WORDS}"
        signs = ", ".join(str(int(str(f.value.ty.dtype) == "int8")) for f in (p.left, p.right))
        steps = [] if tile.tensor_cores else [tile.row_groups, tile.column_groups]

        def multiply() -> None:
            name = "dycl_bytes_mma" if tile.tensor_cores else "dycl_dot4"
            sides = [(left.address(i0), left.stride), (right.address(j0), right.stride)]
            arguments = [a for k, side in enumerate(sides) for a in (*side, *steps[k : k + 1])]
            T.evaluate(T.call_extern("int32", f"{name}<{shape}, {signs}>", T.address_of(sums[0]), *arguments))

        self._steps(part, left, right, multiply)
        with T.unroll(whole(0), whole(count)) as k:
            i, j = self._place(thread, k)
            self._store(sums[k], batch, row + i0 + i, column + j0 + j, part, partial)

    def _first(self, thread: Any) -> tuple[Any, Any]:
        """Return the first row and column of a thread, or of its warp: neighbouring threads have neighbouring columns."""
        tile = self.tile
        if not tile.tensor_cores:
            return tirx.floordiv(thread, whole(tile.column_groups)), tirx.floormod(thread, whole(tile.column_groups))
        warp = tirx.floordiv(thread, whole(32))
        i, j = tirx.floordiv(warp, whole(tile.column_groups)), tirx.floormod(warp, whole(tile.column_groups))
        return i * whole(_MMA[0] * tile.row_results), j * whole(_MMA[1] * tile.column_results)

    def _place(self, thread: Any, k: Any) -> tuple[Any, Any]:
        """Return the row and column of a thread's sum, from its first ones on; those of a warp are as PTX has them in ``mma.m16n8k32``."""
        tile, results = self.tile, whole(self.tile.column_results)
        if not tile.tensor_cores:
            return tirx.floordiv(k, results) * whole(tile.row_groups), tirx.floormod(k, results) * whole(tile.column_groups)
        lane, one, k = tirx.floormod(thread, whole(32)), tirx.floordiv(k, whole(4)), tirx.floormod(k, whole(4))
        i, j = tirx.floordiv(one, results) * whole(_MMA[0]), tirx.floormod(one, results) * whole(_MMA[1])
        group, member = tirx.floordiv(lane, whole(4)), tirx.floormod(lane, whole(4)) * whole(2)
        return i + tirx.floordiv(k, whole(2)) * whole(8) + group, j + tirx.floormod(k, whole(2)) + member
