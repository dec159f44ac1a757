# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The rows of a product as its kernels count them, over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.vectors import vectors
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Epilogue, Tensor


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
