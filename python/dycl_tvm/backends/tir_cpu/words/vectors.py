# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rows of elements in registers: whole vectors and what is left of one, sums of them, their lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.tiles import pieces

#: Vectors that are under way at once.
CHAINS = 4


def zeros(count: int, width: int) -> list[Any]:
    """Declare accumulators: one small buffer each, so that all of them live in registers."""
    return [T.alloc_buffer((width,), "float32") for _ in range(count)]


def vectors(width: int, lanes: int, emit: Callable[[Any], None]) -> None:
    """Emit ``emit(element)`` for the elements of a row of ``width``, as whole vectors and at most one shorter one."""
    for start in range(0, width, lanes):
        size = min(lanes, width - start)
        if size == 1:
            emit(start)
            continue
        with T.vectorized(0, size) as v:
            emit(start + v)


def fill(buffer: Any, width: int, lanes: int, value: float = 0.0) -> None:
    """Emit stores of one value."""
    vectors(width, lanes, lambda j: store(buffer, [j], tirx.const(value, "float32")))


def merge(into: Any, other: Any, width: int, lanes: int, combine: Callable[[Any, Any], Any], offset: int = 0) -> None:
    """Emit into[j] = combine(into[j], other[offset + j])."""
    vectors(width, lanes, lambda j: store(into, [j], combine(into[j], other[j + offset])))


def clear(accumulators: Iterable[Any], width: int, lanes: int) -> None:
    """Emit stores of zero."""
    for total in accumulators:
        fill(total, width, lanes)


def across(buffer: Any, lanes: int, combine: Callable[[Any, Any], Any]) -> None:
    """Emit the reduction of a buffer's lanes into its first element."""
    half = lanes // 2
    while half:
        merge(buffer, buffer, half, half, combine, half)
        half //= 2


def along(n: Any, lanes: int, emit: Callable[[int, int, Any], None], chains: int = CHAINS) -> None:
    """Emit ``emit(chain, lane, element)`` for n elements in memory order, ``chains`` vectors at a time.

    Where ``n`` is an expression, it is a multiple of ``lanes``.
    """

    def block(base: Any, size: int) -> None:
        for start in range(0, size, lanes):

            def element(v: Any, start: int = start) -> None:
                emit(start // lanes, v, base + start + v)

            vectors(min(lanes, size - start), lanes, element)

    pieces(n, chains * lanes, block, lanes)
