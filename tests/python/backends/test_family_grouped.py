# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions of narrow groups against float64; what is not finite stays in its group.

Sums of float32 products, each rounded once: the error stays below 2e-6 of the largest output at the sums' lengths used here.
"""

from __future__ import annotations

from typing import Any

import kernel_utils as ku
import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.backends.tir_cpu.families.grouped import FAMILY, GroupedPlan
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue

SSE = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def conv(
    groups: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (1, 1, 1, 1),
    dilation: tuple[int, int] = (1, 1),
    batch: int = 1,
    **layout: Any,
) -> Conv2D:
    """Return the convolution with ``channels`` (inputs, outputs) a group."""
    return ku.conv((groups * channels[0], groups * channels[1]), size, kernel, stride, padding, dilation, groups, batch, **layout)


def run(work: Conv2D, x: Any, w: Any, plan: GroupedPlan, target: Any, epilogue: Epilogue = NOTHING, extra: Any = ()) -> Any:
    cpu = ku.machine(target)
    packed = ku.Kernel(FAMILY.pack(work, plan, cpu), target)([w], FAMILY.packed(work, plan, cpu).physical)
    kernel = ku.Kernel(FAMILY.kernel(work, plan, cpu, epilogue), target)
    return ku.unpack(kernel([ku.pack(x, work.x.block), packed, *extra], work.y.physical), work.y)


def exact(work: Conv2D, x: Any, w: Any) -> Any:
    top, left, bottom, right = work.padding
    padded = torch.nn.functional.pad(torch.tensor(x).double(), (left, right, top, bottom))
    return torch.nn.functional.conv2d(padded, torch.tensor(w).double(), None, work.stride, 0, work.dilation, work.groups).numpy()


def random(work: Conv2D) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s, dtype="float32") for s in (work.x.shape, work.weight_shape)]


def check(work: Conv2D, target: Any = ku.AVX2, choice: int = 0, residual: bool = False) -> None:
    plans = FAMILY.plans(work, ku.machine(target))
    assert plans == sorted(plans, key=lambda p: p.seconds)
    x, w = random(work)
    rng = np.random.default_rng(1)
    want, epilogue, extra = exact(work, x, w), NOTHING, []
    if residual:
        bias, other = (rng.standard_normal(s, dtype="float32") for s in ((1, work.y.shape[1], 1, 1), work.y.shape))
        one = ku.relu_with_bias(work.y)
        epilogue = Epilogue((*one.operands, work.y), lambda v, loads: one.element(v, loads[:1]) + loads[1], "bias+relu+add", 3)
        want = np.maximum(want + bias, 0) + other
        extra = [ku.pack(bias, work.y.block), ku.pack(other, work.y.block)]
    got = run(work, x, w, plans[choice % len(plans)], target, epilogue, extra)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * max(1.0, np.abs(want).max()))


CASES = {
    "shuffled": conv(8, (4, 4), (9, 10), batch=2),
    "last_block_not_full": conv(5, (4, 4), (7, 11)),
    "stride_2": conv(16, (2, 2), (11, 12), stride=(2, 2)),
    "multiplier": conv(12, (1, 2), (6, 7), dilation=(2, 1), padding=(2, 0, 1, 3)),
    "multiplier_of_a_vector": conv(3, (1, 8), (5, 6)),
    "fewer_outputs": conv(7, (8, 2), (5, 9), kernel=(3, 2)),  # a block of outputs reads four of inputs, the last fewer
    "pointwise": conv(12, (2, 4), (5, 7), (1, 1), padding=(0, 0, 0, 0), batch=2),
    "one_position": conv(6, (4, 4), (1, 1), (1, 1), padding=(0, 0, 0, 0), batch=3),
    "three_a_group": conv(5, (3, 3), (6, 9)),
    "wider_than_a_vector": conv(3, (10, 12), (5, 6)),
    "plain_input": conv(2, (1, 6), (8, 9), plain=True),
    "one_dimension": conv(4, (4, 2), (1, 40), (1, 5), padding=(0, 2, 0, 2)),
    "borders_only": conv(4, (2, 2), (2, 3), (5, 5), padding=(2, 2, 2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_hard_shapes(name: str) -> None:
    check(CASES[name], residual=name in ("shuffled", "last_block_not_full", "wider_than_a_vector"))


@st.composite
def workloads(draw: Any) -> Conv2D:
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    size = tuple(draw(st.integers((kernel[k] - 1) * dilation[k] + 1, 14)) for k in (0, 1))
    channels = draw(st.sampled_from([1, 2, 3, 4, 5])), draw(st.sampled_from([2, 4, 3, 7]))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return conv(draw(st.integers(2, 9)), channels, size, kernel, stride, padding, dilation, draw(st.integers(1, 2)))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 9))
def test_random_shapes(work: Conv2D, choice: int) -> None:
    check(work, choice=choice)


@pytest.mark.parametrize("channels", [(4, 4), (6, 6)])
def test_narrow_vectors(channels: tuple[int, int]) -> None:
    check(conv(6, (channels[0] // 2, channels[1] // 2), (6, 7), lanes=4), SSE)


@ku.needs(ku.AVX512)
@pytest.mark.parametrize("channels", [(4, 4), (2, 8), (6, 6), (24, 24)])
def test_wide_vectors(channels: tuple[int, int]) -> None:
    check(conv(5, channels, (6, 15), lanes=16), ku.AVX512)


@pytest.mark.parametrize("channels", [4, 3, 12])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_group(channels: int, value: float) -> None:
    work = conv(4, (channels, channels), (5, 6))
    x, w = random(work)
    x[:, channels : 2 * channels] = value
    w = np.abs(w)
    got = run(work, x, w, FAMILY.plans(work, ku.machine())[0], ku.AVX2)
    group = slice(channels, 2 * channels)
    np.testing.assert_array_equal(got[:, group], np.full_like(got[:, group], value))
    x[:, group] = 0
    want = exact(work, x, w)
    np.testing.assert_allclose(
        np.delete(got, range(channels, 2 * channels), 1), np.delete(want, range(channels, 2 * channels), 1), atol=2e-4
    )


def test_takes_only_what_it_can() -> None:
    cpu = ku.machine()
    whole, depthwise, one = conv(2, (8, 8), (8, 8)), conv(16, (1, 1), (8, 8)), conv(1, (12, 12), (8, 8))
    too_wide = conv(8, (4, 4), (1, 200), (1, 101), padding=(0, 50, 0, 50))
    other_layout = conv(8, (4, 4), (8, 8), lanes=16)
    assert not any(FAMILY.plans(w, cpu) for w in (whole, depthwise, one, too_wide, other_layout))
    assert 1 < len(FAMILY.plans(conv(32, (4, 4), (56, 56)), cpu)) <= 12


def test_makes_objects_for_arm() -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78"})
    cpu = machine_of(target)
    for channels in (2, 3):
        work = conv(6, (channels, channels), (9, 9), lanes=4)
        fn = FAMILY.kernel(work, FAMILY.plans(work, cpu)[0], cpu).with_attr("global_symbol", "f")
        assert tvm.compile(tvm.IRModule({"f": fn}), target=target).mod is not None
