# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Softmax and log-softmax over one axis: maximum, exponentials with their sum, scaling, while the row is in cache.

Relative error of y: (|x - maximum| + 8) 2^-24, for the difference is rounded before its exponential is taken; twice that is
the absolute error of a log-softmax. Results under 1e-38 may be 0. NaN in a row, or a row of -inf, gives NaN in all of it, as PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words import vector_math
from dycl_tvm.backends.tir_cpu.words.cost import pieces_of_rows
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.softmax_row import larger, softmax_row
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.vectors import along, vectors


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
        pieces = pieces_of_rows(outer, machine)
        if outer == 1 and inner >= 2 * lanes:
            columns = -(-inner // lanes)
            pieces = pieces_of_rows(columns, machine)
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
