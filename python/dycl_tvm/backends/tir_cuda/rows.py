# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A block for each row: softmax, normalisation, and other chains of reductions over the same rows, in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm

from dycl_tvm.backends.tir_cuda.blocks import extents, inlined

_MOST_THREADS = 256


def rows(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule reductions over the last axes, each of a row, and an element-wise block that reads the row's results."""
    found = inlined(fn)
    if found is None:
        return None
    schedule, infos = found
    *reductions, last = infos
    if len(reductions) < 2 or not all(info.is_reduction() for info in reductions) or not last.is_injective():
        return None
    shapes = [extents(info) for info in reductions]
    spatial, reduced = shapes[0]
    if not spatial or not reduced or any(shape != shapes[0] for shape in shapes):
        return None
    loops = schedule.get_loops(last.block_rv)
    sizes = [int(schedule.get(loop).extent) for loop in loops]
    lead = _common_lead(sizes, spatial)
    if lead is None:
        return None
    threads = _threads(math.prod(reduced))
    row = schedule.fuse(*loops[:lead]) if lead else schedule.add_unit_loop(loops[0] if loops else last.block_rv)
    schedule.bind(row, "blockIdx.x")
    rest = loops[lead:] or [schedule.add_unit_loop(last.block_rv)]
    _, tx = schedule.split(schedule.fuse(*rest), [None, threads])
    schedule.bind(tx, "threadIdx.x")
    for info in reversed(reductions):
        block = info.block_rv
        schedule.compute_at(block, row, preserve_unit_loops=True)
        schedule.set_scope(block, 0, "shared")
        inner = schedule.get_loops(block)[-len(reduced) :]
        _, tx = schedule.split(schedule.fuse(*inner), [None, threads])
        schedule.bind(tx, "threadIdx.x")
    return schedule.mod["main"]


def pairs(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a reduction of pairs, an index and its value, over the last axes: a block of threads for each row."""
    found = inlined(fn)
    if found is None:
        return None
    schedule, infos = found
    if len(infos) != 1 or not infos[0].is_reduction() or len(schedule.get(infos[0].block_rv).writes) != 2:
        return None
    spatial, reduced = extents(infos[0])
    if spatial is None or not reduced:
        return None
    loops = schedule.get_loops(infos[0].block_rv)
    row = schedule.fuse(*loops[: len(spatial)]) if spatial else schedule.add_unit_loop(loops[0])
    schedule.bind(row, "blockIdx.x")
    _, tx = schedule.split(schedule.fuse(*loops[len(spatial) :]), [None, _threads(math.prod(reduced))])
    schedule.bind(tx, "threadIdx.x")
    return schedule.mod["main"]


def _threads(width: int) -> int:
    threads = 32
    while threads < _MOST_THREADS and threads * 2 < width:
        threads *= 2
    return threads


def _common_lead(sizes: list[int], spatial: tuple[int, ...]) -> int | None:
    """Return how many of the last block's first loops are the rows."""
    rows = math.prod(spatial)
    for lead in range(len(sizes) + 1):
        if math.prod(sizes[:lead]) == rows:
            return lead if _without_ones(sizes[:lead]) == _without_ones(spatial) else None
    return None


def _without_ones(values: Sequence[int]) -> list[int]:
    return [v for v in values if v != 1]
