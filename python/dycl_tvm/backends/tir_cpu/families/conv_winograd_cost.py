# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What Winograd convolutions cost, and the tile sizes worth a look; conv_winograd.py has the algorithm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dycl_tvm.backends.tir_cpu.families.conv_winograd_loops import Shape
from dycl_tvm.backends.tir_cpu.words.cost import overlapped
from dycl_tvm.backends.tir_cpu.words.loops import is_parallel
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D

#: Speeds of the caches, in units of the memory's.
_L2, _L3 = 28.0, 7.0


@dataclass(frozen=True)
class _Costs:
    """Measured, in units of a multiply-add of the core's peak: of a multiply-add, and of the transform of a tile of a block of channels."""

    product: float
    transform: dict[int, float]
    latency: int  # multiply-adds in flight that a core needs


_WIDE = _Costs(1.03, {2: 27.0, 4: 110.0}, 4)  # a 512-bit store counts two
_NARROW = _Costs(1.08, {2: 20.0, 4: 76.0}, 7)


@dataclass(frozen=True)
class Work:
    """Seconds of one core for all of a kernel: input transform, products and output transform, streaming of weights."""

    input: float
    output: float
    stream: float

    @property
    def seconds(self) -> float:
        compute = self.input + self.output
        return overlapped(compute, self.stream)  # hardware prefetches, but not perfectly


def work_of(s: Shape, machine: Machine) -> Work:
    multiply_add = 2e-9 * s.lanes / machine.gflops
    costs = _WIDE if machine.vector_bytes == 64 else _NARROW
    # blocks are of two sizes, and so are groups
    counts = Counter(((b + 1) * s.rows // s.blocks - b * s.rows // s.blocks) * s.tiles[1] for b in range(s.blocks))
    products = 0
    for n, groups in Counter(s.groups).items():
        # loads keep up with multiply-adds as long as they are no more
        step = max(n * s.cols, n + s.cols, costs.latency)
        tiles = sum(blocks * -(-count // s.cols) for count, blocks in counts.items())
        products += groups * s.transform.a**2 * tiles * (s.ci * step + 2 * n * s.cols + 4)
    transform = costs.transform[s.m] * s.rows * s.tiles[1]
    vectors = 4.0 * s.lanes * s.transform.a**2  # bytes of a vector in each of the products
    weights = vectors * s.oc_blocks * s.ci
    scratch = vectors * s.block_rows * s.tiles[1] * (s.ic_blocks + s.oc)
    all_scratch = vectors * s.rows * s.tiles[1] * (s.ic_blocks + s.oc_blocks)
    memory = 1e9 * machine.bandwidth
    missed = min(1.0, max(0.0, 2 * weights / machine.l3 - 1.5))  # of the last level cache
    rate = memory * (_L2 if weights + scratch < 0.75 * machine.l2 else _L3)
    stream = s.blocks * weights * ((1 - missed) / rate + missed / memory)
    # written and read once: latency, which nothing hides
    moved = 0.0 if scratch < machine.l1 else 2 * all_scratch / (memory * (_L2 if scratch < machine.l2 else 0.5 * _L2))
    output = costs.product * products + transform * s.oc_blocks
    return Work(transform * s.ic_blocks * multiply_add, output * multiply_add + moved + 3e-7, stream)


def launches(s: Shape, split: int, work: Work) -> list[tuple[int, float]]:
    """Return what the kernel launches: pieces, and seconds of all of them on one core. A split kernel does that for each block."""
    if not split:
        return [(s.blocks, work.seconds)]
    return [(s.ic_blocks, work.input / s.blocks), (len(s.groups), (work.seconds - work.input) / s.blocks)]


def seconds_of(s: Shape, split: int, machine: Machine) -> float:
    """Estimate the seconds of a kernel with all cores."""
    total = 0.0
    for pieces, seconds in launches(s, split, work_of(s, machine)):
        if is_parallel(pieces, machine, seconds):
            seconds = seconds / pieces * -(-pieces // machine.cores) + machine.launch
        total += seconds * (s.blocks if split else 1)
    return total


def candidates(work: Conv2D, machine: Machine, m: int) -> list[tuple[int, int, int, int]]:
    """Return (oc, cols, blocks, split) worth an estimate."""
    shape = Shape(work, m, 1, 1, 1, machine.lanes)
    found = []
    blocks = sorted({min(shape.rows, b) for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, shape.rows)})
    most = 12 if machine.registers == 16 else 20  # accumulators: with more, LLVM spills, or needs longer for no gain
    for oc in range(1, min(shape.oc_blocks, 3 if machine.registers == 16 else 4) + 1):
        for b in blocks:
            count = shape.rows // b * shape.tiles[1]
            for cols in range(1, min(most // oc, count) + 1):
                found += [(oc, cols, b, split) for split in ((0, 1) if b <= 4 else (0,))]
    return found
