# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and products of integers of 8 bits: words of four terms in shared memory, exact sums in int32.

A thread adds up four products by one instruction (``dp4a``, from sm_61 on), or a warp 16 x 8 results of 32 terms on tensor cores
(``mma.m16n8k32``, from sm_80 on); one factor may have a sign and the other none. Of a convolution four neighbouring channels make a
word. Results are finished (bias, scale, quantisation) where they are, in registers.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cuda.cost import Mma, Tiled, cycles, mma_cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of
from dycl_tvm.backends.tir_cuda.matrices import Product, inner_last, lie_together, read_product, whole
from dycl_tvm.backends.tir_cuda.tiled_kernel import TERMS, Copy, Tile, TiledKernel, cheapest, is_worth_tiles

#: Terms of a word, and words of a step.
_WORD = 4
_WORDS = TERMS // _WORD


class _Threads(Tile):
    """Threads, and their results, which lie as far apart as there are threads: neighbours have neighbouring columns."""

    UNIT, LANES = (1, 1), 1

    def first(self, thread: Any) -> tuple[Any, Any]:
        return tirx.floordiv(thread, whole(self.column_groups)), tirx.floormod(thread, whole(self.column_groups))


class _Warps(Tile):
    """Warps, and the results of each, of tensor cores."""

    UNIT, LANES = (16, 8), 32


def _tiles(gpu: Gpu) -> Iterator[Tile]:
    kind: type[Tile] = _Warps if gpu.byte_macs else _Threads
    sides = ((1, 2, 4),) * 4 if gpu.byte_macs else ((4, 8, 16), (8, 16, 32), (1, 2, 4, 8), (1, 2, 4, 8))
    for sizes in itertools.product(*sides):
        tile = kind(*sizes)
        whole_copies = not any(_WORDS * extent % tile.threads for extent in (tile.rows, tile.columns))
        if gpu.warp <= tile.threads <= 256 and whole_copies and tile.results <= 16:
            yield tile


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
    if product is None or not is_worth_tiles(product):
        return None

    def of_this_gpu(tile: Tile, blocks: int, steps: int) -> float:
        words = _WORDS * (tile.rows + tile.columns)
        if gpu.byte_macs:
            work = Mma(blocks, tile.threads, steps, words, tile.rows * tile.columns * TERMS, _WORD * words)
            return mma_cycles(work, gpu, gpu.byte_macs)
        return cycles(Tiled(blocks, tile.threads, steps, words, tile.row_results, tile.column_results, steps * _WORDS), gpu)

    kernel = _OfWarps if gpu.byte_macs else _OfThreads
    return kernel(inner_last(product, _WORD), cheapest(product, _tiles(gpu), gpu, of_this_gpu), gpu).function(fn)


def word_of(target: tvm.target.Target) -> int:
    """Return how many integers of 8 bits a GPU multiplies at once."""
    return _WORD if gpu_of(target).dot4 else 1


def _byte(factor: Any) -> Any:
    """Return a factor of int32 as the integer of 8 bits that it is."""
    value = factor.value if isinstance(factor, tirx.Cast) else factor
    return value if str(value.ty.dtype) in ("int8", "uint8") else None


class _Copy(Copy):
    PER, SKEW, DTYPE = _WORD, 4, "int32"

    def __init__(self, p: Product, *rest: Any) -> None:
        super().__init__(p, *rest)
        self.in_words = p.terms.extents[-1] % _WORD == 0
        self.together = self.in_words and lie_together(self.factor, p.terms)

    def _own_lines(self, tile: Tile) -> bool:
        return isinstance(tile, _Warps)  # as its instruction reads them

    def _unit(self, own: Any, term: Any) -> Any:
        zero = tirx.const(0, "int32")
        if self.together:
            word = T.call_extern("int32", "dycl_word", T.address_of(self.element(own, term)))
            return tirx.if_then_else(self.inside(own, term), word, zero)
        if self.in_words:
            return tirx.if_then_else(self.inside(own, term), self._packed([self.element(own, term, k) for k in range(_WORD)]), zero)
        terms = [term + whole(k) for k in range(_WORD)]
        dtype = str(self.factor.value.ty.dtype)
        return self._packed([tirx.if_then_else(self.inside(own, t), self.element(own, t), tirx.const(0, dtype)) for t in terms])

    def _packed(self, elements: list[Any]) -> Any:
        return T.call_extern("int32", "dycl_pack", *(e.astype("uint8").astype("int32") for e in elements))


class _Kernel(TiledKernel):
    """``FUNCTION`` adds up a step, ``EACH`` sums a result."""

    SUMS, COPY = "int32", _Copy
    FUNCTION: str
    EACH: int

    def _tile(self, column: Any, row: Any, batch: Any, part: Any, thread: Any, partial: Any) -> None:
        tile = self.tile
        left, right = self._copies(column, row, batch, thread)
        sums, (i0, j0) = self._sums(self.EACH * tile.results), tile.first(thread)
        signs = ", ".join(str(int(str(f.value.ty.dtype) == "int8")) for f in (self.p.left, self.p.right))

        def multiply() -> None:
            shape = f"{tile.row_results}, {tile.column_results}, {_WORDS}"
            sides = zip((left.address(i0), right.address(j0)), (left.stride, right.stride), self._steps_apart(), strict=True)
            arguments = [argument for address, stride, apart in sides for argument in (address, stride, *apart)]
            T.evaluate(T.call_extern("int32", f"{self.FUNCTION}<{shape}, {signs}>", T.address_of(sums[0]), *arguments))

        self._steps(part, left, right, multiply)
        with T.unroll(whole(0), whole(self.EACH * tile.results)) as k:
            i, j = self._place(thread, k)
            self._store(sums[k], batch, row + i0 + i, column + j0 + j, part, partial)

    @abstractmethod
    def _steps_apart(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how far the rows, and the columns, of a thread lie apart, where its function asks."""

    @abstractmethod
    def _place(self, thread: Any, k: Any) -> tuple[Any, Any]:
        """Return the row and column of a thread's sum, from its first ones on."""


class _OfThreads(_Kernel):
    FUNCTION, EACH = "dycl_dot4", 1

    def _steps_apart(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.tile.row_groups,), (self.tile.column_groups,)

    def _place(self, thread: Any, k: Any) -> tuple[Any, Any]:
        results = whole(self.tile.column_results)
        return tirx.floordiv(k, results) * whole(self.tile.row_groups), tirx.floormod(k, results) * whole(self.tile.column_groups)


class _OfWarps(_Kernel):
    FUNCTION, EACH = "dycl_bytes_mma", 4

    def _steps_apart(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (), ()

    def _place(self, thread: Any, k: Any) -> tuple[Any, Any]:
        """Those of a warp are as PTX has them in ``mma.m16n8k32``."""
        results, (rows, columns) = whole(self.tile.column_results), _Warps.UNIT
        lane, one, k = tirx.floormod(thread, whole(32)), tirx.floordiv(k, whole(4)), tirx.floormod(k, whole(4))
        i, j = tirx.floordiv(one, results) * whole(rows), tirx.floormod(one, results) * whole(columns)
        group, member = tirx.floordiv(lane, whole(4)), tirx.floormod(lane, whole(4)) * whole(2)
        return i + tirx.floordiv(k, whole(2)) * whole(8) + group, j + tirx.floormod(k, whole(2)) + member
