# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products: a tile of them in registers, step by step of their common extent k."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import prefetch, store
from dycl_tvm.backends.tir_cpu.words.tiles import pieces
from dycl_tvm.backends.tir_cpu.words.vectors import across, clear, merge, vectors, zeros

#: Steps of k in the body of the innermost loop; more only lengthens the code.
_UNROLL = 4
#: Vectors of a row up to which a step of a product goes row by row (measured: with 4 it is three times slower so).
_FEW_VECTORS = 3
#: Bytes of a line of a cache, and elements of 32 bits in it.
_LINE, _LINE_ELEMENTS = 64, 16


def multiply_add(
    accumulators: Sequence[Any],
    width: int,
    lanes: int,
    steps: Any,
    left: Callable[[int, Any], Any],
    right: Callable[[Any, Any], Any],
    splits: int = 1,
) -> None:
    """Emit accumulators[row * splits + s][j] += sum over the k with k % splits == s of left(row, k) * right(k, j).

    ``steps`` is the extent of k, as :func:`along_k` takes it.
    """

    def step(k: Any, split: int) -> None:
        add_products(accumulators[split::splits], width, lanes, lambda row: left(row, k), lambda j: right(k, j))

    along_k(steps, splits, step)


def add_products(totals: Sequence[Any], width: int, lanes: int, left: Callable[[int], Any], right: Callable[[Any], Any]) -> None:
    """Emit totals[row][j] += left(row) * right(j): one step of a product."""

    def add(row: int, start: int) -> None:
        with T.vectorized(0, min(lanes, width - start)) as v:
            j = start + v
            store(totals[row], [j], totals[row][j] + left(row) * right(j))

    for row, start in in_order(len(totals), width, lanes):
        add(row, start)


def in_order(rows: int, width: int, lanes: int) -> list[tuple[int, int]]:
    """Return the (row, first column of a vector) of a tile in the order in which a step of a product goes through them.

    Column by column all rows' factors stay in registers, row by row all columns' do. LLVM keeps the order, and spills what does not fit.
    """
    starts = range(0, width, lanes)
    by_rows = len(starts) <= _FEW_VECTORS and len(starts) < rows
    return [(r, s) for r in range(rows) for s in starts] if by_rows else [(r, s) for s in starts for r in range(rows)]


def unrolled(splits: int) -> int:
    """Return the steps of k in the body of the loop of :func:`along_k`."""
    return -(-_UNROLL // splits) * splits


def along_k(steps: Any, splits: int, step: Callable[[Any, int], None], first: Callable[[Any], None] | None = None) -> None:
    """Emit ``step(k, k % splits)`` for all k < ``steps``, some in the body of the loop, each trip of which begins with ``first(trip)``.

    Where ``steps`` is an expression, it is a multiple of :func:`unrolled` of ``splits``.
    """
    unroll = unrolled(splits)
    if not isinstance(steps, int) or steps >= unroll:
        with T.serial(0, steps // unroll if isinstance(steps, int) else tirx.truncdiv(steps, unroll)) as block:
            if first is not None:
                first(block)
            for e in range(unroll):
                step(block * unroll + e, e % splits)
    for k in range(steps - steps % unroll, steps) if isinstance(steps, int) else ():
        step(k, k % splits)


def fetching(weights: Any, panel: Any, first: Any, steps: int, splits: int, turn: Any, turns: int) -> Callable[[Any], None]:
    """Return what begins a trip of :func:`along_k` by fetching a part of a panel of weights (steps, width) into L2.

    The tiles of number ``turn`` < ``turns`` fetch the steps from ``first`` on together, while they multiply by the panel before.
    """
    width = int(weights.shape[-1])
    trips = max(1, steps // unrolled(splits))
    lines = -(-steps * width * 4 // _LINE // (trips * turns))

    def fetch(trip: Any) -> None:
        for line in range(lines):
            at = ((turn * trips + trip) * lines + line) * _LINE_ELEMENTS
            prefetch(weights, [panel, first + at // width, at % width], cache=2)

    return fetch


def add_splits(accumulators: Sequence[Any], width: int, lanes: int, splits: int) -> list[Any]:
    """Emit the sum of each row's partial sums; return the rows' accumulators."""
    for row in range(0, len(accumulators), splits):
        first = accumulators[row]
        span = splits
        while span > 1:  # pairwise: a chain of additions would be waited for
            half = (span + 1) // 2
            for s in range(span - half):
                merge(accumulators[row + s], accumulators[row + s + half], width, lanes, operator.add)
            span = half
        assert first is accumulators[row]
    return list(accumulators[::splits])


def dots(rows: int, columns: int, depth: int, lanes: int, left: Callable[[int, Any], Any], right: Callable[[int, Any], Any]) -> list[Any]:
    """Emit the sums along d < depth of left(row, d) * right(column, d), a register each; return a buffer of the columns for each row."""
    sums = zeros(rows * columns, lanes)
    clear(sums, lanes, lanes)

    def step(d: Any, size: int) -> None:
        for k, total in enumerate(sums):

            def add(v: Any, total: Any = total, r: int = k // columns, j: int = k % columns) -> None:
                store(total, [v], total[v] + left(r, d + v) * right(j, d + v))

            vectors(size, lanes, add)

    pieces(depth, lanes, step)
    found = [T.alloc_buffer((columns,), "float32") for _ in range(rows)]
    for k, total in enumerate(sums):
        across(total, lanes, operator.add)
        store(found[k // columns], [k % columns], total[0])
    return found
