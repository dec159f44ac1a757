# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels of 8-bit integers: exact on every machine, for the largest sums too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_utils import check_conv, check_dense, conv, dense, numbers
from kernel_utils import AVX2, AVX512, VNNI, each, windows

from dycl_tvm.backends.tir_cpu.families import int8_conv, int8_dense, int8_depthwise, int8_depthwise_narrow
from dycl_tvm.backends.tir_cpu.words import int8
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Dense
from dycl_tvm.codegen.machine import runs_here

AVX_VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "alderlake"})
TARGETS = each(AVX2, AVX512, VNNI)
RUNNABLE = [t for t in (AVX2, AVX512, VNNI) if runs_here(t)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("work", [dense(1, 1, 2, 3), dense(1, 1, 70, 130), dense(3, 7, 33, 40)], ids=str)
def test_products(work: Dense, target: Any) -> None:
    plans = int8_dense.FAMILY.plans(work, machine_of(target))
    assert plans == sorted(plans, key=lambda p: (p.seconds, p.params))
    x, w = numbers(0, 255, work.batch, work.m, work.k), numbers(-128, 127, work.k, work.n)
    for plan in (plans[0], plans[-1]):
        check_dense(int8_dense.FAMILY, work, plan, target, x, w)


@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_sums_do_not_saturate(target: Any) -> None:
    work = dense(1, 2, 16, 64)
    plan = int8_dense.FAMILY.plans(work, machine_of(target))[0]
    for weight in (-128, 127):
        check_dense(int8_dense.FAMILY, work, plan, target, np.full((1, 2, 64), 255, np.uint8), np.full((64, 16), weight, np.int8))


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions(target: Any) -> None:
    for work in (
        conv(target, 1, 3, 20, (9, 11), (3, 3), (2, 2), (1, 1, 1, 1), 1, 1),
        conv(target, 2, 40, 33, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1),
        conv(target, 1, 64, 32, (6, 5), (3, 3), (1, 1), (1, 1, 1, 1), 1, 2),
    ):
        plans = int8_conv.FAMILY.plans(work, machine_of(target))
        for plan in (plans[0], plans[-1]):
            check_conv(int8_conv.FAMILY, work, plan, target)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(windows(), st.integers(1, 40), st.integers(1, 40), st.integers(1, 2), st.integers(0, 11), st.sampled_from(RUNNABLE))
def test_random_convolutions(window: Any, c: int, o: int, stride: int, choice: int, target: Any) -> None:
    size, kernel, padding, dilation = window
    work = conv(target, 1, c, o, size, kernel, (stride, stride), padding, dilation, 1)
    plans = int8_conv.FAMILY.plans(work, machine_of(target))
    check_conv(int8_conv.FAMILY, work, plans[choice % len(plans)], target)


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_that_read_their_input_in_place(target: Any) -> None:
    for size, stride, groups in (((5, 6), (1, 1), 1), ((9, 8), (2, 2), 1), ((1, 1), (1, 1), 1), ((4, 5), (1, 2), 2)):
        work = conv(target, 2, 64 if groups > 1 else 40, 64, size, (1, 1), stride, (0, 0, 0, 0), 1, groups)
        check_conv(int8_conv.FAMILY, work, int8_conv.FAMILY.plans(work, machine_of(target))[0], target)


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_of_few_channels_read_planes(target: Any) -> None:
    for channels, size, kernel, stride in ((3, (20, 37), (7, 7), (2, 2)), (1, (9, 7), (3, 3), (1, 1)), (4, (9, 17), (1, 1), (2, 2))):
        work = conv(target, 2, channels, 20, size, kernel, stride, (kernel[0] // 2,) * 4, 1, 1)
        plain = replace(work, x=replace(work.x, block=1))
        check_conv(int8_conv.FAMILY, plain, int8_conv.FAMILY.plans(plain, machine_of(target))[0], target)
    assert not int8_conv.FAMILY.plans(replace(plain, groups=2), machine_of(target))
    wide = conv(target, 1, 5, 16, (4, 4), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1)
    assert not int8_conv.FAMILY.plans(replace(wide, x=replace(wide.x, block=1)), machine_of(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("border", [7, 255])
def test_what_lies_around_an_image_is_any_byte(border: int, target: Any) -> None:
    packed = conv(target, 1, 20, 20, (9, 11), (3, 3), (2, 2), (1, 1, 0, 2), 1, 1)
    one_tap = conv(target, 1, 20, 20, (5, 6), (1, 1), (1, 1), (1, 0, 1, 2), 1, 1)
    planes = conv(target, 2, 3, 20, (20, 37), (7, 7), (2, 2), (3, 3, 3, 3), 1, 1)
    for work in (packed, one_tap, replace(planes, x=replace(planes.x, block=1))):
        work = replace(work, border=border)
        check_conv(int8_conv.FAMILY, work, int8_conv.FAMILY.plans(work, machine_of(target))[0], target)
    alone = replace(conv(target, 1, 32, 32, (6, 6), (3, 3), (1, 1), (1, 1, 1, 1), 1, 32), border=border)
    assert not any(f.plans(alone, machine_of(target)) for f in (int8_depthwise.FAMILY, int8_depthwise_narrow.FAMILY))


def _depthwise(target: Any, channels: int, size: Any, kernel: Any, stride: Any, padding: Any, dilation: int, choice: int = 0) -> None:
    work = conv(target, 2, channels, channels, size, kernel, stride, padding, dilation, channels)
    assert not int8_conv.FAMILY.plans(work, machine_of(target))
    families = [f for f in (int8_depthwise.FAMILY, int8_depthwise_narrow.FAMILY) if f.plans(work, machine_of(target))]
    assert families == [int8_depthwise.FAMILY if size[1] >= int8.QUAD else int8_depthwise_narrow.FAMILY]
    plans = families[0].plans(work, machine_of(target))
    check_conv(families[0], work, plans[choice % len(plans)], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size, kernel, stride, padding, dilation", [
    ((9, 10), (3, 3), (2, 1), (1, 1, 1, 1), 1),
    ((7, 7), (5, 5), (1, 1), (2, 2, 2, 2), 1),
    ((8, 9), (3, 5), (2, 2), (0, 1, 1, 2), 1),
    ((5, 4), (3, 3), (1, 1), (2, 2, 2, 2), 2),
    ((5, 3), (3, 3), (1, 1), (1, 1, 1, 1), 1),
])  # fmt: skip
def test_depthwise(size: Any, kernel: Any, stride: Any, padding: Any, dilation: int, target: Any) -> None:
    _depthwise(target, 20, size, kernel, stride, padding, dilation)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(windows(), st.integers(1, 40), st.integers(1, 3), st.integers(0, 5), st.sampled_from(RUNNABLE))
def test_random_depthwise(window: Any, channels: int, stride: int, choice: int, target: Any) -> None:
    size, kernel, padding, dilation = window
    _depthwise(target, channels + 1, size, kernel, (stride, stride), padding, dilation, choice)


def test_instructions_follow_the_target() -> None:
    assert [machine_of(t).vnni for t in (AVX2, AVX512, VNNI, AVX_VNNI)] == [False, False, True, True]
    work = dense(1, 4, 32, 32)
    for target, word in ((VNNI, "vpdpbusd"), (AVX_VNNI, "vpdpbusd"), (AVX2, "vpmaddwd"), (AVX512, "vpmaddwd")):
        machine = machine_of(target)
        fn = int8_dense.FAMILY.kernel(work, int8_dense.FAMILY.plans(work, machine)[0], machine).with_attr("global_symbol", "main")
        text = tvm.compile(tvm.IRModule({"main": fn}), target=target).mod.inspect_source("asm")
        assert word in text and "vpmaddubsw" not in text
    assert not int8.allowed(machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})))


def test_filters_that_fall_on_quads_in_many_ways_are_packed_by_little_code() -> None:
    work, machine = conv(AVX2, 2, 33, 33, (16, 35), (5, 5), (1, 1), (0, 0, 0, 0), 1, 33), machine_of(AVX2)
    fn = int8_depthwise.FAMILY.pack(work, int8_depthwise.FAMILY.plans(work, machine)[0], machine).with_attr("global_symbol", "main")
    assert len(tvm.compile(tvm.IRModule({"main": fn}), target=AVX2).mod.inspect_source("asm")) < 200_000
