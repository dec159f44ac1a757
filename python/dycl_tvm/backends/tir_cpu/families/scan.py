# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Running sums and products along an axis: one pass, from the first element to the last.

Every result has the order of operations of its definition. Sums and products of float32 are kept in float64, those of the 16-bit types
in float32, and rounded where they are stored, which is what PyTorch does on a CPU. Several rows or columns are under way at once, for
each one alone waits for its own last sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.vectors import vectors

#: Seconds of one step of one row or column.
_STEP = 1e-9
#: Rows that are under way at once: more than an addition takes cycles.
_ROWS = 8
#: The types that running values are kept in, where that is not the type itself.
_WIDER = {"float32": "float64", "float16": "float32", "bfloat16": "float32"}


def kernel(lead: int, n: int, tail: int, dtype: str, identity: int, combine: Callable[[Any, Any], Any], machine: Machine) -> Any:
    """Return the PrimFunc (x, y) with y[a, i, b] = identity combined with x[a, 0, b], ..., x[a, i, b].

    Parameters
    ----------
    lead, n, tail : int
        The shape of x and y, both (lead, n, tail).
    dtype : str
        Of x and y; integers wrap around.
    identity : int
        What the scan starts from.
    combine : callable
        From the value so far and the next element.
    machine : Machine
    """
    wide = _WIDER.get(dtype, dtype)
    lanes = machine.vector_bytes // tvm_ffi.dtype(wide).itemsize
    seconds = lead * n * tail * _STEP

    def chains(x: Any, y: Any, width: int, each: Callable[[Callable[[Any], None]], None], at: Callable[[Any, Any], Sequence[Any]]) -> None:
        """Emit ``width`` scans: ``each(emit)`` emits ``emit(chain)`` for all of them, ``at(chain, i)`` is where their elements are."""
        total = T.alloc_buffer((width,), wide)

        def step(c: Any, i: Any) -> None:
            index = tuple(at(c, i))
            store(total, [c], combine(total[c], x[index].astype(wide)))
            store(y, index, total[c].astype(dtype))

        each(lambda c: store(total, [c], tirx.const(identity, wide)))
        with T.serial(0, n) as i:
            each(lambda c: step(c, i))

    def rows(x: Any, y: Any, first: Any, width: int) -> None:
        def each(emit: Callable[[Any], None]) -> None:
            for c in range(width):
                emit(c)

        chains(x, y, width, each, lambda c, i: (first + c, i, 0))

    def columns(x: Any, y: Any, a: Any, first: Any, width: int) -> None:
        chains(x, y, width, lambda emit: vectors(width, lanes, emit), lambda c, i: (a, i, first + c))

    def body(x: Any, y: Any) -> None:
        for first, count, width in _blocks(lead, _ROWS) if tail == 1 else _blocks(tail, lanes):
            with parallel(count if tail == 1 else lead * count, machine, seconds) as piece:
                if tail == 1:
                    rows(x, y, first + piece * width, width)
                else:
                    columns(x, y, piece // count, first + piece % count * width, width)

    return prim_func([("x", (lead, n, tail), dtype), ("y", (lead, n, tail), dtype)], body)


def _blocks(size: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, number, width) of blocks that cover a dimension: full ones, then one that is narrower."""
    if size // width:
        yield 0, size // width, width
    if size % width:
        yield size // width * width, 1, size % width
