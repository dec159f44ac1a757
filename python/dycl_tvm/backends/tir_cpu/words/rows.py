# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The rows of a product as its kernels count them, over the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.tiles import block_of, even_tiles
from dycl_tvm.backends.tir_cpu.words.vectors import vectors
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Epilogue, Tensor


@dataclass(frozen=True)
class WantedRows:
    """The rows of a product that a call wants: those whose place along each dimension that counts rows is among the first.

    Attributes
    ----------
    digits : sequence of (int, expression)
        Of each of these dimensions, the outermost first, its size and how many places are wanted; None for all.
    """

    digits: Sequence[tuple[int, Any]]

    @property
    def last(self) -> Any:
        """The last row; below 0 if there is none."""
        last: Any = 0
        for size, count in self.digits:
            last = last * size + (size if count is None else count) - 1
        return last

    def nearest(self, row: Any) -> Any:
        """Return a row itself, or one in its place that is wanted: what lies in others may be denormal numbers, which are slow."""
        found: Any = 0
        for k, (size, count) in enumerate(self.digits):
            place = row // math.prod(n for n, _ in self.digits[k + 1 :])
            place = place % size if k else place
            found = found * size + (place if count is None else tirx.max(tirx.min(place, count - 1), 0))
        return found

    def has(self, row: Any, count: int) -> Any:
        """Return whether all of ``count`` rows from ``row`` are wanted."""
        if len(self.digits) == 1:
            return self.last >= row + (count - 1)
        return tirx.all(*(self.nearest(row + r).equal(row + r) for r in range(count)))


def even_tiles_of_wanted(
    total: int, size: int, index: Any, wanted: WantedRows | None, emit: Callable[[int, Any, Sequence[Any]], None]
) -> None:
    """Emit ``emit(rows, first row, rows to read)`` for a tile of :func:`even_tiles`: for half of its rows if no more are ``wanted``."""
    even_tiles(total, size, index, lambda count, row: _tile_of_wanted(count, row, wanted, emit))


def _tile_of_wanted(count: int, row: Any, wanted: WantedRows | None, emit: Callable[[int, Any, Sequence[Any]], None]) -> None:
    """Emit one tile.

    Rows that are looked up one by one have an address each, which costs a little: a tile all of whose rows are wanted does without.
    """
    every = [row + r for r in range(count)]
    if wanted is None or count == 1:  # a tile without a row that is wanted is left out
        emit(count, row, every)
        return
    half = -(-count // 2)

    def some(rows: int) -> None:
        emit(rows, row, [T.bind(wanted.nearest(r)) for r in every[:rows]])

    with T.If(wanted.has(row, count)):
        with T.Then():
            emit(count, row, every)
        with T.Else(), T.If(wanted.last >= row + half):
            with T.Then():
                some(count)
            with T.Else():
                some(half)


def _row(work: Dense, r: Any) -> tuple[Any, Any]:
    """Return the batch's index and the row in it of a row of all."""
    if work.batch == 1:
        return (0, r)
    return (r, 0) if work.m == 1 else (r // work.m, r % work.m)


def row_at(work: Dense, r: Any, k: Any) -> tuple[Any, Any, Any]:
    """Return the index in (batch, m, k) of element ``k`` of row ``r`` of all."""
    return (*_row(work, r), k)


def add_rows(work: Dense, width: int, lanes: int, y: Any, sums: Sequence[Any], row: Any, panel: Any) -> None:
    """Emit the addition of what :func:`store_rows` without an epilogue stored to the sums of a tile."""

    def emit(panel: Any, valid: int) -> None:
        for r, total in enumerate(sums):
            at = _row(work, row + r)

            def element(j: Any, total: Any = total, at: Any = at) -> None:
                batch, row_of_batch = at
                store(total, [j], total[j] + y[batch, row_of_batch, panel * width + j])

            vectors(valid, lanes, element)

    block_of(panel, work.n, width, emit)


def store_rows(
    work: Dense, width: int, lanes: int, epilogue: Epilogue, operands: Sequence[Any], y: Any, sums: Sequence[Any], row: Any, panel: Any
) -> None:
    """Emit the epilogue of a tile; the last panel stores only the columns that there are."""
    out = Tensor((work.batch, work.m, work.n))

    def emit(panel: Any, valid: int) -> None:
        for r, total in enumerate(sums):
            at = _row(work, row + r)

            def element(j: Any, total: Any = total, at: Any = at) -> None:
                index = [*at, panel * width + j]
                store(y, index, finish(epilogue, operands, out, total[j], index))

            vectors(valid, lanes, element)

    block_of(panel, work.n, width, emit)


class Row:
    """One row of a buffer as :func:`store_rows` reads it."""

    def __init__(self, buffer: Any, row: Any) -> None:
        self.buffer, self.row = buffer, row

    def __getitem__(self, j: Any) -> Any:
        return self.buffer[self.row, j]


def in_vectors(count: int, size: int, dtype: str, source: Callable[[Any], Any], target: Callable[[Any, Any], None]) -> None:
    """Emit ``target(number, values)`` for the vectors of ``size`` neighbours that ``count`` of them make, zeros behind the last.

    ``source(index)`` loads elements of type ``dtype``.
    """
    whole, rest = divmod(count, size)
    if whole:
        with T.serial(0, whole) as i:
            target(i, source(T.ramp(i * size, 1, size)))
    if rest:
        tail, lane = T.alloc_buffer((size,), dtype), T.ramp(0, 1, size)
        store(tail, [lane], T.broadcast(tirx.const(0, dtype), size))
        for j in range(rest):
            store(tail, [j], source(whole * size + j))
        target(whole, tail[lane])
