# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights of 8 or 4 bits whose groups have scales: where they lie, and how kernels read them.

A *word* is 32 bits: four or eight neighbours of the sum in one column. Those of even number lie in its low half, the first one lowest,
the others at the same places of its high half, so that shifts of 16 bits give pairs of neighbours. A *block* is what of the sum has one
scale, or 128 of it where a scale reaches further. Words lie in panels (panels, rows, columns of some vectors): of each block its words,
then its scales. The array is one of float32, and words are the bits of its elements. The vectors of a row are next to each other, so that
a tile as wide as a panel reads memory in one stream: with a stream for each vector it reads half as fast, because no stream is long
enough for what fetches memory ahead. Columns that are none, and what is missing in the last word of a sum, are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Tensor

#: Bits of the element types of grouped weights.
BITS = {"int8": 8, "int4": 4}
#: Vectors of a panel: as many as a tile has at most.
TOGETHER = 4
#: The longest block: sums of its integers are exact in 24 bits.
_LONGEST = 128
#: What blocks are a multiple of: the largest word, and the widest vector, divide it.
_SMALLEST = 16
_WORD = 32


def takes(work: Dense) -> bool:
    """Whether a workload has grouped weights, in groups of whole blocks, which are whole vectors and words."""
    if not work.group or (work.group < work.k and (work.group % _SMALLEST or work.group % min(work.group, _LONGEST))):
        return False
    return work.dtypes.weights in BITS and (work.dtypes.x, work.dtypes.accumulator) == ("float32", "float32")


@dataclass(frozen=True)
class Words:
    """The layout of the weights of one workload."""

    n: int
    k: int
    bits: int
    group: int
    lanes: int

    @staticmethod
    def of(work: Dense, machine: Machine) -> Words:
        """Return the layout of a workload's weights."""
        return Words(work.n, work.k, BITS[work.dtypes.weights], work.group, machine.lanes)

    @property
    def per(self) -> int:
        """Integers of a word."""
        return _WORD // self.bits

    @property
    def block(self) -> int:
        """Elements of the sum in a block; the last one may have fewer."""
        return min(self.group, _LONGEST)

    @property
    def blocks(self) -> int:
        """Blocks of a sum."""
        return -(-self.k // self.block)

    @property
    def last(self) -> int:
        """Elements of the last block."""
        return self.k - (self.blocks - 1) * self.block

    @property
    def rows_of_block(self) -> int:
        """Rows of all blocks but the last."""
        return self.block // self.per + 1

    @property
    def array(self) -> Tensor:
        """The array."""
        rows = (self.blocks - 1) * self.rows_of_block + -(-self.last // self.per) + 1
        return Tensor((-(-self.n // (TOGETHER * self.lanes)), rows, TOGETHER * self.lanes))

    def at(self, array: Any, row: Any, vector: Any) -> Any:
        """Return a vector of a row: the words of its columns, or their scales."""
        return array[vector // TOGETHER, row, T.ramp(vector % TOGETHER * self.lanes, 1, self.lanes)]

    def pack(self) -> Any:
        """Return the PrimFunc (integers (n, bytes of a row), scales (n, groups), array); of 4 bits a byte has two, the first one low."""
        panels, _, width = self.array.shape
        length, groups = -(-self.k * self.bits // 8), -(-self.k // self.group)
        integers = "int8" if self.bits == 8 else "uint8"

        def block(q: Any, scales: Any, packed: Any, panel: Any, b: Any, elements: int) -> None:
            words = -(-elements // self.per)
            row = b * self.rows_of_block
            with T.serial(0, words) as i, T.serial(0, width) as j:
                column = panel * width + j
                word = _uint32(0)
                for e in range(4):
                    at = b * (self.block * self.bits // 8) + i * 4 + e
                    byte = q[tirx.min(column, self.n - 1), tirx.min(at, length - 1)].astype("uint8").astype("uint32")
                    there = tirx.all(column < self.n, at < length)
                    word = word | self._placed(tirx.if_then_else(there, byte, _uint32(0)), e)
                store(packed, [panel, row + i, j], T.reinterpret("float32", word))
            with T.serial(0, width) as j:
                column = panel * width + j
                scale = scales[tirx.min(column, self.n - 1), b * self.block // self.group]
                scale = tirx.if_then_else(column < self.n, scale, tirx.const(0, "float32"))
                store(packed, [panel, row + words, j], scale)

        def body(q: Any, scales: Any, packed: Any) -> None:
            with T.serial(0, panels) as panel:
                self.along(lambda b, elements: block(q, scales, packed, panel, b, elements))

        buffers = [("q", (self.n, length), integers), ("scales", (self.n, groups), "float32"), ("packed", self.array.shape, "float32")]
        return prim_func(buffers, body)

    def _placed(self, byte: Any, number: int) -> Any:
        """Return one of four bytes of neighbours where it belongs in a word."""
        if self.bits == 8:
            return byte << _uint32(_WORD // 2 * (number % 2) + 8 * (number // 2))
        first, second = byte & _uint32(15), byte >> _uint32(4)
        return first << _uint32(4 * number) | second << _uint32(_WORD // 2 + 4 * number)

    def along(self, emit: Any) -> None:
        """Emit ``emit(block, elements)`` for all blocks: those of equal length in a loop."""
        equal = self.blocks if self.last == self.block else self.blocks - 1
        if equal:
            with T.serial(0, equal) as b:
                emit(b, self.block)
        if equal < self.blocks:
            emit(equal, self.last)

    def number(self, word: Any, element: int) -> Any:
        """Return an integer of each of a vector of words, as float32."""
        ends = _WORD // 2 * (element % 2) + self.bits * (element // 2 + 1)
        whole = T.reinterpret(f"int32x{self.lanes}", word)
        if ends < _WORD:
            whole = T.shift_left(whole, T.broadcast(T.int32(_WORD - ends), self.lanes))
        return T.shift_right(whole, T.broadcast(T.int32(_WORD - self.bits), self.lanes)).astype(f"float32x{self.lanes}")

    def pair(self, word: Any, index: int) -> Any:
        """Return two neighbours of each of a vector of words, as int16."""
        halves, lanes = _WORD // 2, 2 * self.lanes
        ends = self.bits * (index + 1)
        whole = T.reinterpret(f"int16x{lanes}", word)
        if ends < halves:
            whole = T.shift_left(whole, T.broadcast(T.int16(halves - ends), lanes))
        return T.shift_right(whole, T.broadcast(T.int16(halves - self.bits), lanes))


def _uint32(value: int) -> Any:
    return tirx.const(value, "uint32")
