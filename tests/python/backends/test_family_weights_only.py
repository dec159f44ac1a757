# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products with weights of 8 and 4 bits: within the stated error of the exact product, for odd sizes and unusual numbers too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from kernel_utils import AVX2, AVX512, VNNI, Kernel, each

from dycl_tvm.backends.tir_cpu.families.weights_only import FAMILY
from dycl_tvm.backends.tir_cpu.words.grouped import BITS
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Dense, DTypes
from dycl_tvm.hcfg.grouped import dequantised, in_bytes

TARGETS = each(AVX2, AVX512, VNNI)


def _work(m: int, n: int, k: int, weights: str, group: int) -> Dense:
    return Dense(1, m, n, k, dtypes=DTypes(weights=weights), group=group)


class _Weights:
    """Random integers from the least to the greatest, and scales of both signs."""

    def __init__(self, work: Dense) -> None:
        generator = torch.Generator().manual_seed(work.n + work.k)
        bits, groups = BITS[work.dtypes.weights], -(-work.k // work.group)
        integers = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), (work.n, work.k), generator=generator)
        self.data, self.scales = in_bytes(integers, bits), torch.randn(work.n, groups, generator=generator)
        self.numbers = dequantised(self.data, self.scales, work.group, work.k)
        plain = integers.float() * self.scales.repeat_interleave(work.group, 1)[:, : work.k]
        assert torch.equal(self.numbers, plain)


def _run(work: Dense, plan: Any, target: Any, weights: _Weights, x: Any) -> Any:
    machine = machine_of(target)
    packed = tvm.runtime.tensor(np.full(FAMILY.packed(work, plan, machine).physical, 77, np.float32))
    Kernel(FAMILY.pack(work, plan, machine)).run(*(tvm.runtime.tensor(t.numpy()) for t in (weights.data, weights.scales)), packed)
    return Kernel(FAMILY.kernel(work, plan, machine), target)([x.numpy(), packed.numpy()], (1, work.m, work.n))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "work",
    [_work(1, 70, 131, "int8", 131), _work(1, 5, 131, "int4", 32), _work(3, 65, 40, "int4", 40), _work(9, 33, 200, "int8", 64)],
    ids=str,
)
def test_products_are_within_the_stated_error(work: Dense, target: Any) -> None:
    weights = _Weights(work)
    x = torch.randn(1, work.m, work.k, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, work.k)
    exact = x[0].double() @ weights.numbers.double().mT
    magnitude = x[0].double().abs() @ weights.numbers.double().abs().mT
    plans = FAMILY.plans(work, machine_of(target))
    assert {p.spread for p in plans} == {0, 1}
    for plan in plans:
        y = torch.from_numpy(_run(work, plan, target, weights, x))[0].double()
        bound = (work.k if plan.spread else -(-work.k // min(work.group, 128)) + 8) * 2.0**-24 * magnitude
        lost = 0 if plan.spread else 2.0**-29 * x.abs().max() * weights.numbers.double().abs().sum(1)
        assert ((y - exact).abs() <= bound + lost).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_reads_memory_in_one_stream(target: Any) -> None:
    """Of a row of weights the tile of a decoder's step reads all columns: streams side by side took 1.7 times as long."""
    work, machine = _work(1, 896, 896, "int4", 64), machine_of(target)
    plan = FAMILY.plans(work, machine)[0]
    assert FAMILY.packed(work, plan, machine).shape[-1] == plan.vectors * machine.lanes


@pytest.mark.parametrize("target", TARGETS)
def test_what_fixed_point_cannot_hold_is_as_in_float32(target: Any) -> None:
    work = _work(6, 20, 72, "int4", 32)
    weights = _Weights(work)
    x = torch.randn(1, 6, 72, generator=torch.Generator().manual_seed(2))
    x[0, 0, 3], x[0, 1, 70], x[0, 2, 40] = float("nan"), float("inf"), -float("inf")
    x[0, 3], x[0, 4, 5] = x[0, 3] * 2.0**116, 2.0**-130
    expected = x[0] @ weights.numbers.mT
    for plan in FAMILY.plans(work, machine_of(target)):
        y = _run(work, plan, target, weights, x)[0]
        np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4)
        assert np.isfinite(y[3]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_no_row_changes_with_what_another_one_holds(target: Any) -> None:
    """Behind a size of the call a row holds what was left in memory."""
    work = _work(6, 20, 72, "int4", 32)
    weights = _Weights(work)
    x = torch.randn(1, 6, 72, generator=torch.Generator().manual_seed(4))
    plan = next(p for p in FAMILY.plans(work, machine_of(target)) if not p.spread)
    before = _run(work, plan, target, weights, x)[0].copy()
    x[0, 1], x[0, 3, 5], x[0, 5, :32] = float("nan"), 2.0**100, 2.0**-130
    others = [0, 2, 4]
    np.testing.assert_array_equal(_run(work, plan, target, weights, x)[0][others], before[others])


@pytest.mark.parametrize("scale", [0.0, 2.0**-140, 2.0**-115, 2.0**-90, 2.0**90])
def test_rows_of_any_size_keep_their_digits(scale: float) -> None:
    work = _work(2, 16, 64, "int8", 64)
    weights = _Weights(work)
    weights.scales *= 2.0**20
    weights.numbers *= 2.0**20
    x = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(3)) * scale
    plan = next(p for p in FAMILY.plans(work, machine_of(AVX2)) if not p.spread)
    y = torch.from_numpy(_run(work, plan, AVX2, weights, x))[0].double()
    magnitude = x[0].double().abs() @ weights.numbers.double().abs().mT
    assert ((y - x[0].double() @ weights.numbers.double().mT).abs() <= 72 * 2.0**-24 * magnitude).all()


def test_groups_that_are_no_whole_vectors_are_left_to_others() -> None:
    machine = machine_of(AVX2)
    assert FAMILY.plans(_work(1, 8, 96, "int4", 32), machine)
    for group in (8, 24, 160):
        assert not FAMILY.plans(_work(1, 8, 320, "int4", group), machine)
