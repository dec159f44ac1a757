# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products and convolutions in bfloat16 against float64.

Element by element |error| <= (2 u + u^2 + (k + 8) 2^-23) sum |x w| with u = 2^-8, and for random numbers at most 4e-3 of the
largest of a hundred outputs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import kernel_utils as ku
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX512, Kernel, pack, relu_with_bias, unpack

from dycl_tvm.backends.tir_cpu.database import key_of
from dycl_tvm.backends.tir_cpu.families import bf16_conv, bf16_dense
from dycl_tvm.backends.tir_cpu.machine import machine_of
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.workload import Conv2D, Dense, Epilogue, Plan, Tensor
from dycl_tvm.runtime.trailer import cpu_flags

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"})
MACHINE = machine_of(TARGET)
CPU = pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="this CPU has no AVX512-BF16")
U = 2.0**-8
ERROR = 4e-3


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype="float32")


def check(actual: Any, exact: Any, magnitudes: Any, k: int) -> None:
    """``magnitudes``: the sums of the absolute products."""
    assert (np.abs(actual - exact) <= (2 * U + U**2 + (k + 8) * 2.0**-23) * (magnitudes + 4)).all()
    if exact.size >= 100:  # fewer may all be small by cancellation
        assert np.abs(actual - exact).max() <= ERROR * np.abs(exact).max()


# ---- products --------------------------------------------------------------------------------------------------------


def run_dense(work: Dense, plan: Plan, x: Any, w: Any, epilogue: Epilogue | None = None, operands: tuple[Any, ...] = ()) -> Any:
    family = bf16_dense.FAMILY
    packed = Kernel(family.pack(work, plan, MACHINE))([w], family.packed_shape(work, plan, MACHINE))
    kernel = Kernel(family.kernel(work, plan, MACHINE, *([epilogue] if epilogue else [])), TARGET)
    return kernel([x, packed, *operands], (work.batch, work.m, work.n))


def check_dense(work: Dense, plan: Plan) -> None:
    x, w, bias = array(work.batch, work.m, work.k), array(work.k, work.n), array(1, 1, work.n)
    y = run_dense(work, plan, x, w, _bias_relu(work), (bias,))
    exact = np.maximum(x.astype("float64") @ w + bias, 0)
    check(y, exact, np.abs(x).astype("float64") @ np.abs(w), work.k)


def _bias_relu(work: Dense) -> Epilogue:
    plain = relu_with_bias(Tensor((1, work.n)))
    return replace(plain, operands=(Tensor((1, 1, work.n)),))


@CPU
@pytest.mark.parametrize(
    "work",
    [Dense(1, 1, 10, 512), Dense(1, 1, 2, 3), Dense(4, 1, 33, 9), Dense(3, 5, 17, 21), Dense(1, 70, 100, 40)],
    ids=str,
)
def test_products(work: Dense) -> None:
    plans = bf16_dense.FAMILY.plans(work, MACHINE, "bf16")
    assert plans == sorted(plans, key=lambda p: p.seconds)
    for plan in {plans[0], plans[len(plans) // 2]}:
        check_dense(work, plan)


@CPU
@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 150), st.integers(1, 70), st.integers(0, 11))
def test_random_products(batch: int, m: int, n: int, k: int, choice: int) -> None:
    work = Dense(batch, m, n, k)
    plans = bf16_dense.FAMILY.plans(work, MACHINE, "bf16")
    check_dense(work, plans[choice % len(plans)])


@CPU
def test_rows_in_blocks() -> None:
    work = Dense(1, 61, 40, 100)
    plan = bf16_dense.FAMILY.plans(work, MACHINE, "bf16")[0]
    params = {**dict(plan.params), "rows": 4, "vectors": 1, "splits": 1, "row_pieces": 2, "column_pieces": 1}
    plan = Plan("bf16", tuple(params.items()), 0.0)
    small = replace(MACHINE, l2=3 * 2 * work.k * 4 * 3)  # three tiles of rows fit
    x, w = array(1, work.m, work.k), array(work.k, work.n)
    family = bf16_dense.FAMILY
    packed = Kernel(family.pack(work, plan, small))([w], family.packed_shape(work, plan, small))
    y = Kernel(family.kernel(work, plan, small), TARGET)([x, packed], (1, work.m, work.n))
    check(y, x.astype("float64") @ w, np.abs(x).astype("float64") @ np.abs(w), work.k)


@CPU
def test_rounding_is_to_nearest_even_on_both_sides() -> None:
    values = np.float32([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -(1 + 2**-8), 3.0e38, 2.0**-100, 0.0])
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert expected[1] == 1 and expected[2] == 1 + 2**-6 and expected[3] == 1 + 2**-7
    n = len(values)
    work = Dense(1, n, n, n)
    plan = bf16_dense.FAMILY.plans(work, MACHINE, "bf16")[0]
    one = np.eye(n, dtype="float32")
    np.testing.assert_array_equal(run_dense(work, plan, np.diag(values)[None], one)[0].diagonal(), expected)
    np.testing.assert_array_equal(run_dense(work, plan, one[None], np.diag(values))[0].diagonal(), expected)


@CPU
def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    work = Dense(1, 4, 5, 7)
    plan = bf16_dense.FAMILY.plans(work, MACHINE, "bf16")[0]
    x, w = array(1, 4, 7), np.abs(array(7, 5))
    # a NaN whose set bits would all be rounded away, or carried into the sign
    x[0, 1, 2], x[0, 2, 3], x[0, 3] = np.uint32(0x7F800001).view("float32"), np.inf, np.abs(x[0, 3])
    y = run_dense(work, plan, x, w)
    assert np.isfinite(y[0, 0]).all() and np.isnan(y[0, 1]).all() and np.isposinf(y[0, 2]).all()
    w[1, 1], w[2, 2], w[3, 3] = np.inf, np.uint32(0x7FFFFFFF).view("float32"), np.uint32(0x7F800001).view("float32")
    y = run_dense(work, plan, x, w)
    assert np.isfinite(y[0, 3, [0, 4]]).all() and np.isposinf(y[0, 3, 1]) and np.isnan(y[0, 3, 2:4]).all()


# ---- convolutions ----------------------------------------------------------------------------------------------------


conv = functools.partial(ku.conv, lanes=16)


def check_conv(work: Conv2D, plan: Plan) -> None:
    x, weights = array(*work.x.shape), array(*work.weight_shape)
    bias, other = array(work.y.shape[1]), array(*work.y.shape)
    plain = relu_with_bias(work.y)
    epilogue = Epilogue((*plain.operands, work.y), lambda v, loads: plain.element(v + loads[1], loads[:1]), "residual")
    family = bf16_conv.FAMILY
    packed = Kernel(family.pack(work, plan, MACHINE))([weights], family.packed_shape(work, plan, MACHINE))
    arrays = [pack(x, 16), packed, pack(bias.reshape(1, -1, 1, 1), 16), pack(other, 16)]
    ours = unpack(Kernel(family.kernel(work, plan, MACHINE, epilogue), TARGET)(arrays, work.y.physical), work.y)

    def exact(x: Any, w: Any) -> Any:
        top, left, bottom, right = work.padding
        padded = F.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
        return F.conv2d(padded, torch.from_numpy(w).double(), None, work.stride, 0, work.dilation, work.groups).numpy()

    expected = np.maximum(exact(x, weights) + bias.reshape(-1, 1, 1) + other, 0)
    check(ours, expected, exact(np.abs(x), np.abs(weights)), weights[0].size)


ONES = (1, 1, 1, 1)
CASES = {
    "3x3": conv((16, 40), (9, 10), (3, 3), padding=ONES, batch=2),
    "channels_no_multiple": conv((20, 13), (7, 11), (3, 3), padding=ONES),
    "few_channels": conv((5, 16), (7, 6), (3, 3), padding=ONES),
    "stride_2": conv((16, 16), (11, 12), (3, 3), stride=2, padding=ONES),
    "asymmetric_padding": conv((8, 16), (6, 7), (3, 2), padding=(2, 0, 0, 1)),
    "dilation": conv((8, 8), (9, 9), (3, 3), padding=(3, 3, 3, 3), dilation=3),
    "pointwise": conv((24, 40), (5, 7), (1, 1), batch=2),
    "pointwise_stride": conv((16, 24), (7, 7), (1, 1), stride=2),
    "pointwise_stride_padding": conv((16, 24), (7, 8), (1, 1), stride=2, padding=(1, 3, 2, 0)),
    "one_position": conv((24, 40), (1, 1), (1, 1), batch=5),
    "mostly_padding": conv((16, 16), (1, 1), (3, 3), padding=ONES, batch=2),
    "no_tap_inside": conv((8, 8), (2, 2), (3, 3), padding=(4, 4, 4, 4)),
    "groups_of_blocks": conv((32, 96), (6, 6), (3, 3), padding=ONES, groups=2),
    "one_dimension": conv((8, 16), (1, 40), (1, 5), padding=(0, 2, 0, 2)),
}


@CPU
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    work = CASES[name]
    plans = bf16_conv.FAMILY.plans(work, MACHINE, "bf16")
    assert plans == sorted(plans, key=lambda p: p.seconds)
    check_conv(work, plans[0])


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
    check_conv(CASES[name], Plan("bf16", tuple(values.items()), 0.0))


@st.composite
def workloads(draw: Any) -> Conv2D:
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation = draw(st.integers(1, 2))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    size = tuple(draw(st.integers((kernel[k] - 1) * dilation + 1, 12)) for k in (0, 1))
    channels = (draw(st.integers(1, 40)), draw(st.integers(1, 60)))
    return conv(channels, size, kernel, draw(st.integers(1, 3)), padding, dilation, 1, draw(st.integers(1, 2)))


@CPU
@settings(max_examples=5, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 11))
def test_random_convolutions(work: Conv2D, choice: int) -> None:
    plans = bf16_conv.FAMILY.plans(work, MACHINE, "bf16")
    check_conv(work, plans[choice % len(plans)])


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
    assert family.plans(work, MACHINE, "bf16")
    assert not family.plans(work, MACHINE, "default") and not family.plans(work, MACHINE, "strict")
    assert not family.plans(work, machine_of(AVX512), "bf16")
    for accuracy, bf16 in (("strict", False), ("default", False), ("bf16", True)):
        selector = Selector(MACHINE, KernelOptions(accuracy=accuracy, database=str(tmp_path / "none.json")), TARGET)
        chosen = selector.product(work) if isinstance(work, Dense) else selector.convolution(work)
        assert chosen is not None and (chosen[0].name == "bf16") == bf16
    # a measured choice holds for CPUs with the instructions only
    selector.database.keep(key_of(work, MACHINE, "bf16"), chosen[1], 1e-6)
    selector.database.save()
    other = Selector(machine_of(AVX512), selector.options, AVX512)
    chosen = other.product(work) if isinstance(work, Dense) else other.convolution(work)
    assert chosen is not None and chosen[0].name != "bf16"


def test_not_taken() -> None:
    assert not bf16_dense.FAMILY.plans(Dense(1, 4, 4, 4, constant=False), MACHINE, "bf16")
    assert not bf16_dense.FAMILY.plans(Dense(2, 4, 4, 4, shared=False), MACHINE, "bf16")
    plain = replace(CASES["3x3"], x=replace(CASES["3x3"].x, block=1))
    for work in (plain, conv((32, 32), (5, 5), (3, 3), groups=8)):
        assert not bf16_conv.FAMILY.plans(work, MACHINE, "bf16")
