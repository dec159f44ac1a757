# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Depthwise convolutions against float64: at most 121 products are summed in order, so the error stays below 121 * 2^-24 of their sum."""

from __future__ import annotations

import math

import kernel_utils as ku
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.backends.tir_cpu.families.depthwise import FAMILY
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


def workload(n, c, size, kernel, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), block=8):
    top, left, bottom, right = padding
    height = (size[0] + top + bottom - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    width = (size[1] + left + right - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    x, y = Tensor((n, c, *size), block=block), Tensor((n, c, height, width), block=block)
    return Conv2D(x, y, kernel, stride, padding, dilation, groups=c)


def check(work, target=ku.AVX2, plan=None, with_epilogue=True):
    machine = ku.machine(target)
    plans = FAMILY.plans(work, machine)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    plan = plans[0] if plan is None else next(p for p in plans if p.tile == plan)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("float32") for s in (work.x.shape, work.weight_shape))
    residual, bias = rng.standard_normal(work.y.shape).astype("float32"), rng.standard_normal((1, x.shape[1], 1, 1)).astype("float32")
    top, left, bottom, right = work.padding
    padded = torch.nn.functional.pad(torch.tensor(x).double(), (left, right, top, bottom))
    want = torch.nn.functional.conv2d(padded, torch.tensor(w).double(), None, work.stride, 0, work.dilation, work.groups).numpy()
    epilogue, extra = NOTHING, []
    if with_epilogue:
        one = ku.relu_with_bias(work.y)
        epilogue = Epilogue((*one.operands, work.y), lambda v, loads: one.element(v, loads[:1]) + loads[1], "bias+relu+add", 3)
        want = np.maximum(want + bias, 0) + residual
        extra = [ku.pack(bias, work.y.block), ku.pack(residual, work.y.block)]
    packed = ku.Kernel(FAMILY.pack(work, plan, machine), target)([w], FAMILY.packed(work, plan, machine).physical)
    kernel = ku.Kernel(FAMILY.kernel(work, plan, machine, epilogue), target)
    got = ku.unpack(kernel([ku.pack(x, work.x.block), packed, *extra], work.y.physical), work.y)
    assert np.abs(got - want).max() <= math.prod(work.kernel) * 2e-6


@pytest.mark.parametrize(
    "work",
    [
        workload(2, 20, (9, 11), (3, 3), padding=(1, 1, 1, 1)),
        workload(1, 8, (13, 12), (5, 5), (2, 2), (2, 2, 2, 2)),
        workload(1, 3, (1, 40), (1, 7), padding=(0, 3, 0, 3)),
        workload(1, 16, (7, 7), (11, 11), padding=(5, 5, 5, 5)),
        workload(1, 9, (6, 5), (3, 2), (1, 3), (0, 1, 2, 0), (2, 1)),
        workload(3, 8, (1, 1), (3, 3), padding=(1, 1, 1, 1)),
    ],
    ids=str,
)
def test_hard_shapes(work):
    check(work)


@given(st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_random_shapes(data):
    size = (data.draw(st.integers(1, 14)), data.draw(st.integers(1, 30)))
    kernel = tuple(data.draw(st.integers(1, 5)) for _ in "hw")
    dilation = tuple(data.draw(st.integers(1, 2)) for _ in "hw")
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
    padding = tuple(data.draw(st.integers(0, max(1, reach[k % 2]))) for k in range(4))
    if any(size[k] + padding[k] + padding[k + 2] <= reach[k] for k in (0, 1)):
        padding = (reach[0], reach[1], reach[0], reach[1])
    stride = tuple(data.draw(st.integers(1, 3)) for _ in "hw")
    check(workload(data.draw(st.integers(1, 2)), data.draw(st.integers(2, 20)), size, kernel, stride, padding, dilation))


@ku.needs(ku.AVX512)
def test_every_plan_of_another_width():
    work = workload(1, 20, (8, 26), (3, 3), padding=(1, 1, 1, 1), block=16)
    for plan in FAMILY.plans(work, ku.machine(ku.AVX512)):
        check(work, ku.AVX512, plan.tile, with_epilogue=False)


def test_takes_only_what_it_can():
    machine = ku.machine(ku.AVX2)
    good = workload(1, 16, (8, 8), (3, 3))
    assert FAMILY.plans(good, machine)
    plain = Conv2D(Tensor(good.x.shape), Tensor(good.y.shape), (3, 3), groups=16)
    several = Conv2D(good.x, Tensor((1, 32, 6, 6), block=8), (3, 3), groups=16)
    dense = Conv2D(good.x, good.y, (3, 3), groups=1)
    assert not any(FAMILY.plans(w, machine) for w in (plain, several, dense))


def test_makes_objects_for_arm():
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78"})
    machine = machine_of(target)
    work = workload(1, 6, (9, 9), (3, 3), padding=(1, 1, 1, 1), block=4)
    fn = FAMILY.kernel(work, FAMILY.plans(work, machine)[0], machine).with_attr("global_symbol", "f")
    assert tvm.compile(tvm.IRModule({"f": fn}), target=target) is not None
