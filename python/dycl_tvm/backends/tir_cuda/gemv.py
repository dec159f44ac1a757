# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of a matrix and a few vectors, where the matrix is stored with the results side by side: a warp reads a row of it at once.

A block computes 32 results: the threads of a warp take one each, so their loads of the matrix are of neighbouring elements, and the
warps share the terms. Bound by the bandwidth of memory, as it must be: each weight is used once.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from dycl_tvm.backends.tir_cuda.blocks import single_reduction
from dycl_tvm.backends.tir_cuda.device import gpu_of

_COLUMNS = 32
#: More vectors than this are worth a tiled product.
_MOST_VECTORS = 4
_LEAST_TERMS = 32


def gemv(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a reduction over one axis whose results lie side by side in the larger operand."""
    parts = single_reduction(fn)
    if parts is None or len(parts.reduced) != 1 or not parts.spatial:
        return None
    schedule, reduction, last = parts.schedule, parts.reduction, parts.last
    columns, terms = parts.spatial[-1], parts.reduced[0]
    vectors = math.prod(parts.spatial[:-1])
    if columns < _COLUMNS or terms < _LEAST_TERMS or vectors > _MOST_VECTORS or not _side_by_side(schedule.get(reduction)):
        return None
    if last is None:
        last = schedule.cache_write(reduction, 0, "local")
    loops = schedule.get_loops(last)
    if int(schedule.get(loops[-1]).extent) != columns:
        return None
    blocks = vectors * math.ceil(columns / _COLUMNS)
    # few blocks: more warps in each, so that enough loads are on their way
    warps = 8 if blocks >= 4 * gpu_of(target).multiprocessors else 16
    n0, n1 = schedule.split(loops[-1], [None, _COLUMNS])
    schedule.bind(schedule.fuse(*loops[:-1], n0), "blockIdx.x")
    schedule.bind(n1, "threadIdx.x")
    schedule.compute_at(reduction, n1, preserve_unit_loops=True)
    schedule.set_scope(reduction, 0, "local")
    k = schedule.get_loops(reduction)[-1]
    _, ty = schedule.split(k, [None, warps])
    schedule.bind(ty, "threadIdx.y")
    return schedule.mod["main"]


def _side_by_side(block: Any) -> bool:
    """Whether the operand with both axes has the results last."""
    spatial = [v.var for v in block.iter_vars if int(v.iter_type) == tirx.IterVar.DataPar]
    reduced = [v.var for v in block.iter_vars if int(v.iter_type) != tirx.IterVar.DataPar]
    for read in block.reads:
        starts = [r.min for r in read.region]
        if any(s.same_as(reduced[0]) for s in starts) and any(s.same_as(spatial[-1]) for s in starts):
            return bool(starts[-1].same_as(spatial[-1]))
    return False
