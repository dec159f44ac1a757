# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products and convolutions in bfloat16 by AVX512-BF16 against float64; the bounds are in bf16_utils.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
from bf16_utils import CASES, Checker, array, check, conv, matmul, typed, workloads
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX512, BF16, needs

from dycl_tvm.backends.tir_cpu.database import Choice, key_of
from dycl_tvm.backends.tir_cpu.families import bf16_conv, bf16_dense
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.dot_convolution import DotPlan
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense

MACHINE = machine_of(BF16)
CPU = needs(BF16)
CHECKER = Checker(bf16_dense.FAMILY, bf16_conv.FAMILY, BF16)


# ---- products --------------------------------------------------------------------------------------------------------


@CPU
@pytest.mark.parametrize(
    "work",
    [Dense(1, 1, 10, 512), Dense(1, 1, 2, 3), Dense(4, 1, 33, 9), Dense(3, 5, 17, 21), Dense(1, 70, 100, 40)],
    ids=str,
)
def test_products(work: Dense) -> None:
    plans = bf16_dense.FAMILY.plans(typed(work), MACHINE)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    for plan in {plans[0], plans[len(plans) // 2]}:
        CHECKER.check_dense(work, plan)


@CPU
@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 150), st.integers(1, 70), st.integers(0, 11))
def test_random_products(batch: int, m: int, n: int, k: int, choice: int) -> None:
    work = Dense(batch, m, n, k)
    plans = bf16_dense.FAMILY.plans(typed(work), MACHINE)
    CHECKER.check_dense(work, plans[choice % len(plans)])


@CPU
def test_rows_in_blocks() -> None:
    work = Dense(1, 61, 40, 100)
    plan = bf16_dense.Bf16DensePlan(0.0, rows=4, vectors=1, splits=1, row_pieces=2, column_pieces=1)
    small = replace(MACHINE, l2=3 * 2 * work.k * 4 * 3)  # three tiles of rows fit
    x, w = array(1, work.m, work.k), array(work.k, work.n)
    check(CHECKER.run_dense(work, plan, x, w, machine=small), matmul, x, w, work.k)


@pytest.mark.parametrize("m, k, n", [(128, 768, 3072), (197, 3072, 768), (3136, 96, 384), (16, 768, 768)])
def test_tiles_of_many_rows(m: int, k: int, n: int) -> None:
    """So many sums are under way that an instruction waits for none, and a row of the weights is loaded for several rows."""
    plan = bf16_dense.FAMILY.plans(typed(Dense(1, m, n, k)), MACHINE)[0]
    assert plan.rows * plan.vectors * plan.splits >= 16 and plan.rows >= 4 and plan.vectors > 1
    assert bf16_dense.FAMILY.finer(typed(Dense(1, m, n, k)), plan, MACHINE).rows <= 4


@CPU
def test_rounding_is_to_nearest_even_on_both_sides() -> None:
    CHECKER.check_rounding()


@CPU
def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    CHECKER.check_nan_and_infinity()


# ---- convolutions ----------------------------------------------------------------------------------------------------


@CPU
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    work = CASES[name]
    plans = bf16_conv.FAMILY.plans(typed(work), MACHINE)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    CHECKER.check_conv(work, plans[0])


@CPU
@pytest.mark.parametrize(
    "name, values",
    [
        ("channels_no_multiple", {"blocks": 1, "rows": 2, "columns": 3, "output_parts": 1, "parts": 3}),
        ("stride_2", {"blocks": 1, "rows": 1, "columns": 4, "output_parts": 1, "parts": 4}),
        ("3x3", {"blocks": 2, "rows": 4, "columns": 3, "output_parts": 2, "parts": 2}),
        ("groups_of_blocks", {"blocks": 2, "rows": 1, "columns": 6, "output_parts": 2, "parts": 2}),
        ("pointwise", {"blocks": 3, "rows": 1, "columns": 6, "output_parts": 1, "parts": 4}),
        ("pointwise_stride_padding", {"blocks": 2, "rows": 1, "columns": 3, "output_parts": 1, "parts": 3}),
        ("one_dimension", {"blocks": 1, "rows": 1, "columns": 6, "output_parts": 1, "parts": 4}),
    ],
)
def test_other_tiles(name: str, values: dict[str, int]) -> None:
    CHECKER.check_conv(CASES[name], DotPlan(0.0, **values))


@CPU
@settings(max_examples=5, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 11))
def test_random_convolutions(work: Conv2D, choice: int) -> None:
    plans = bf16_conv.FAMILY.plans(typed(work), MACHINE)
    CHECKER.check_conv(work, plans[choice % len(plans)])


# ---- who may use it --------------------------------------------------------------------------------------------------


def test_the_cpu_decides() -> None:
    found = {
        cpu: machine_of(tvm.target.Target({"kind": "llvm", "mcpu": cpu})).bf16
        for cpu in ("znver4", "sapphirerapids", "x86-64-v4", "znver3")
    }
    assert found == {"znver4": True, "sapphirerapids": True, "x86-64-v4": False, "znver3": False}
    assert not machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "mattr": ["-avx512bf16"]})).bf16
    assert machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512bf16"]})).bf16


@pytest.mark.parametrize("work", [Dense(1, 16, 768, 768), Dense(1, 1, 1000, 2048), conv((64, 256), (32, 32), (1, 1))], ids=str)
def test_only_who_asks_gets_it(work: Any, tmp_path: Any) -> None:
    family = bf16_dense.FAMILY if isinstance(work, Dense) else bf16_conv.FAMILY
    assert family.plans(typed(work), MACHINE)
    assert not family.plans(work, MACHINE)
    assert not family.plans(typed(work), machine_of(AVX512))
    for accuracy, bf16 in (("strict", False), ("default", False), ("bf16", True)):
        selector = Selector(MACHINE, KernelOptions(accuracy=accuracy, database=str(tmp_path / "none.json")), BF16)
        chosen = selector.product(work) if isinstance(work, Dense) else selector.convolution(work)
        assert chosen is not None and (chosen.name == "bf16") == bf16
    # a measured choice holds for CPUs with the instructions only
    selector.database.keep(key_of(work, MACHINE, "bf16"), Choice(chosen.name, chosen.plan.params, 1e-6))
    selector.database.save()
    other = Selector(machine_of(AVX512), selector.options, AVX512)
    chosen = other.product(work) if isinstance(work, Dense) else other.convolution(work)
    assert chosen is not None and chosen.name != "bf16"


def test_not_taken() -> None:
    assert not bf16_dense.FAMILY.plans(typed(Dense(1, 4, 4, 4, constant=False)), MACHINE)
    assert not bf16_dense.FAMILY.plans(typed(Dense(2, 4, 4, 4, shared=False)), MACHINE)
    plain = replace(CASES["3x3"], x=replace(CASES["3x3"].x, block=1))
    for work in (plain, conv((32, 32), (5, 5), (3, 3), groups=8)):
        assert not bf16_conv.FAMILY.plans(typed(work), MACHINE)
