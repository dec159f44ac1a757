# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops over the pieces and tiles that cover an extent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T


def pieces(total: Any, size: int, emit: Callable[[Any, int], None], unit: int = 1) -> None:
    """Emit ``emit(first, count)`` for pieces of ``size`` that cover ``total``: the whole ones in a loop, then what is left.

    Where ``total`` is an expression, a multiple of ``unit``, what is left comes by units, of which ``size`` is a multiple.
    """
    if not isinstance(total, int):
        whole = T.bind(tirx.truncdiv(total, size))
        with T.serial(0, whole) as index:
            emit(index * size, size)
        if size > unit:
            with T.serial(0, tirx.truncdiv(total, unit) - whole * (size // unit)) as index:
                emit(whole * size + index * unit, unit)
        return
    whole = total // size
    if whole:
        with T.serial(0, whole) as index:
            emit(index * size, size)
    if total % size:
        emit(whole * size, total % size)


def block_of(index: Any, total: int, size: int, emit: Callable[[Any, int], None]) -> None:
    """Emit ``emit(index, count)`` for one of the blocks of ``size`` that cover ``total``: ``count`` is what it has of it."""
    whole, rest = divmod(total, size)
    if not rest:
        emit(index, size)
    elif not whole:
        emit(0, rest)
    else:
        with T.If(index < whole):
            with T.Then():
                emit(index, size)
            with T.Else():
                emit(whole, rest)


def even_tiles(total: int, size: int, index: Any, emit: Callable[[int, Any], None]) -> None:
    """Emit ``emit(rows, first row)`` for tile ``index`` of ceil(total / size) tiles whose sizes differ by at most one."""
    tiles = -(-total // size)
    base, more = divmod(total, tiles)
    if not more:
        emit(base, index * base)
        return
    with T.If(index < more):
        with T.Then():
            emit(base + 1, index * (base + 1))
        with T.Else():
            emit(base, index * base + more)


def first_of_tile(total: int, size: int, index: Any) -> Any:
    """Return the first row of tile ``index`` of those of :func:`even_tiles`."""
    base, more = divmod(total, -(-total // size))
    return index * base + (tirx.min(index, more) if more else 0)
