# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels of 8-bit integers for ARM's three instruction sets, on emulated CPUs: exact, for the largest sums too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from arm_emulation import A57, CPUS, Cpu, innermost, run
from int8_utils import conv, convolved, dense, numbers
from kernel_utils import Kernel, pack, unpack

from dycl_tvm.backends.tir_cpu.families import int8_conv, int8_dense, int8_depthwise
from dycl_tvm.backends.tir_cpu.words.machine import machine_of

pytestmark = pytest.mark.xdist_group("emulated kernels")
CPU = pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.mcpu)


def _packed(family: Any, work: Any, plan: Any, cpu: Cpu, weights: Any) -> Any:
    """Return the packed weights: by this machine, as a build does it."""
    machine = machine_of(cpu.target)
    return Kernel(family.pack(work, plan, machine))([weights], family.packed(work, plan, machine).physical, "int8")


def _convolutions(cpu: Cpu) -> Iterator[tuple[Any, Any]]:
    """Yield families and workloads."""
    t, one, around = cpu.target, (1, 1), (1, 1, 1, 1)
    yield int8_conv.FAMILY, conv(t, 2, 19, 22, (7, 9), (3, 3), one, around, 1, 1)
    yield int8_conv.FAMILY, replace(conv(t, 1, 20, 33, (9, 11), (3, 3), (2, 2), (1, 1, 0, 2), 1, 1), border=77)
    yield int8_conv.FAMILY, conv(t, 2, 40, 33, (7, 7), one, one, (0, 0, 0, 0), 1, 1)
    yield int8_conv.FAMILY, conv(t, 1, 16, 24, (8, 9), one, (2, 2), (0, 0, 0, 0), 1, 2)
    yield int8_conv.FAMILY, conv(t, 1, 9, 8, (2, 3), one, one, (0, 0, 0, 0), 1, 1)
    planes = replace(conv(t, 1, 3, 20, (12, 21), (5, 5), (2, 2), (2, 2, 2, 2), 1, 1), border=200)
    yield int8_conv.FAMILY, replace(planes, x=replace(planes.x, block=1))
    yield int8_depthwise.FAMILY, conv(t, 1, 10, 10, (9, 10), (3, 3), (2, 1), around, 1, 10)
    yield int8_depthwise.FAMILY, conv(t, 2, 5, 5, (7, 7), (5, 5), one, (2, 2, 2, 2), 1, 5)
    yield int8_depthwise.FAMILY, conv(t, 1, 8, 8, (5, 4), (3, 3), one, (2, 2, 2, 2), 2, 8)


@CPU
def test_convolutions(cpu: Cpu, tmp_path: Path) -> None:
    kernels, expected = [], []
    for family, work in _convolutions(cpu):
        machine = machine_of(cpu.target)
        x, w = numbers(0, 255, *work.x.shape), numbers(-128, 127, *work.weight_shape)
        plans = family.plans(work, machine)
        for plan in dict.fromkeys((plans[0], plans[-1])):
            y = np.full(work.y.physical, 99, np.int32)
            kernels.append((family.kernel(work, plan, machine), [pack(x, work.x.block), _packed(family, work, plan, cpu, w), y]))
            expected.append((work, plan, convolved(work, x, w)))
    for (work, plan, sums), found in zip(expected, run(cpu, kernels, tmp_path)):
        np.testing.assert_array_equal(unpack(found, work.y), sums, f"{work} {plan}")


@CPU
def test_products(cpu: Cpu, tmp_path: Path) -> None:
    kernels, expected, machine = [], [], machine_of(cpu.target)
    for work in (dense(1, 1, 2, 3), dense(1, 1, 70, 130), dense(3, 7, 33, 43)):
        plans = int8_dense.FAMILY.plans(work, machine)
        x, w = numbers(0, 255, work.batch, work.m, work.k), numbers(-128, 127, work.k, work.n)
        for plan in (plans[0], plans[-1]):
            kernels.append((work, plan, x, w))
    for byte in (0, 255):  # the largest and the least of all sums of two products
        for weight in (-128, 127):
            work = dense(1, 2, 16, 64)
            kernels.append(
                (work, int8_dense.FAMILY.plans(work, machine)[0], np.full((1, 2, 64), byte, np.uint8), np.full((64, 16), weight, np.int8))
            )
    made = []
    for work, plan, x, w in kernels:
        y = np.full((work.batch, work.m, work.n), 99, np.int32)
        made.append((int8_dense.FAMILY.kernel(work, plan, machine), [x, _packed(int8_dense.FAMILY, work, plan, cpu, w), y]))
        expected.append(x.astype(np.int64) @ w.astype(np.int64))
    for sums, found in zip(expected, run(cpu, made, tmp_path)):
        np.testing.assert_array_equal(found, sums)


def test_instructions_follow_the_target() -> None:
    assert [(m.isa, m.dotprod, m.i8mm) for m in (machine_of(cpu.target) for cpu in CPUS)] == [
        ("neon", False, False), ("neon", True, False), ("neon", True, True)
    ]  # fmt: skip
    for triple, mattr in (("aarch64-linux-gnu", ["+dotprod"]), ("aarch64-linux-gnu", ["+dotprod", "+i8mm"])):
        found = machine_of(tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": "generic", "mattr": mattr}))
        assert (found.dotprod, found.i8mm) == (True, "+i8mm" in mattr)


@CPU
def test_innermost_loops_do_little_but_multiply(cpu: Cpu) -> None:
    machine = machine_of(cpu.target)
    around, nothing = (1, 1, 1, 1), (0, 0, 0, 0)
    for family, work in (
        (int8_conv.FAMILY, conv(cpu.target, 1, 64, 64, (28, 28), (3, 3), (1, 1), around, 1, 1)),
        (int8_conv.FAMILY, conv(cpu.target, 1, 64, 64, (28, 28), (1, 1), (1, 1), nothing, 1, 1)),
        (int8_dense.FAMILY, dense(1, 16, 64, 256)),
    ):
        loops = innermost(family.kernel(work, family.plans(work, machine)[0], machine), cpu)
        tightest = min(len(body) / body.count(cpu.instruction) for body in loops)
        # a word for all lanes, its weights and the loop itself beside one instruction of products, or three
        assert tightest < (4.3 if cpu is A57 else 1.7), (work, [Counter(body) for body in loops])
