# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An estimate of the cycles of a tiled kernel: what the choice among tiles rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dycl_tvm.backends.tir_cuda.device import Gpu

#: Cycles that a step waits for global memory and at barriers, where nothing else is there to run.
_STEP_LATENCY = 600
#: Cycles between two instructions of a warp that depend on each other.
_DEPENDENT = 4
#: Instructions to copy one element to shared memory.
_COPY = 8
#: Cycles that a second launch costs, and that a partial result costs a lane to write or read.
_SECOND_LAUNCH = 4000
_PER_PARTIAL = 16
_MOST_BLOCKS = 16
_MOST_THREADS = 2048


@dataclass(frozen=True)
class Tiled:
    """A kernel that goes in ``steps`` through what it adds up, copies ``elements`` to shared memory in each, and computes from there.

    Attributes
    ----------
    blocks, threads : int
        Of the grid, of a block.
    steps, elements : int
    rows, columns : int
        Results of a thread: it loads ``rows + columns`` values for ``rows * columns`` products.
    terms : int
        Products for each result.
    """

    blocks: int
    threads: int
    steps: int
    elements: int
    rows: int
    columns: int
    terms: int


def cycles(kernel: Tiled, gpu: Gpu) -> float:
    """Return the larger of two: all instructions at the rate of the multiprocessors, and one thread's instructions with their waits."""
    products = kernel.rows * kernel.columns
    compute = kernel.terms * (products + kernel.rows + kernel.columns)
    instructions = compute + kernel.steps * math.ceil(kernel.elements / kernel.threads) * _COPY
    lanes = math.ceil(kernel.threads / gpu.warp) * gpu.warp
    on_each = math.ceil(kernel.blocks / gpu.multiprocessors)
    together = max(1, min(on_each, _MOST_THREADS // lanes, 2 * gpu.shared_bytes // (kernel.elements * 4), _MOST_BLOCKS))
    rate = on_each * lanes * instructions / gpu.lanes
    chain = math.ceil(on_each / together) * (instructions * _DEPENDENT / min(products, 4) + kernel.steps * _STEP_LATENCY)
    return max(rate, chain)


@dataclass(frozen=True)
class Mma:
    """A kernel for tensor cores: ``elements`` are copied to shared memory in each of the ``steps``, then ``macs`` are done."""

    blocks: int
    threads: int
    steps: int
    elements: int
    macs: int
    shared_bytes: int


def mma_cycles(kernel: Mma, gpu: Gpu, macs: int) -> float:
    """Return the larger of two, as :func:`cycles` does: the rate of the multiprocessors, and one block's steps with their waits.

    ``macs`` is how many products the tensor cores of a multiprocessor add up in a cycle.
    """
    on_each = math.ceil(kernel.blocks / gpu.multiprocessors)
    together = max(1, min(on_each, _MOST_THREADS // kernel.threads, 2 * gpu.shared_bytes // kernel.shared_bytes, _MOST_BLOCKS))
    copy = kernel.elements * _COPY / gpu.lanes
    step = copy + kernel.macs / macs
    ends = kernel.shared_bytes / 4 * _COPY / gpu.lanes + 2 * _STEP_LATENCY
    return max(on_each * (kernel.steps * step + ends), math.ceil(on_each / together) * (kernel.steps * (_STEP_LATENCY + step) + ends))


def adding_up(parts: int, results: int, gpu: Gpu) -> float:
    """Return the cycles that a second launch takes, which adds up the parts of each result; none for one part."""
    return _SECOND_LAUNCH + (parts + 1) * results / (gpu.multiprocessors * gpu.lanes) * _PER_PARTIAL if parts > 1 else 0.0
