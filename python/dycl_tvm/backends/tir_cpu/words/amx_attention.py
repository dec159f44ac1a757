# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The loops of attention in bfloat16 by the tiles of AMX: a left tile is 16 rows of queries, or of exponentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.amx import ROWS, Pairs, Tiles, even_rows, release
from dycl_tvm.backends.tir_cpu.words.attention import Attention
from dycl_tvm.backends.tir_cpu.words.attention_loops import AttentionLoops
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS
from dycl_tvm.backends.tir_cpu.words.bf16 import pairs as words_of
from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.tiles import pieces
from dycl_tvm.backends.tir_cpu.words.vectors import vectors
from dycl_tvm.backends.tir_cpu.words.workload import Epilogue

FACTORS = Pairs(1)
#: Tiles of sums beside each other: one row of tiles has them all.
_WIDE = 4


class TiledAttention(AttentionLoops):
    """The loops of one kernel."""

    #: A step of the second product has 16 pairs of keys.
    vectors_together = 2

    def __init__(self, work: Attention, machine: Machine, between: Epilogue, epilogue: Epilogue) -> None:
        super().__init__(work, machine, between, epilogue)
        self.tile, self.in_place = even_rows(work.rows), False
        self.tiles = Tiles(self.tile, ROWS, 1, _WIDE, FACTORS)

    def _head(self, lead: Sequence[Any], first: Any, tiles: Any) -> None:
        """See :class:`AttentionLoops`."""
        work, rows = self.work, self.tile
        keys, self.values = self._paired_keys(lead), self._paired_values(lead)
        p = T.alloc_buffer((rows, self.padded), "float32")
        # left tiles of steps one after the other; the last rows of the last tile are any numbers, whose sums are dropped
        self.queries = T.alloc_buffer((work.depth // (2 * LANES), rows, LANES), "int32")
        self.weights = T.alloc_buffer((self.padded // (2 * LANES), rows, LANES), "int32")
        self.results = T.alloc_buffer((rows, work.width), "float32")
        self.tiles.configure()
        with T.serial(0, tiles) as t:
            row = T.bind((first + t) * rows)
            self._rows(lead, row, rows if work.rows % rows == 0 else T.bind(tirx.min(rows, work.rows - row)), keys, p)
        release()

    def _place_of_keys(self, first: Any, s: Any) -> tuple[Any, int]:
        """See :class:`AttentionLoops`: right tiles, of 16 keys and all steps of the depth."""
        return first * (self.work.depth // 2) + s * (LANES * LANES), LANES

    def _shape_of_values(self) -> tuple[int, ...]:
        return self.work.width // LANES, self.padded // 2, LANES

    def _place_of_values(self, pair: Any, e: Any) -> list[Any]:
        """See :class:`AttentionLoops`: right tiles, of a vector of the width and all pairs."""
        return [e, pair, T.ramp(0, 1, LANES)]

    def _scores(self, lead: Sequence[Any], row: Any, count: Any, keys: Any, p: Any) -> None:
        """See :class:`AttentionLoops`."""
        work, step = self.work, LANES * LANES
        steps = work.depth // (2 * LANES)
        with T.serial(0, count) as r:
            self._left(work.depth, lambda at: self.q[T.ramp(self._at(work.q, lead, row + r, at), 1, LANES)], self.queries, r)

        def panel(first: Any, across: int) -> None:
            self._multiply(self.queries, steps, across, lambda j, s: keys[((first + j) * steps + s) * step])
            self.tiles.keep(1, across, p, first * LANES)

        pieces(-(-work.keys // LANES), _WIDE, panel)
        with T.serial(0, count) as r:
            self._along_keys(
                self.lanes,
                lambda first, valid: vectors(valid, self.lanes, lambda j: self._put_score(lead, row, r, first + j, p[r, first + j], p)),
                self.lanes,
            )
            self._pad_row(r, p)

    def _values(self, lead: Sequence[Any], row: Any, count: Any, p: Any, scale: Any) -> None:
        """See :class:`AttentionLoops`."""
        work, steps = self.work, self.padded // (2 * LANES)
        with T.serial(0, count) as r:
            self._left(self.padded, lambda at: p[r, T.ramp(at, 1, LANES)], self.weights, r)

        def panel(first: Any, across: int) -> None:
            self._multiply(self.weights, steps, across, lambda j, s: self.values[first + j, s * LANES, 0])
            self.tiles.keep(1, across, self.results, first * LANES)

        pieces(work.width // LANES, _WIDE, panel)
        with T.serial(0, count) as r:
            vectors(work.width, self.lanes, lambda e: self._put_value(lead, row + r, e, self.results[r, e] * scale[r]))

    def _multiply(self, left: Any, steps: int, across: int, right: Any) -> None:
        """Emit the products of a row of left tiles with ``across`` columns of right ones, whose first words are ``right(column, step)``."""
        self.tiles.clear(1, across)
        with T.serial(0, steps) as s:
            self.tiles.step([T.address_of(left[s, 0, 0])], 4 * LANES, [T.address_of(right(j, s)) for j in range(across)])

    @staticmethod
    def _left(count: int, vector: Any, words: Any, row: Any) -> None:
        """Emit the rounding of whole vectors, ``vector(first element)``, to a row of left tiles."""
        with T.serial(0, count // LANES) as i:
            store(words, [i // 2, row, T.ramp(i % 2 * PAIRS, 1, PAIRS)], words_of(vector(i * LANES)))
