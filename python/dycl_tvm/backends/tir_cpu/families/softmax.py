# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Softmax and log-softmax over one axis: maximum, exponentials with their sum, scaling, while the row is in cache.

Relative error of y: (|x - maximum| + 8) 2^-24, for the difference is rounded before its exponential is taken; twice that is
the absolute error of a log-softmax. Results under 1e-38 may be 0. NaN in a row, or a row of -inf, gives NaN in all of it, as PyTorch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families import vector_math
from dycl_tvm.backends.tir_cpu.families.dense import block_of, fill, merge, vectors
from dycl_tvm.backends.tir_cpu.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.machine import Machine

#: Vectors that are under way at once.
_CHAINS = 4


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two; b where one is NaN (a softmax's sum spreads NaN anyway)."""
    return tirx.Select(a > b, a, b)


def across(buffer: Any, lanes: int, combine: Callable[[Any, Any], Any]) -> None:
    """Emit the reduction of a buffer's lanes into its first element."""
    half = lanes // 2
    while half:
        merge(buffer, buffer, half, half, combine, half)
        half //= 2


def along(n: int, lanes: int, emit: Callable[[int, int, Any], None], chains: int = _CHAINS) -> None:
    """Emit ``emit(chain, lane, element)`` for n elements in memory order, ``chains`` vectors at a time."""
    step = chains * lanes
    done = n // step * step

    def block(base: Any, size: int) -> None:
        for start in range(0, size, lanes):

            def element(v: Any, start: int = start) -> None:
                emit(start // lanes, v, base + start + v)

            vectors(min(lanes, size - start), lanes, element)

    if done:
        with T.serial(0, n // step) as i:
            block(i * step, step)
    if n > done:
        block(done, n - done)


def pieces_of(rows: int, machine: Machine) -> int:
    """Return in how many pieces independent rows are cut."""
    return min(rows, 4 * machine.cores)


def reduce_row(n: int, lanes: int, identity: float, value: Callable[[Any], Any], combine: Callable[[Any, Any], Any]) -> Any:
    """Emit the reduction of ``value(element)`` over n elements; return a buffer whose first element is the result."""
    chains = [T.alloc_buffer((lanes,), "float32") for _ in range(min(_CHAINS, -(-n // lanes)))]
    for chain in chains:
        fill(chain, lanes, lanes, identity)
    along(n, lanes, lambda c, v, j: store(chains[c], [v], combine(chains[c][v], value(j))))
    first = chains[0]
    for chain in chains[1:]:
        merge(first, chain, lanes, lanes, combine)
    across(first, lanes, combine)
    return first


def softmax_row(
    n: int,
    lanes: int,
    load: Callable[[Any], Any],
    put: Callable[[Any, Any], None],
    again: Callable[[Any], Any],
    settle: Callable[[Any], None] = lambda peak: None,
) -> tuple[Any, Any]:
    """Emit one row: exponentials of ``load`` less its maximum to ``put``; return buffers with the maximum and the sum as first elements.

    ``settle`` may change the maximum before it is used.
    """
    peak = reduce_row(n, lanes, -math.inf, load, larger)
    settle(peak)
    chains = [T.alloc_buffer((lanes,), "float32") for _ in range(min(_CHAINS, -(-n // lanes)))]
    for chain in chains:
        fill(chain, lanes, lanes)

    def element(c: int, v: Any, j: Any) -> None:
        put(j, vector_math.exp_of_difference(load(j) + tirx.const(-1, "float32") * peak[0]))
        store(chains[c], [v], chains[c][v] + again(j))

    along(n, lanes, element)
    first = chains[0]
    for chain in chains[1:]:
        merge(first, chain, lanes, lanes, operator.add)
    across(first, lanes, operator.add)
    return peak, first


def softmax(shape: Sequence[int], axis: int, machine: Machine, log: bool = False) -> Any:
    """Return the PrimFunc (x, y) of a float32 tensor's softmax or log-softmax over one axis.

    Rows are independent pieces; one long row runs on one core.
    """
    axis %= len(shape)
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    lanes = machine.lanes
    seconds = outer * n * inner * 6e-9 / lanes

    def body(x: Any, y: Any) -> None:
        x = T.decl_buffer((outer, n, inner), "float32", data=x.data)
        y = T.decl_buffer((outer, n, inner), "float32", data=y.data)
        pieces = pieces_of(outer, machine)
        if outer == 1 and inner >= 2 * lanes:
            columns = -(-inner // lanes)
            pieces = pieces_of(columns, machine)
            with parallel(pieces, machine, seconds) as piece, T.serial(piece * columns // pieces, (piece + 1) * columns // pieces) as c:
                _column_block(x, y, 0, c, n, inner, lanes, log)
            return
        with parallel(pieces, machine, seconds) as piece, T.serial(piece * outer // pieces, (piece + 1) * outer // pieces) as row:
            if inner == 1:
                _row(x, y, row, n, lanes, log)
            else:
                with T.serial(0, -(-inner // lanes)) as c:
                    _column_block(x, y, row, c, n, inner, lanes, log)

    return prim_func([("x", tuple(shape), "float32"), ("y", tuple(shape), "float32")], body)


def _row(x: Any, y: Any, row: Any, n: int, lanes: int, log: bool) -> None:
    peak, total = softmax_row(n, lanes, lambda j: x[row, j, 0], lambda j, e: store(y, [row, j, 0], e), lambda j: y[row, j, 0])
    rest = T.alloc_buffer((1,), "float32")
    if log:
        store(rest, [0], tirx.log(total[0]))
        minus = tirx.const(-1, "float32")
        along(n, lanes, lambda c, v, j: store(y, [row, j, 0], (x[row, j, 0] + minus * peak[0]) + minus * rest[0]))
    else:
        store(rest, [0], tirx.const(1, "float32") / total[0])
        along(n, lanes, lambda c, v, j: store(y, [row, j, 0], y[row, j, 0] * rest[0]))


def _column_block(x: Any, y: Any, row: Any, block: Any, n: int, inner: int, lanes: int, log: bool) -> None:
    """Emit a vector of neighbouring columns, each a softmax of its own."""

    def emit(at: Any, count: int) -> None:
        first = at * lanes
        peak, total = T.alloc_buffer((lanes,), "float32"), T.alloc_buffer((lanes,), "float32")
        minus = tirx.const(-1, "float32")
        each = lambda fn: vectors(count, lanes, fn)  # noqa: E731
        each(lambda v: store(peak, [v], tirx.const(-math.inf, "float32")))
        each(lambda v: store(total, [v], tirx.const(0, "float32")))
        with T.serial(0, n) as k:
            each(lambda v: store(peak, [v], larger(peak[v], x[row, k, first + v])))
        with T.serial(0, n) as k:
            each(lambda v: store(y, [row, k, first + v], vector_math.exp_of_difference(x[row, k, first + v] + minus * peak[v])))
            each(lambda v: store(total, [v], total[v] + y[row, k, first + v]))
        if log:
            with T.serial(0, count) as v:
                store(total, [v], tirx.log(total[v]))
            with T.serial(0, n) as k:
                each(lambda v: store(y, [row, k, first + v], (x[row, k, first + v] + minus * peak[v]) + minus * total[v]))
        else:
            each(lambda v: store(total, [v], tirx.const(1, "float32") / total[v]))
            with T.serial(0, n) as k:
                each(lambda v: store(y, [row, k, first + v], y[row, k, first + v] * total[v]))

    block_of(block, inner, lanes, emit)
