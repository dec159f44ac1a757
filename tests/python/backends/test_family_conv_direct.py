# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions compute what the formula says: against float64, all tiles that the plans propose.

Sums of float32 products, each rounded once: the error stays below 2e-6 of the largest output at the sums' lengths used here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, DENORMAL, Kernel, conv, machine, meets_denormals, needs, pack, relu_with_bias, unpack, windows

from dycl_tvm.backends.extents import Extent
from dycl_tvm.backends.tir_cpu.families.conv_direct import FAMILY, DirectMaker
from dycl_tvm.backends.tir_cpu.families.conv_direct_plans import DirectPlan
from dycl_tvm.backends.tir_cpu.words.convolution import Axis, cut
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue

ERROR = 2e-6


def check(work: Conv2D, plan: DirectPlan, target: Any = AVX2, residual: bool = False) -> None:
    rng = np.random.default_rng(0)
    cpu = machine(target)
    x, weights = (rng.standard_normal(s, dtype="float32") for s in (work.x.shape, work.weight_shape))
    bias, other = rng.standard_normal(work.y.shape[1], dtype="float32"), rng.standard_normal(work.y.shape, dtype="float32")
    epilogue = relu_with_bias(work.y)
    if residual:
        plain = epilogue
        epilogue = Epilogue((*plain.operands, work.y), lambda v, loads: plain.element(v + loads[1], loads[:1]), "residual")
    packed = Kernel(FAMILY.pack(work, plan, cpu), target)([weights], FAMILY.packed(work, plan, cpu).physical)
    arrays = [pack(x, work.x.block), packed, pack(bias.reshape(1, -1, 1, 1), work.y.block)]
    if residual:
        arrays.append(pack(other, work.y.block))
    ours = unpack(Kernel(FAMILY.kernel(work, plan, cpu, epilogue), target)(arrays, work.y.physical), work.y)
    top, left, bottom, right = work.padding
    padded = F.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    expected = F.conv2d(
        padded, torch.from_numpy(weights).double(), torch.from_numpy(bias).double(), work.stride, 0, work.dilation, work.groups
    )
    expected = (expected + torch.from_numpy(other) if residual else expected).relu().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=ERROR * max(1.0, abs(expected).max()))


CASES = {
    "11x11_of_few_columns": conv((8, 8), (24, 2), (11, 11), padding=(5, 5, 5, 5)),
    "3x3": conv((16, 24), (9, 10), (3, 3), padding=(1, 1, 1, 1), batch=2),
    "channels_no_multiple": conv((20, 13), (7, 11), (3, 3), padding=(1, 1, 1, 1)),
    "stride_2": conv((16, 16), (11, 12), (3, 3), stride=2, padding=(1, 1, 1, 1)),
    "asymmetric_padding": conv((8, 16), (6, 7), (3, 2), padding=(2, 0, 0, 1)),
    "dilation": conv((8, 8), (9, 9), (3, 3), padding=(3, 3, 3, 3), dilation=3),
    "pointwise": conv((24, 40), (5, 7), (1, 1), batch=2),
    "pointwise_stride": conv((16, 24), (7, 7), (1, 1), stride=2),
    "one_position": conv((24, 40), (1, 1), (1, 1), batch=5),
    "mostly_padding": conv((16, 16), (1, 1), (3, 3), padding=(1, 1, 1, 1), batch=2),
    "no_tap_inside": conv((8, 8), (2, 2), (3, 3), padding=(4, 4, 4, 4)),
    "groups_of_blocks": conv((32, 48), (6, 6), (3, 3), padding=(1, 1, 1, 1), groups=2),
    "plain_7x7": conv((3, 16), (20, 21), (7, 7), stride=2, padding=(3, 3, 3, 3), plain=True),
    "plain_batch": conv((1, 8), (6, 9), (3, 3), padding=(1, 1, 1, 1), batch=3, plain=True),
    "one_dimension": conv((8, 16), (1, 40), (1, 5), padding=(0, 2, 0, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_best_plan(name: str) -> None:
    work = CASES[name]
    check(work, FAMILY.plans(work, machine())[0], residual=name in ("3x3", "pointwise", "channels_no_multiple"))


@pytest.mark.parametrize(
    "values",
    [
        {"blocks": 2, "rows": 2, "columns": 3, "interleaved": 1, "parts": 3},
        {"blocks": 1, "rows": 4, "columns": 4, "interleaved": 0, "parts": 2, "inputs": 2},
        {"blocks": 3, "rows": 1, "columns": 4, "inputs": 2, "output_parts": 2, "parts": 3},
        {"blocks": 2, "rows": 1, "columns": 5, "copy": 1, "interleaved": 0, "parts": 3},
        {"blocks": 2, "rows": 1, "columns": 5, "ahead": 64},
    ],
)
def test_other_tiles(values: dict[str, int]) -> None:
    work = conv((20, 24), (6, 4), (3, 3), padding=(1, 1, 1, 1))
    check(work, replace(FAMILY.plans(work, machine())[0], **values), residual=True)


def test_wide_kernel_copies_padded_rows() -> None:
    work = conv((8, 8), (1, 90), (1, 61), padding=(0, 30, 0, 30))
    plan = FAMILY.plans(work, machine())[0]
    assert plan.copy == 1
    check(work, plan)


@needs(AVX512)
@pytest.mark.parametrize("channels", [(32, 32), (20, 48)])
def test_wide_vectors(channels: tuple[int, int]) -> None:
    work = conv(channels, (6, 6), (3, 3), padding=(1, 1, 1, 1), lanes=16)
    check(work, FAMILY.plans(work, machine(AVX512))[0], AVX512)


@st.composite
def workloads(draw: Any) -> Conv2D:
    size, kernel, padding, dilation = draw(windows())
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    block = 8 if groups > 1 else 1
    channels = (groups * block * draw(st.integers(1, 12 // block + 1)), groups * block * draw(st.integers(1, 12 // block + 1)))
    plain = groups == 1 and draw(st.booleans())
    return conv(channels, size, kernel, draw(st.integers(1, 3)), padding, dilation, groups, draw(st.integers(1, 2)), plain)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 11))
def test_random_shapes(work: Conv2D, choice: int) -> None:
    plans = FAMILY.plans(work, machine())
    check(work, plans[choice % len(plans)])


def test_plans_say_what_the_family_takes() -> None:
    depthwise = conv((16, 16), (8, 8), (3, 3), groups=16)
    plain_output = replace(depthwise, groups=1, y=replace(depthwise.y, block=1))
    narrow = replace(depthwise, groups=4)
    assert not any(FAMILY.plans(work, machine()) for work in (depthwise, plain_output, narrow))
    plans = FAMILY.plans(conv((64, 64), (32, 32), (3, 3), padding=(1, 1, 1, 1)), machine())
    assert 1 < len(plans) <= 12 and [p.seconds for p in plans] == sorted(p.seconds for p in plans)
    assert all(p.blocks * p.rows * p.columns + p.blocks < machine().registers for p in plans)


def test_tiles_cover_an_axis_once() -> None:
    for size, out, kernel, stride, pad, dilation in [(9, 9, 3, 1, 1, 1), (5, 9, 3, 1, 3, 1), (100, 50, 5, 2, 2, 1), (3, 30, 2, 4, 60, 9)]:
        axis = Axis(size, out, kernel, stride, pad, dilation)
        for tile in (1, 2, 3, 7, out):
            positions = []
            for run in cut(out, tile, axis):
                for t in range(run.first, run.last):
                    positions += [run.position(t) + j for j in range(run.size)]
                    assert run.reach == tuple(axis.inside(run.position(t) + j) for j in range(run.size))
            assert positions == list(range(out))


def test_other_machines_get_objects() -> None:
    import tvm

    for target, lanes in (
        (tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57"}), 4),
        (tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}), 4),
    ):
        cpu = machine_of(target)
        work = conv((12, 20), (6, 6), (3, 3), padding=(1, 1, 1, 1), lanes=lanes)
        plan = FAMILY.plans(work, cpu)[0]
        fn = FAMILY.kernel(work, plan, cpu, relu_with_bias(work.y)).with_attr("global_symbol", "main")
        assert tvm.compile(tvm.IRModule({"main": fn}), target=target).mod is not None
    assert math.prod(FAMILY.packed(work, plan, cpu).physical) == 12 * 20 * 9


_OF_ALL_INPUTS = ("3x3", "stride_2", "dilation", "pointwise", "one_position", "groups_of_blocks", "plain_batch", "one_dimension")


@pytest.mark.parametrize(("name", "plain"), [*((name, True) for name in _OF_ALL_INPUTS), ("groups_of_blocks", False)])
def test_of_rows_and_columns_only_what_is_wanted(name: str, plain: bool) -> None:
    """What reaches into the first rows and columns is read and nothing else, and no tile behind them is written."""
    work, cpu = CASES[name], replace(machine(), cores=1)
    plans = FAMILY.plans(work, cpu)
    plan = plans[0] if plain else replace(plans[-1], rows=2 if plans[-1].rows > 1 else 1, inputs=1)
    random = np.random.default_rng(0)
    x, weights = (random.standard_normal(s, dtype="float32") for s in (work.x.shape, work.weight_shape))
    top, left, bottom, right = work.padding
    padded = F.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    expected = F.conv2d(padded, torch.from_numpy(weights).double(), None, work.stride, 0, work.dilation, work.groups).numpy()
    packed = Kernel(FAMILY.pack(work, plan, cpu), AVX2)([weights], FAMILY.packed(work, plan, cpu).physical)
    fn = DirectMaker(work, plan, cpu, NOTHING)((Extent(0, 1, 0), Extent(1, 2, -1)))
    run = tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), AVX2)
    height, width = work.y.shape[2:]
    some = {
        (0, 3),
        (1, 1),
        (height, 1),
        (1, width // 2 + 1),
        (height // 2, width // 4 + 1),
        (height, width // 2 + 2),
        (height + 1, width + 1),
    }
    for first, second in some:
        rows, columns = (max(0, min(*e)) for e in ((first, height), (2 * second - 1, width)))
        there, y = x.copy(), tvm.runtime.tensor(np.full(work.y.physical, np.nan, "float32"))
        ends = [
            (n - 1) * work.stride[d] + (work.kernel[d] - 1) * work.dilation[d] - work.padding[d] + 1 for d, n in enumerate((rows, columns))
        ]
        for behind in (DENORMAL, np.nan):
            there[:, :, max(0, ends[0]) :] = there[..., max(0, ends[1]) :] = behind
            given = (pack(there, work.x.block), packed, np.array(first, "int64"), np.array(second, "int64"))
            args = [*(tvm.runtime.tensor(a) for a in given), y]
            slow = meets_denormals(lambda args=args: run["main"](*args))  # type: ignore[misc]
            assert not slow
        got = unpack(y.numpy(), work.y)
        np.testing.assert_allclose(got[:, :, :rows, :columns], expected[:, :, :rows, :columns], rtol=1e-4, atol=1e-4)
        assert np.isnan(got[:, :, rows + plan.rows :]).all() and np.isnan(got[..., columns + -(-plan.columns // 2) - 1 :]).all()
