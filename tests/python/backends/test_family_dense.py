# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products against float64: |error| <= (k + 8) 2^-24 (|a| |b|), the bound of any order of summation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, Kernel, machine, needs
from tvm import tirx

from dycl_tvm.backends.tir_cpu.families import dense_blocked
from dycl_tvm.backends.tir_cpu.families.dense import FAMILY
from dycl_tvm.backends.tir_cpu.families.family import Family
from dycl_tvm.backends.tir_cpu.families.matmul import matmul
from dycl_tvm.backends.tir_cpu.words.cost import MANY_ROWS
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def on_avx512(*sizes: int) -> Any:
    return pytest.param(Dense(*sizes), AVX512, marks=needs(AVX512))


def bias_relu_residual(work: Dense) -> Epilogue:
    return Epilogue(
        (Tensor((1, 1, work.n)), Tensor((work.batch, work.m, work.n))),
        lambda value, loads: tirx.max(value + loads[0], tirx.const(0, "float32")) + loads[1],
        "bias+relu+residual",
        3,
    )


def check(actual: Any, a: Any, b: Any, finish: Any = lambda v: v) -> None:
    exact = a.astype("float64") @ b.astype("float64")
    bound = (a.shape[-1] + 8) * 2.0**-24 * (np.abs(a).astype("float64") @ np.abs(b) + 4)
    assert (np.abs(actual - finish(exact)) <= bound).all()


def run_dense(work: Dense, plan: Any, target: Any = AVX2, fused: bool = True, family: Family[Dense, Any] = FAMILY) -> None:
    cpu = machine(target)
    x, w = array(work.batch, work.m, work.k), array(work.k, work.n)
    bias, residual = array(1, 1, work.n), array(work.batch, work.m, work.n)
    packed = Kernel(family.pack(work, plan, cpu), target)([w], family.packed(work, plan, cpu).physical)
    kernel = Kernel(family.kernel(work, plan, cpu, bias_relu_residual(work) if fused else NOTHING), target)
    y = kernel([x, packed, *([bias, residual] if fused else [])], (work.batch, work.m, work.n))
    check(y, x, w, (lambda v: np.maximum(v + bias, 0) + residual) if fused else lambda v: v)


@pytest.mark.parametrize(
    "work",
    [Dense(1, 1, 10, 512), Dense(1, 1, 2, 3), Dense(1, 1, 1, 1), Dense(4, 1, 33, 9), Dense(3, 5, 17, 21), Dense(1, 15, 40, 24)],
    ids=str,
)
def test_every_other_plan(work: Dense) -> None:
    plans = FAMILY.plans(work, machine())
    assert plans == sorted(plans, key=lambda p: p.seconds)
    for plan in plans[::4]:
        run_dense(work, plan)


@needs(AVX512)
@pytest.mark.parametrize("work", [Dense(1, 1, 100, 37), Dense(2, 7, 50, 20)], ids=str)
def test_avx512(work: Dense) -> None:
    run_dense(work, FAMILY.plans(work, machine(AVX512))[0], AVX512)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 70), st.integers(1, 50), st.booleans(), st.randoms(use_true_random=False))
def test_random_shapes(batch: int, m: int, n: int, k: int, fused: bool, random: Any) -> None:
    work = Dense(batch, m, n, k)
    family: Any = FAMILY if batch * m < MANY_ROWS else dense_blocked.FAMILY
    assert bool(FAMILY.plans(work, machine())) != bool(dense_blocked.FAMILY.plans(work, machine()))
    run_dense(work, random.choice(family.plans(work, machine())), fused=fused, family=family)


@pytest.mark.parametrize("k", [16, 203, 1024])
def test_k_in_pieces(k: int) -> None:
    work = Dense(1, 2, 19, k)
    run_dense(work, replace(FAMILY.plans(work, machine())[0], k_pieces=4))


@pytest.mark.parametrize(("work", "target"), [(Dense(1, 1, 90, 21), AVX2), (Dense(1, 2, 33, 8), AVX2), on_avx512(3, 1, 150, 9)], ids=str)
def test_panels_side_by_side(work: Dense, target: Any) -> None:
    plans = [p for p in FAMILY.plans(work, machine(target)) if p.streams > 1]
    assert plans
    for plan in plans[:3]:
        run_dense(work, plan, target)


def test_weights_in_memory_are_read_side_by_side_and_those_in_a_cache_are_not() -> None:
    for target in (AVX2, AVX512):
        assert FAMILY.plans(Dense(1, 1, 4096, 4096), machine(target))[0].streams > 1
        assert FAMILY.plans(Dense(1, 1, 1000, 512), machine(target))[0].streams == 1


def test_few_rows_are_one_tile_where_registers_allow() -> None:
    for m in (3, 6):
        assert FAMILY.plans(Dense(1, m, 4096, 1024), machine(AVX512))[0].rows == m


def test_a_long_k_over_few_columns_is_cut() -> None:
    assert FAMILY.plans(Dense(1, 1, 4, 1 << 20), machine())[0].k_pieces > 1


@pytest.mark.parametrize(
    ("work", "target"),
    [
        on_avx512(1, 196, 40, 24),
        (Dense(2, 13, 16, 9), AVX2),  # one vector of columns
        on_avx512(16, 1, 33, 2),  # less than a trip of the loop over the sum
        on_avx512(1, 40, 70, 1024),  # rows a page apart, in two blocks of the sum
        (Dense(3, 19, 50, 2311), AVX2),  # four blocks of the sum, the last one shorter
        (Dense(1, 500, 20, 1536), AVX2),  # rows that do not fit L2 at once
    ],
    ids=str,
)
def test_many_rows(work: Dense, target: Any) -> None:
    plans = dense_blocked.FAMILY.plans(work, machine(target))
    assert plans == sorted(plans, key=lambda p: p.seconds)
    for plan in plans:
        run_dense(work, plan, target, family=dense_blocked.FAMILY)
    run_dense(work, replace(plans[0], copied=1 - plans[0].copied, row_pieces=2), target, fused=False, family=dense_blocked.FAMILY)


def test_rows_a_page_apart_are_copied_and_others_are_not() -> None:
    for target in (AVX2, AVX512):
        assert dense_blocked.FAMILY.plans(Dense(1, 128, 768, 3072), machine(target))[0].copied
        assert not dense_blocked.FAMILY.plans(Dense(1, 128, 3072, 768), machine(target))[0].copied


def test_not_taken() -> None:
    assert FAMILY.plans(Dense(1, 4, 4, 4, constant=False), machine()) == []
    assert FAMILY.plans(Dense(2, 4, 4, 4, shared=False), machine()) == []


def test_nan_and_infinity_stay_in_their_rows() -> None:
    work = Dense(1, 3, 5, 7)
    plan = FAMILY.plans(work, machine())[0]
    x, w = array(1, 3, 7), np.abs(array(7, 5))
    x[0, 1, 2], x[0, 2, 3] = np.nan, np.inf
    packed = Kernel(FAMILY.pack(work, plan, machine()))([w], FAMILY.packed(work, plan, machine()).physical)
    y = Kernel(FAMILY.kernel(work, plan, machine()))([x, packed], (1, 3, 5))
    assert np.isfinite(y[0, 0]).all() and np.isnan(y[0, 1]).all() and np.isposinf(y[0, 2]).all()


@pytest.mark.parametrize("cpu", ["x86-64", "cortex-a78"])
def test_other_targets_compile(cpu: str) -> None:
    import tvm

    arm = {"mtriple": "aarch64-linux-gnu"} if "cortex" in cpu else {}
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, **arm})
    work = Dense(1, 9, 21, 33)
    described = machine_of(target)
    assert described.isa == ("neon" if arm else "sse")
    fn = FAMILY.kernel(work, FAMILY.plans(work, described)[0], described, bias_relu_residual(work))
    tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), target=target)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("m, n, k", [(64, 48, 16), (7, 19, 21), (1, 30, 13), (3, 5, 9), (2, 1, 1)])
def test_products_of_run_time_tensors(m: int, n: int, k: int, shared: bool, transposed: bool) -> None:
    work = Dense(2, m, n, k, constant=False, shared=shared)
    a, b = array(2, m, k), array(*([] if shared else [2]), *((n, k) if transposed else (k, n)))
    residual, bias = array(2, m, n), array(1, 1, n)
    kernel = Kernel(matmul(work, machine(), bias_relu_residual(work), transposed))
    y = kernel([a, b, bias, residual], (2, m, n))
    check(y, a, b.swapaxes(-1, -2) if transposed else b, lambda v: np.maximum(v + bias, 0) + residual)
