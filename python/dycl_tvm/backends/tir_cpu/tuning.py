# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Measuring candidates of a workload on this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from dycl_tvm.backends.tir_cpu.machine import Machine
from dycl_tvm.backends.tir_cpu.workload import NOTHING, Conv2D, Dense, Plan

#: Candidates of one workload that are measured, best estimates first.
_CANDIDATES = 10
#: Seconds for which one candidate is run in a round; rounds go over all candidates, so that what disturbs one disturbs all.
_BURST = 0.008
_ROUNDS = 3


def measure(
    work: Conv2D | Dense, plans: Sequence[tuple[Any, Plan]], machine: Machine, target: Any, cold: bool = False
) -> tuple[Any, Plan, float]:
    """Return (family, plan, seconds) of the fastest candidate.

    Parameters
    ----------
    work : Conv2D or Dense
    plans : sequence of (family, Plan)
        Not empty.
    machine : Machine
    target : tvm.target.Target
        The CPU of this machine.
    cold : bool
        Each call finds its weights in memory, as in a network whose weights do not fit into the caches.
    """
    # TVM's own pool stands in for the runtime's
    tvm.get_global_func("runtime.config_threadpool")(1, min(machine.cores, os.cpu_count() or 1))
    best = sorted(plans, key=lambda p: p[1].seconds)
    # every family has its chance: estimates of different algorithms are the least comparable
    firsts = [next(p for p in best if p[0] is family) for family in dict.fromkeys(p[0] for p in best)]
    chosen = list(dict.fromkeys([*firsts, *best]))[:_CANDIDATES]
    names = [f"candidate_{k}" for k in range(len(chosen))]
    kernels = [family.kernel(work, plan, machine, NOTHING).with_attr("global_symbol", n) for n, (family, plan) in zip(names, chosen)]
    module = tvm.compile(tvm.IRModule(dict(zip(names, kernels))), target=target)
    flush = np.zeros(2 * machine.l3, np.uint8) if cold else None
    runs = [_Run(module[n], [_array(p) for p in fn.params], flush) for n, fn in zip(names, kernels)]
    times = [math.inf] * len(runs)
    for _ in range(_ROUNDS):
        for k, run in enumerate(runs):
            times[k] = min(times[k], run.burst())
    k = int(np.argmin(times))
    return (*chosen[k], times[k])


def _array(buffer: Any) -> Any:
    shape = [int(d) for d in buffer.shape]
    # small values: sums stay far from denormal numbers and infinities
    return tvm.runtime.tensor(np.random.default_rng(0).uniform(-0.1, 0.1, shape).astype("float32"))


class _Run:
    def __init__(self, function: Any, arrays: Sequence[Any], flush: Any = None) -> None:
        self.function, self.arrays, self.flush = function, arrays, flush
        function(*arrays)

    def burst(self) -> float:
        """Return the median seconds of a call."""
        times: list[float] = []
        end = time.perf_counter() + _BURST
        while len(times) < 3 or time.perf_counter() < end:
            if self.flush is not None:
                self.flush += 1  # puts everything else out of the caches
                self.arrays[0].copyfrom(self.arrays[0].numpy())  # but the input, which the kernel before has just written
            start = time.perf_counter()
            self.function(*self.arrays)
            times.append(time.perf_counter() - start)
        return float(np.median(times))
