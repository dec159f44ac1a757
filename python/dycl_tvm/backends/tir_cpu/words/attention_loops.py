# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The loops of attention: scores of a tile of rows, exponentials of them, and what these weigh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.attention import DOT_ROWS, Attention, Strided
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, multiply_add_pairs, zipped
from dycl_tvm.backends.tir_cpu.words.bf16 import pairs as words_of
from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import parallel, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.softmax_row import softmax_row
from dycl_tvm.backends.tir_cpu.words.sums import add_splits, dots, multiply_add
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles, pieces
from dycl_tvm.backends.tir_cpu.words.transposition import transpose_block
from dycl_tvm.backends.tir_cpu.words.vectors import clear, vectors, zeros
from dycl_tvm.backends.tir_cpu.words.workload import Epilogue


def seconds_of(work: Attention, machine: Machine) -> float:
    """Estimate the time of one core."""
    scores = work.heads * work.rows * work.keys
    products = 2.6 * work.macs / (machine.gflops * 1e9)
    copies = 0.5e-9 * work.heads * work.keys * work.depth if work.rows > DOT_ROWS else 0.0
    return products + 7e-9 * scores / machine.lanes + copies


def tile_rows(work: Attention, machine: Machine) -> int:
    """Return the rows of a tile: so many sums of both products that additions need not wait for each other."""
    narrow = work.width <= (2 if machine.registers >= 32 else 1) * machine.lanes
    most = (8 if narrow else 6) if machine.registers >= 32 else (6 if narrow else 4)
    return -(-work.rows // -(-work.rows // most))


class AttentionLoops:
    """The loops of one kernel; a row of scores is called as its buffer is, ``p``."""

    #: Rows of scores are padded to multiples of so many vectors.
    vectors_together = 1

    def __init__(self, work: Attention, machine: Machine, between: Epilogue, epilogue: Epilogue) -> None:
        self.work, self.machine, self.lanes = work, machine, machine.lanes
        self.between, self.epilogue = between, epilogue
        unit = self.lanes * self.vectors_together
        self.padded = -(-work.keys // unit) * unit
        self.tile = tile_rows(work, machine)
        self.in_place = work.rows <= DOT_ROWS and work.k.strides[-1] == work.q.strides[-1] == 1
        #: How many keys are looked at, in whole vectors, where a size of the call decides it: at least one vector, at most ``padded``.
        self.live: Any = None
        #: The values of a head as words, (pairs of keys, width), where they are rounded.
        self.values: Any = None

    def _panel(self, columns: int) -> int:
        """Return the columns of a register tile."""
        all_vectors = -(-columns // self.lanes)
        wide = min((self.machine.registers - 1) // (self.tile + 1), 512 // self.machine.vector_bytes)
        return -(-all_vectors // -(-all_vectors // wide)) * self.lanes

    def emit(self, args: Sequence[Any], count: Any = None) -> None:
        """Emit the loops.

        Parameters
        ----------
        args : sequence of Buffer
            Queries, keys, values, operands of both epilogues, the output.
        count : PrimExpr, optional
            How many keys count, where a size of the call decides it.
        """
        self.q, self.k, self.v, *rest, self.y = args
        self.score_operands, self.operands = rest[: len(self.between.operands)], rest[len(self.between.operands) :]
        work, cores = self.work, self.machine.cores
        if count is not None:
            most = tirx.const(self.padded // self.lanes, "int64")
            parts = tirx.truncdiv(count + (self.lanes - 1), tirx.const(self.lanes, "int64"))
            self.live = T.bind((tirx.max(tirx.min(parts, most), tirx.const(1, "int64")) * self.lanes).astype("int32"))
        tiles = -(-work.rows // self.tile)
        parts = min(tiles, max(1, 4 * cores // work.heads))  # of a head
        tasks = work.heads * parts
        cut = min(tasks, 8 * cores)
        with (
            parallel(cut, self.machine, seconds_of(work, self.machine)) as turn,
            T.serial(turn * tasks // cut, (turn + 1) * tasks // cut) as task,
        ):
            head, part = (task // parts, task % parts) if parts > 1 else (task, 0)
            first = part * tiles // parts
            self._head(self._lead(head), first, (part + 1) * tiles // parts - first if parts > 1 else tiles)

    def _head(self, lead: Sequence[Any], first: Any, tiles: Any) -> None:
        """Emit some tiles of a head, from ``first`` on."""
        work = self.work
        keys = None if self.in_place else self._paired_keys(lead) if work.rounded else self._transposed_keys(lead)
        self.values = self._paired_values(lead) if work.rounded else None
        p = T.alloc_buffer((self.tile, self.padded), "float32")
        with T.serial(0, tiles) as t:
            even_tiles(work.rows, self.tile, first + t, lambda count, row: self._rows(lead, row, count, keys, p))

    def _lead(self, head: Any) -> list[Any]:
        index = []
        for size in reversed(self.work.lead):
            index.append(head % size if size > 1 else 0)
            head = head // size if size > 1 else head
        return index[::-1]

    def _all_keys(self, emit: Callable[[int, Any], None]) -> None:
        """Emit ``emit(first, count)`` for all keys; where calls decide how many, for whole vectors, then for what is left of one."""
        keys = self.work.keys
        if self.live is None:
            emit(0, keys)
            return
        whole = keys - keys % self.lanes
        if whole:
            emit(0, tirx.min(self.live, whole))
        if whole < keys:
            with T.If(self.live > whole), T.Then():
                emit(whole, keys - whole)

    def _along_keys(self, size: int, emit: Callable[[Any, int], None], unit: int) -> None:
        """Emit ``emit(first, count)`` for pieces of the keys, of ``size`` and, where calls decide how many there are, of ``unit``."""
        self._all_keys(lambda start, total: pieces(total, size, lambda first, count: emit(start + first, count), unit))

    @staticmethod
    def _at(s: Strided, lead: Sequence[Any], row: Any, column: Any) -> Any:
        where: Any = s.offset
        for i, stride in zip((*lead, row, column), s.strides):
            where = where + i * stride
        return where

    def _transposed_keys(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the keys of a head to (depth, keys), zero beyond the last key."""
        work, lanes = self.work, self.lanes
        keys = T.alloc_buffer((work.depth * self.padded,), "float32")
        squares = work.depth // lanes if work.k.strides[-1] == 1 else 0

        def block(first: Any, count: int) -> None:
            if count == lanes and squares:
                with T.serial(0, squares) as d:
                    at = self._at(work.k, lead, first, d * lanes)
                    transpose_block(self.k, at, work.k.strides[-2], keys, d * (lanes * self.padded) + first, self.padded, lanes)
            done = squares * lanes if count == lanes else 0
            with T.serial(0, work.depth - done) as d:
                row = (done + d) * self.padded + first
                vectors(count, lanes, lambda j: store(keys, [row + j], self.k[self._at(work.k, lead, first + j, done + d)]))
                if count < lanes:
                    vectors(lanes - count, lanes, lambda j: store(keys, [row + count + j], tirx.const(0, "float32")))

        self._along_keys(lanes, block, lanes)
        return keys

    def _paired_keys(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the keys of a head to (pairs of the depth, keys): they are rounded, then words are transposed."""
        work, words = self.work, self.work.depth // 2
        keys = T.alloc_buffer((words * self.padded,), "float32")
        rounded = T.alloc_buffer((LANES, words), "int32")

        def block(first: Any, count: int) -> None:
            with T.serial(0, count) as j:
                self._round(work.depth, lambda at: self.k[T.ramp(self._at(work.k, lead, first + j, at), 1, LANES)], rounded, j)
            # TVM takes away what it sees nobody write
            with T.serial(0, LANES - count) as j, T.serial(0, words // PAIRS) as d:
                store(rounded, [count + j, T.ramp(d * PAIRS, 1, PAIRS)], T.broadcast(T.int32(0), PAIRS))
            with T.serial(0, words // LANES) as s:
                place, stride = self._place_of_keys(first, s)
                transpose_block(rounded, (0, s * LANES), words, keys, place, stride, LANES)

        self._along_keys(LANES, block, LANES)
        return keys

    def _place_of_keys(self, first: Any, s: Any) -> tuple[Any, int]:
        """Return where the words of a vector of keys are, of 16 pairs of the depth, and the distance from a pair to the next."""
        return s * (LANES * self.padded) + first, self.padded

    def _paired_values(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the values of a head to (pairs of keys, width), zero beyond the last key."""
        work = self.work
        values = T.alloc_buffer(self._shape_of_values(), "float32")
        zero = T.broadcast(T.float32(0), LANES)

        def pair(index: Any, there: int) -> None:
            with T.serial(0, work.width // LANES) as e:
                load = lambda k: self.v[T.ramp(self._at(work.v, lead, 2 * index + k, e * LANES), 1, LANES)] if k < there else zero  # noqa: E731
                store(values, self._place_of_values(index, e), zipped(load(0), load(1)))

        whole = work.keys // 2
        with T.serial(0, whole if self.live is None else tirx.min(whole, self.live // 2)) as index:
            pair(index, 2)
        for index in range(whole, self.padded // 2):
            pair(index, work.keys % 2 if index == whole else 0)
        return values

    def _shape_of_values(self) -> tuple[int, ...]:
        return self.padded // 2, self.work.width

    def _place_of_values(self, pair: Any, e: Any) -> list[Any]:
        """Return where the words of a pair of keys and of a vector of the width are."""
        return [pair, T.ramp(e * LANES, 1, LANES)]

    def _rows(self, lead: Sequence[Any], row: Any, count: int, keys: Any, p: Any) -> None:
        """Emit the attention of ``count`` queries from ``row``."""
        if keys is None:
            self._dot_scores(lead, row, count, p)
        else:
            self._scores(lead, row, count, keys, p)
        scale = T.alloc_buffer((self.tile,), "float32")
        with T.serial(0, count) as r:
            self._exponentials(r, p, scale)
        self._values(lead, row, count, p, scale)

    def _put_scores(self, lead: Sequence[Any], row: Any, first: Any, valid: int, sums: Sequence[Any], p: Any) -> None:
        """Emit what is done to scores of keys from ``first``, and their stores."""

        for r, total in enumerate(sums):
            put = lambda j, r=r, total=total: self._put_score(lead, row, r, first + j, total[j], p)  # noqa: E731
            vectors(valid, self.lanes, put)

    def _put_score(self, lead: Sequence[Any], row: Any, r: Any, key: Any, value: Any, p: Any) -> None:
        """Emit what is done to the score of a key and of row ``row + r``, and its store."""
        value = finish(self.between, self.score_operands, self.work.scores, value, [*lead, row + r, key])
        if self.work.causal:
            value = tirx.Select(key <= row + r, value, tirx.const(-math.inf, "float32"))
        store(p, [r, key], value)

    def _pad(self, count: int, p: Any) -> None:
        """Emit -inf in the lanes beyond the last key: they count for nothing in a row's maximum and sum."""
        for r in range(count):
            self._pad_row(r, p)

    def _pad_row(self, r: Any, p: Any) -> None:
        """See :meth:`_pad`."""
        keys = self.work.keys
        vectors(self.padded - keys, self.lanes, lambda j: store(p, [r, keys + j], tirx.const(-math.inf, "float32")))

    def _scores(self, lead: Sequence[Any], row: Any, count: int, keys: Any, p: Any) -> None:
        work, lanes, width = self.work, self.lanes, self._panel(self.work.keys)
        words = T.alloc_buffer((count, work.depth // 2), "int32") if work.rounded else None
        if words is not None:
            with T.serial(0, count) as r:
                self._round(work.depth, lambda at: self.q[T.ramp(self._at(work.q, lead, row + r, at), 1, LANES)], words, r)

        def panel(first: Any, valid: int) -> None:
            columns = -(-valid // lanes) * lanes
            sums = zeros(count, columns)
            clear(sums, columns, lanes)
            if words is None:
                left = lambda r, d: self.q[self._at(work.q, lead, row + r, d)]  # noqa: E731
                multiply_add(sums, columns, lanes, work.depth, left, lambda d, j: keys[d * self.padded + first + j])
            else:
                vector = lambda d, j: keys[T.ramp(d * self.padded + first + j, 1, LANES)]  # noqa: E731
                multiply_add_pairs(sums, columns, work.depth // 2, lambda r, d: words[r, d], vector)
            self._put_scores(lead, row, first, valid, sums, p)

        self._along_keys(width, panel, lanes)
        self._pad(count, p)

    def _dot_scores(self, lead: Sequence[Any], row: Any, count: int, p: Any) -> None:
        """Emit scores as sums along the depth, of some keys at a time."""
        work, lanes = self.work, self.lanes
        step = self._divisor(min(work.keys, max(1, self.machine.registers // 2 // count)))

        def block(first: Any, valid: int) -> None:
            left = lambda r, d: self.q[self._at(work.q, lead, row + r, d)]  # noqa: E731
            right = lambda j, d: self.k[self._at(work.k, lead, first + j, d)]  # noqa: E731
            self._put_scores(lead, row, first, valid, dots(count, valid, work.depth, lanes, left, right), p)

        self._along_keys(step, block, step)
        self._pad(count, p)

    def _divisor(self, most: int) -> int:
        """Return ``most``; where calls decide how many keys there are, the most of a vector that divides it."""
        return most if self.live is None else 1 << (min(most, self.lanes).bit_length() - 1)

    def _exponentials(self, r: Any, p: Any, scale: Any) -> None:
        """Emit a row's exponentials in place, and one over their sum."""
        zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")

        def settle(peak: Any) -> None:  # no distance from -inf
            if self.work.empty_rows:
                store(peak, [0], tirx.Select(peak[0] == tirx.const(-math.inf, "float32"), zero, peak[0]))

        keys = self.padded if self.live is None else self.live
        _, total = softmax_row(keys, self.lanes, lambda j: p[r, j], lambda j, e: store(p, [r, j], e), lambda j: p[r, j], settle)
        inverse = one / total[0]
        store(scale, [r], tirx.Select(total[0] == zero, zero, inverse) if self.work.empty_rows else inverse)

    @staticmethod
    def _round(count: Any, vector: Callable[[Any], Any], words: Any, row: Any) -> None:
        """Emit the rounding of whole vectors, ``vector(first element)``, to a row of words."""
        with T.serial(0, count // LANES) as i:
            store(words, [row, T.ramp(i * PAIRS, 1, PAIRS)], words_of(vector(i * LANES)))

    def _values(self, lead: Sequence[Any], row: Any, count: int, p: Any, scale: Any) -> None:
        work, lanes, width = self.work, self.lanes, self._panel(self.work.width)
        splits = self._divisor(max(1, min(4, self.machine.registers // 2 // (count * width // lanes), work.keys)))
        keys = self.padded if self.live is None else self.live
        words = T.alloc_buffer((count, self.padded // 2), "int32") if work.rounded else None
        if words is not None:
            with T.serial(0, count) as r:
                self._round(keys, lambda at: p[r, T.ramp(at, 1, LANES)], words, r)

        def panel(first: Any, valid: int) -> None:
            sums = zeros(count * splits, valid)
            clear(sums, valid, lanes)
            right = lambda j, e: self.v[self._at(work.v, lead, j, first + e)]  # noqa: E731

            def weigh(start: int, count: Any) -> None:
                multiply_add(sums, valid, lanes, count, lambda r, j: p[r, start + j], lambda j, e: right(start + j, e), splits)

            if words is None:
                self._all_keys(weigh)
            else:
                vector = lambda j, e: self.values[j, T.ramp(first + e, 1, LANES)]  # noqa: E731
                multiply_add_pairs(sums, valid, keys // 2, lambda r, j: words[r, j], vector, splits)
            for r, total in enumerate(add_splits(sums, valid, lanes, splits)):
                put = lambda e, r=r, total=total: self._put_value(lead, row + r, first + e, total[e] * scale[r])  # noqa: E731
                vectors(valid, lanes, put)

        pieces(work.width, width, panel)

    def _put_value(self, lead: Sequence[Any], row: Any, e: Any, value: Any) -> None:
        """Emit the epilogue of a result, and its store."""
        index = [*lead, row, e]
        place = [index[k] for k in self.work.order]
        store(self.y, place, finish(self.epilogue, self.operands, self.work.y, value, place))
