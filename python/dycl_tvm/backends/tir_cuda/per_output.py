# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A thread for each element of the result: element-wise kernels, and reductions of few terms (pooling, depthwise convolutions)."""

from __future__ import annotations

import math
from typing import Any

import tvm

from dycl_tvm.backends.tir_cuda.blocks import bind_fused, inlined, single_reduction, threads_for
from dycl_tvm.backends.tir_cuda.device import gpu_of

#: More terms than this are worth a group of threads, unless there are many elements.
_FEW_TERMS = 64


def elementwise(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a function without reductions: a launch for each block that could not be inlined."""
    found = inlined(fn)
    if found is None:
        return None
    schedule, infos = found
    if not all(info.is_injective() for info in infos):
        return None
    for info in infos:
        loops = schedule.get_loops(info.block_rv)
        if not loops:
            loops = [schedule.add_unit_loop(info.block_rv)]
        elements = math.prod(int(schedule.get(loop).extent) for loop in loops)
        bind_fused(schedule, loops, threads_for(elements, gpu_of(target).multiprocessors))
    return schedule.mod["main"]


def small_reduction(fn: Any, target: tvm.target.Target) -> Any:
    """Schedule a reduction of few terms: each thread adds up in a register and computes what follows."""
    parts = single_reduction(fn)
    if parts is None or not parts.reduced:
        return None
    gpu = gpu_of(target)
    elements, terms = math.prod(parts.spatial), math.prod(parts.reduced)
    # a group of threads for each element would leave most of them idle; with many elements they are not needed
    if terms > _FEW_TERMS and elements < 64 * gpu.multiprocessors * gpu.warp:
        return None
    schedule, last = parts.schedule, parts.last
    if last is None:
        last = schedule.cache_write(parts.reduction, 0, "local")
    loops = schedule.get_loops(last) or [schedule.add_unit_loop(last)]
    threads = bind_fused(schedule, loops, threads_for(elements, gpu.multiprocessors))
    schedule.compute_at(parts.reduction, threads, preserve_unit_loops=True)
    schedule.set_scope(parts.reduction, 0, "local")
    inner = schedule.get_loops(parts.reduction)[-len(parts.reduced) :]
    if len(inner) > 1 and math.prod(parts.reduced[-2:]) <= 32:
        for loop in inner[-2:]:
            schedule.unroll(loop)
    schedule.decompose_reduction(parts.reduction, inner[0])
    return schedule.mod["main"]
