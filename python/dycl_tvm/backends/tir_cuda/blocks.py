# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The blocks of an unscheduled PrimFunc, as the rules look at them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import s_tir
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline


@dataclass(frozen=True)
class Parts:
    """A function of one reduction: what is computed before it was inlined, what follows is one block or none.

    Attributes
    ----------
    schedule : Schedule
    reduction : SBlockRV
    last : SBlockRV, optional
        Computes the result from that of the reduction, element by element.
    spatial, reduced : tuple of int
        The extents of the reduction's axes.
    """

    schedule: Any
    reduction: Any
    last: Any
    spatial: tuple[int, ...]
    reduced: tuple[int, ...]


def inlined(fn: Any) -> tuple[Any, list[Any]] | None:
    """Return a schedule in which all is inlined that can be, and the blocks that remain; None for other forms of functions."""
    schedule = s_tir.Schedule(fn)
    infos = normalize_prim_func(schedule)
    if not infos:
        return None
    return schedule, try_inline(schedule, infos)


def single_reduction(fn: Any) -> Parts | None:
    """Return the parts of a function with one reduction."""
    found = inlined(fn)
    if found is None:
        return None
    schedule, infos = found
    if not 1 <= len(infos) <= 2 or not infos[0].is_reduction() or (len(infos) == 2 and not infos[1].is_injective()):
        return None
    spatial, reduced = extents(infos[0])
    if spatial is None or reduced is None:
        return None
    last = infos[1].block_rv if len(infos) == 2 else None
    if last is not None and math.prod(loop_extents(schedule, last)) != math.prod(spatial):
        return None  # the result is of another size: broadcast, or only a part of it
    return Parts(schedule, infos[0].block_rv, last, spatial, reduced)


def extents(info: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the extents of the spatial and of the reduction axes; None where they are not numbers or not in that order."""
    kinds = info.dom_kind()
    if kinds.lstrip("S").strip("R"):
        return None, None
    sizes = [int(i.dom) for i in info.iters]
    n = kinds.count("S")
    return tuple(sizes[:n]), tuple(sizes[n:])


def loop_extents(schedule: Any, block: Any) -> list[int]:
    """Return the extents of the loops around a block."""
    return [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]


def bind_fused(schedule: Any, loops: list[Any], threads: int) -> Any:
    """Spread loops over blocks of ``threads`` threads; return the loop of the threads."""
    fused = schedule.fuse(*loops)
    extent = int(schedule.get(fused).extent)
    bx, tx = schedule.split(fused, [None, min(threads, extent)])
    schedule.bind(bx, "blockIdx.x")
    schedule.bind(tx, "threadIdx.x")
    return tx


def threads_for(elements: int, multiprocessors: int, most: int = 256) -> int:
    """Return a size of blocks such that few elements still reach all multiprocessors."""
    threads = most
    while threads > 32 and elements < 2 * multiprocessors * threads:
        threads //= 2
    return threads


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    return [d for d in range(1, number + 1) if number % d == 0]
