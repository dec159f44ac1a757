# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which family computes a workload, and with which tiles: what was measured if anything was, the cost model otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dycl_tvm.backends.tir_cpu import tuning
from dycl_tvm.backends.tir_cpu.database import Database, key_of
from dycl_tvm.backends.tir_cpu.families import (
    amx_conv,
    amx_dense,
    bf16_conv,
    bf16_dense,
    conv_direct,
    conv_winograd,
    dense,
    depthwise,
    grouped,
    int8_conv,
    int8_dense,
    int8_depthwise,
)
from dycl_tvm.backends.tir_cpu.machine import Machine
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.workload import Conv2D, Dense, IntegerDense, Plan

CONVOLUTIONS: tuple[Any, ...] = (
    conv_direct.FAMILY,
    conv_winograd.FAMILY,
    depthwise.FAMILY,
    grouped.FAMILY,
    bf16_conv.FAMILY,
    amx_conv.FAMILY,
)
PRODUCTS: tuple[Any, ...] = (dense.FAMILY, bf16_dense.FAMILY, amx_dense.FAMILY)
#: Those of 8-bit integers.
INTEGER_CONVOLUTIONS: tuple[Any, ...] = (int8_conv.FAMILY, int8_depthwise.FAMILY)
INTEGER_PRODUCTS: tuple[Any, ...] = (int8_dense.FAMILY,)

Chosen = tuple[Any, Plan]

#: What streaming of weights reaches, over the machine's bandwidth; and the part of the shorter of streaming and computing that the longer
#: does not hide.
_STREAM, _OVERLAP = 1.7, 0.4


def _is_integer(work: Conv2D | Dense) -> bool:
    return isinstance(work, IntegerDense) or (isinstance(work, Conv2D) and work.x.dtype == "uint8")


def _families(work: Conv2D | Dense) -> tuple[Any, ...]:
    if isinstance(work, Conv2D):
        return INTEGER_CONVOLUTIONS if _is_integer(work) else CONVOLUTIONS
    return INTEGER_PRODUCTS if _is_integer(work) else PRODUCTS


class Selector:
    """Chooses plans; each workload once.

    Parameters
    ----------
    machine : Machine
    options : KernelOptions
    target : tvm.target.Target
    progress : callable, optional
        Called with (phase, done, total) while candidates are measured.
    weight_bytes : int
        All weights of the network, plain. Where they do not fit into the last cache together, each call finds its weights in
        memory, and a small packed array is worth more than few operations.
    varied : bool
        Whether calls decide sizes: a convolution's family is then chosen for one image too, not for the largest batch alone.
    """

    def __init__(
        self,
        machine: Machine,
        options: KernelOptions,
        target: Any,
        progress: Callable[[str, int, int], None] | None = None,
        weight_bytes: int = 0,
        varied: bool = False,
    ) -> None:
        self.machine, self.options, self.target, self.progress = machine, options, target, progress
        self.varied = varied
        self.database = Database(options.database)
        self.cold = 2 * weight_bytes > machine.l3  # packed arrays of Winograd are two to four times as large
        self.measured = self.found = 0  # choices by measurements of this build, and of a database
        self._seconds = 0.0
        self._chosen: dict[Any, Chosen | None] = {}

    def convolution(self, work: Conv2D) -> Chosen | None:
        """Return (family, plan) for a convolution, or None if no family takes it."""
        return self._choose(work, _families(work))

    def product(self, work: Dense) -> Chosen | None:
        """Return (family, plan) for a product with constant right side, or None."""
        return self._choose(work, _families(work))

    def choices(self) -> int:
        """Return for how many workloads a plan was chosen."""
        return sum(chosen is not None for chosen in self._chosen.values())

    def workloads(self) -> list[tuple[Conv2D | Dense, list[Chosen]]]:
        """Return what was asked for, each with all plans, the chosen one first."""
        found = []
        for work, chosen in self._chosen.items():
            plans = self._plans(work, _families(work))
            if chosen is not None:
                found.append((work, [chosen, *(p for p in plans if p != chosen)]))
        return found

    def save(self) -> None:
        """Keep what was measured."""
        if self.measured:
            self.database.save()

    def _choose(self, work: Any, families: Sequence[Any]) -> Chosen | None:
        if work not in self._chosen:
            self._chosen[work] = self._best(work, families)
        return self._chosen[work]

    def _best(self, work: Any, families: Sequence[Any]) -> Chosen | None:
        plans = self._plans(work, families)
        if not plans:
            return None
        if _is_integer(work):  # measurements are of float32
            return min(plans, key=lambda p: self._seconds_of(work, *p))
        key = key_of(work, self.machine, self.options.accuracy, self.cold)
        tuning_allowed = len(plans) > 1 and not self.options.disabled_families and self._seconds < self.options.tune
        if tuning_allowed and not self.database.own(key):
            return self._tuned(work, key, plans)
        known = self.database.find(key)
        # a plan that its family would not make today may not mean the same any more
        family = next((f for f, p in plans if known is not None and (f.name, p.params) == (known.family, known.params)), None)
        if family is not None and known is not None:
            self.found += 1
            return family, known
        single = self._of_one_image(work, families) if self.varied and isinstance(work, Conv2D) else {}
        # the least product of two times is the least mean of their ratios
        return min(plans, key=lambda p: self._seconds_of(work, *p) * single.get(p[0].name, 1.0))

    def _of_one_image(self, work: Conv2D, families: Sequence[Any]) -> dict[str, float]:
        """Return the seconds that each family would take for one image of a batch."""
        one = replace(work, x=replace(work.x, shape=(1, *work.x.shape[1:])), y=replace(work.y, shape=(1, *work.y.shape[1:])))
        found: dict[str, float] = {}
        for family, plan in self._plans(one, families):
            found[family.name] = min(found.get(family.name, math.inf), self._seconds_of(one, family, plan))
        return found

    def _plans(self, work: Any, families: Sequence[Any]) -> list[Chosen]:
        allowed = [f for f in families if f.name not in self.options.disabled_families]
        return [(f, p) for f in allowed for p in f.plans(work, self.machine, self.options.accuracy)]

    def _seconds_of(self, work: Any, family: Any, plan: Plan) -> float:
        """Return the estimate of a plan, with its weights read from memory if they are not in a cache."""
        if not self.cold:
            return plan.seconds
        stream = 4 * math.prod(family.packed_shape(work, plan, self.machine)) / (_STREAM * 1e9 * self.machine.bandwidth)
        return max(plan.seconds, stream) + _OVERLAP * min(plan.seconds, stream)

    def _tuned(self, work: Any, key: str, plans: Sequence[Chosen]) -> Chosen:
        if self.progress is not None:
            self.progress("tune", int(self._seconds), int(self.options.tune))
        start = time.perf_counter()
        family, plan, seconds = tuning.measure(work, plans, self.machine, self.target, self.cold)
        self._seconds += time.perf_counter() - start
        self.database.keep(key, plan, seconds)
        self.measured += 1
        return family, plan
