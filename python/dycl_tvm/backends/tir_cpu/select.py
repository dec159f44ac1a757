# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which family computes a workload, and with which tiles: what was measured if anything was, the cost model otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import tvm_ffi

from dycl_tvm.backends.tir_cpu import tuning
from dycl_tvm.backends.tir_cpu.database import Choice, Database, key_of
from dycl_tvm.backends.tir_cpu.families import (
    amx_conv,
    amx_dense,
    bf16_conv,
    bf16_dense,
    conv_direct,
    conv_winograd,
    dense,
    dense_blocked,
    depthwise,
    grouped,
    int8_conv,
    int8_dense,
    int8_depthwise,
    int8_depthwise_narrow,
    weights_only,
)
from dycl_tvm.backends.tir_cpu.families.family import Candidate, Family, W
from dycl_tvm.backends.tir_cpu.families.products import first_rows
from dycl_tvm.backends.tir_cpu.options import Accuracy, KernelOptions
from dycl_tvm.backends.tir_cpu.words.cost import overlapped
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import FLOAT32, Conv2D, Dense

CONVOLUTIONS: tuple[Family[Conv2D, Any], ...] = (
    conv_direct.FAMILY,
    conv_winograd.FAMILY,
    depthwise.FAMILY,
    grouped.FAMILY,
    bf16_conv.FAMILY,
    amx_conv.FAMILY,
    int8_conv.FAMILY,
    int8_depthwise.FAMILY,
    int8_depthwise_narrow.FAMILY,
)
PRODUCTS: tuple[Family[Dense, Any], ...] = (
    dense.FAMILY,
    dense_blocked.FAMILY,
    bf16_dense.FAMILY,
    amx_dense.FAMILY,
    int8_dense.FAMILY,
    weights_only.FAMILY,
)

#: The types that factors may be rounded to, beside their own.
_ROUNDED: dict[Accuracy, tuple[str, ...]] = {"bf16": ("bfloat16",), "bf16x3": ("bfloat16x3",)}

#: What streaming of weights reaches, over the machine's bandwidth; and the part of the shorter of streaming and computing that the longer
#: does not hide.
_STREAM, _OVERLAP = 1.7, 0.4


#: Rows for which a product may have a body of its own, and how many times as many rows are to be computed without it.
_FEW_ROWS, _WASTED = (1, 2, 3), 1.3


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
        Whether calls decide sizes: a convolution's family is then chosen for one image too, not for the largest batch alone, and tiles of
        a product are of few rows.
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
        self._convolutions: dict[Conv2D, Candidate[Conv2D] | None] = {}
        self._products: dict[Dense, Candidate[Dense] | None] = {}
        self._fewer: dict[Candidate[Dense], tuple[Candidate[Dense], ...]] = {}

    def convolution(self, work: Conv2D) -> Candidate[Conv2D] | None:
        """Return how a convolution is computed, or None if no family takes it."""
        return self._choose(self._convolutions, work, CONVOLUTIONS)

    def product(self, work: Dense) -> Candidate[Dense] | None:
        """Return how a product with constant right side is computed, or None."""
        return self._choose(self._products, work, PRODUCTS)

    def fewer(self, chosen: Candidate[Dense]) -> tuple[Candidate[Dense], ...]:
        """Return how few rows of a product are computed where calls decide how many there are, the fewest first.

        That is for numbers of rows of which the chosen kernel computes more than :data:`_WASTED` times as many, in whole tiles. Each reads
        the weights as they are packed for it.
        """
        if chosen not in self._fewer:
            self._fewer[chosen] = tuple(self._of_few_rows(chosen))
        return self._fewer[chosen]

    def _of_few_rows(self, chosen: Candidate[Dense]) -> Iterator[Candidate[Dense]]:
        tile = getattr(chosen.plan, "rows", 1)
        for rows in _FEW_ROWS if self.varied and tile else ():
            work = first_rows(chosen.work, rows)
            if work is not None and -(-rows // tile) * tile > _WASTED * rows:
                ranked = sorted(self._candidates(work, PRODUCTS), key=self._seconds_of)
                yield from islice((c for c in ranked if self._packs_alike(c, chosen)), 1)

    def _packs_alike(self, a: Candidate[Dense], b: Candidate[Dense]) -> bool:
        """Whether two kernels read the same packed weights."""
        if a.work.dtypes != b.work.dtypes or a.packed(self.machine) != b.packed(self.machine):
            return False
        return bool(tvm_ffi.structural_equal(a.pack(self.machine), b.pack(self.machine), map_free_vars=True))

    def choices(self) -> int:
        """Return for how many workloads a plan was chosen."""
        return sum(chosen is not None for chosen in (*self._convolutions.values(), *self._products.values()))

    def workloads(self) -> list[tuple[Conv2D | Dense, list[Candidate[Any]]]]:
        """Return what was asked for, each with all that could compute it, the chosen one first."""
        found: list[tuple[Conv2D | Dense, list[Candidate[Any]]]] = []
        for work, conv in self._convolutions.items():
            if conv is not None:
                found.append((work, [conv, *(c for c in self._candidates(work, CONVOLUTIONS) if c != conv)]))
        for product, chosen in self._products.items():
            if chosen is not None:
                found.append((product, [chosen, *(c for c in self._candidates(product, PRODUCTS) if c != chosen)]))
        return found

    def save(self) -> None:
        """Keep what was measured."""
        if self.measured:
            self.database.save()

    def _choose(self, known: dict[W, Candidate[W] | None], work: W, families: Sequence[Family[W, Any]]) -> Candidate[W] | None:
        if work not in known:
            known[work] = self._best(work, families)
        return known[work]

    def _best(self, work: W, families: Sequence[Family[W, Any]]) -> Candidate[W] | None:
        candidates = self._candidates(work, families)
        if not candidates:
            return None
        key = key_of(work, self.machine, self.options.accuracy, self.cold)
        tuning_allowed = len(candidates) > 1 and not self.options.disabled_families and self._seconds < self.options.tune
        if tuning_allowed and not self.database.own(key):
            return self._tuned(key, candidates)
        known = self.database.find(key)
        # a plan that its family would not make today may not mean the same any more
        same = next((c for c in candidates if known is not None and (c.name, c.plan.params) == (known.family, known.params)), None)
        if same is not None and known is not None:
            self.found += 1
            return replace(same, plan=replace(same.plan, seconds=known.seconds))
        single: dict[str, float] = self._of_one_image(work) if self.varied and isinstance(work, Conv2D) else {}
        # the least product of two times is the least mean of their ratios
        best = min(candidates, key=lambda c: self._seconds_of(c) * single.get(c.name, 1.0))
        finer = getattr(best.family, "finer", None) if self.varied else None
        if finer is not None:
            best = replace(best, plan=finer(best.work, best.plan, self.machine))
        return best

    def _of_one_image(self, work: Conv2D) -> dict[str, float]:
        """Return the seconds that each family would take for one image of a batch."""
        one = replace(work, x=replace(work.x, shape=(1, *work.x.shape[1:])), y=replace(work.y, shape=(1, *work.y.shape[1:])))
        found: dict[str, float] = {}
        if one == work:  # the ranks of squares are those of the numbers
            return found
        for candidate in self._candidates(one, CONVOLUTIONS):
            found[candidate.name] = min(found.get(candidate.name, math.inf), self._seconds_of(candidate))
        return found

    def _candidates(self, work: W, families: Sequence[Family[W, Any]]) -> list[Candidate[W]]:
        """Return all ways to compute a workload, in all types that the accuracy allows."""
        typed: list[W] = [work]
        if work.dtypes == FLOAT32:
            typed += [work.with_weights(dtype) for dtype in _ROUNDED.get(self.options.accuracy, ())]
        allowed = [f for f in families if f.name not in self.options.disabled_families]
        found = [Candidate(w, f, p) for w in typed for f in allowed for p in f.plans(w, self.machine)]
        return [c for c in found if c.plan.strict or self.options.accuracy != "strict"]

    def _seconds_of(self, candidate: Candidate[Any]) -> float:
        """Return the estimate of a plan, with its weights read from memory if they are not in a cache."""
        seconds = candidate.plan.seconds
        if not self.cold:
            return seconds
        return overlapped(seconds, candidate.packed(self.machine).nbytes / (_STREAM * 1e9 * self.machine.bandwidth), _OVERLAP)

    def _tuned(self, key: str, candidates: Sequence[Candidate[W]]) -> Candidate[W]:
        if self.progress is not None:
            self.progress("tune", int(self._seconds), int(self.options.tune))
        start = time.perf_counter()
        fastest, seconds = tuning.measure(candidates, self.machine, self.target, self.cold)
        self._seconds += time.perf_counter() - start
        self.database.keep(key, Choice(fastest.name, fastest.plan.params, seconds))
        self.measured += 1
        return fastest
