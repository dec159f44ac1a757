# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Measuring candidates of a workload on this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import tvm

from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.family import Candidate
from dycl_tvm.backends.tir_cpu.words import amx
from dycl_tvm.backends.tir_cpu.words.machine import Machine

C = TypeVar("C", bound=Candidate[Any])

#: Candidates of one workload that are measured, best estimates first.
_CANDIDATES = 10
#: Seconds for which one candidate is run in a round; rounds go over all candidates, so that what disturbs one disturbs all.
_BURST = 0.008
_ROUNDS = 3


def shortlist(candidates: Sequence[C], count: int = _CANDIDATES) -> list[C]:
    """Return the candidates worth a measurement: each family's best estimate, then the best of all."""
    best: list[C] = sorted(candidates, key=lambda c: c.plan.seconds)
    # every family has its chance: estimates of different algorithms are the least comparable
    firsts: list[C] = []
    for candidate in best:
        if all(candidate.family is not first.family for first in firsts):
            firsts.append(candidate)
    return [*firsts, *(c for c in best if c not in firsts)][:count]


def measure(candidates: Sequence[C], machine: Machine, target: Any, cold: bool = False) -> tuple[C, float]:
    """Return the fastest of those that are worth a measurement, and its seconds.

    Parameters
    ----------
    candidates : sequence of Candidate
        Of one workload, not empty.
    machine : Machine
    target : tvm.target.Target
        The CPU of this machine.
    cold : bool
        Each call finds its weights in memory, as in a network whose weights do not fit into the caches.
    """
    chosen = shortlist(candidates)
    times = Compiled(chosen, machine, target, cold).seconds(_ROUNDS)
    k = int(np.argmin(times))
    return chosen[k], times[k]


class Compiled:
    """Compiled candidates of one workload; the parameters are those of :func:`measure`."""

    def __init__(self, candidates: Sequence[Candidate[Any]], machine: Machine, target: Any, cold: bool = False) -> None:
        self.machine = machine
        names = [f"candidate_{k}" for k in range(len(candidates))]
        kernels = [c.kernel(machine).with_attr("global_symbol", n) for n, c in zip(names, candidates)]
        if amx.used_by(kernels):
            amx.request()
        module = compile_kernels(dict(zip(names, kernels)), target)
        flush = np.zeros(2 * machine.l3, np.uint8) if cold else None
        self._runs = [_Run(module[n], [_array(p) for p in fn.params], flush) for n, fn in zip(names, kernels)]

    def seconds(self, rounds: int, threads: int | None = None, among: Sequence[int] | None = None) -> list[float]:
        """Return the seconds of each candidate: the least of some rounds in which they take turns.

        Parameters
        ----------
        rounds : int
        threads : int, optional
            By default those that the machine's description has, as far as there are so many.
        among : sequence of int, optional
            The candidates that are measured, and those of the result.
        """
        runs = [self._runs[k] for k in (range(len(self._runs)) if among is None else among)]

        def turns() -> list[float]:
            times = [math.inf] * len(runs)
            for _ in range(rounds):
                for k, run in enumerate(runs):
                    times[k] = min(times[k], run.burst())
            return times

        return _with_threads(min(threads or self.machine.cores, os.cpu_count() or 1), turns)


def _with_threads(threads: int, measurement: Callable[[], list[float]]) -> list[float]:
    """Run a measurement with so many threads in TVM's pool, which stands in for the runtime's.

    Each Python thread has a pool of its own. Left alone it has half as many threads as x86 CPUs, so that on two there is one; the
    variable is read when the pool is made.
    """
    before = os.environ.get("TVM_NUM_THREADS")
    os.environ["TVM_NUM_THREADS"] = str(threads)
    try:
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(measurement).result()
    finally:
        if before is None:
            del os.environ["TVM_NUM_THREADS"]
        else:
            os.environ["TVM_NUM_THREADS"] = before


def _array(buffer: Any) -> Any:
    shape, dtype, random = [int(d) for d in buffer.shape], np.dtype(str(buffer.dtype)), np.random.default_rng(0)
    if np.issubdtype(dtype, np.integer):
        return tvm.runtime.tensor(random.integers(0, 100, shape, dtype))
    # small values: sums stay far from denormal numbers and infinities
    return tvm.runtime.tensor(random.uniform(-0.1, 0.1, shape).astype(dtype))


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
