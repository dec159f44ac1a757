# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors that are stored as bfloat16: kernels do with them what they do with float32, bit by bit, and round what they store once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from bf16_utils import CASES, ONES, array, conv, workloads
from halves_utils import EACH, TYPES, bits, check_conv, in_memory, numbers, run
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import BF16, needs, pack
from legalized import prim_func
from torch import nn

from dycl_tvm.backends.tir_cpu.families import bf16_conv, channelwise, concat, conv_direct, conv_winograd, depthwise, grouped
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import HALF, Conv2D, Tensor

MACHINE = machine_of(BF16)
CPU = needs(BF16)


@CPU
@pytest.mark.parametrize("name", CASES)
def test_convolutions_of_bfloat16(name: str) -> None:
    assert check_conv(bf16_conv.FAMILY, CASES[name].with_weights("bfloat16")) == EACH


@CPU
@settings(max_examples=6, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 11))
def test_random_convolutions_of_bfloat16(work: Conv2D, choice: int) -> None:
    check_conv(bf16_conv.FAMILY, work.with_weights("bfloat16"), choice)


@CPU
@pytest.mark.parametrize("parts", [1, 3])
def test_one_tap_reads_words_where_they_lie(parts: int) -> None:
    for name in ("pointwise", "pointwise_stride", "one_position"):
        work = CASES[name].with_weights("bfloat16")
        plan = replace(bf16_conv.FAMILY.plans(work, MACHINE)[0], parts=parts)
        copied, in_place = (str(bf16_conv.FAMILY.kernel(work.stored(t, "float32"), plan, MACHINE)) for t in TYPES)
        assert copied.count("alloc_buffer") > in_place.count("alloc_buffer")


@CPU
@pytest.mark.parametrize(
    "family, work, types",
    [
        (depthwise.FAMILY, conv((20, 20), (9, 11), (3, 3), padding=ONES, groups=20, batch=2), EACH),
        (depthwise.FAMILY, conv((32, 32), (12, 13), (5, 5), stride=2, padding=(2, 2, 2, 2), groups=32), EACH),
        (conv_direct.FAMILY, conv((20, 24), (9, 11), (3, 3), padding=ONES), EACH[:1]),
        (conv_direct.FAMILY, conv((3, 40), (12, 13), (7, 7), stride=2, padding=(3, 3, 3, 3), plain=True), EACH[:1]),
        (conv_winograd.FAMILY, conv((20, 24), (9, 11), (3, 3), padding=ONES, batch=2), EACH),
        (grouped.FAMILY, conv((32, 32), (7, 9), (3, 3), padding=ONES, groups=8), EACH[:1]),
    ],
    ids=lambda v: getattr(v, "name", None) or (str(v.y.shape) if isinstance(v, Conv2D) else ""),
)
def test_convolutions_of_float32(family: Any, work: Conv2D, types: list[tuple[str, str]]) -> None:
    assert check_conv(family, work) == types


@CPU
@pytest.mark.parametrize("x_type, y_type", EACH)
def test_operators_of_channels(x_type: str, y_type: str) -> None:
    def pooled(fn: Any, *shapes: tuple[int, ...]) -> None:
        values = [numbers(bits(array(*s))) for s in shapes]
        op = channelwise.channelwise(prim_func(fn, *map(torch.from_numpy, values)))
        xs, y = [Tensor(s, x_type, 16) for s in shapes], Tensor(fn(*map(torch.from_numpy, values)).shape, y_type, 16)
        plain = [replace(t, dtype="float32") for t in (*xs, y)]
        expected = run(channelwise.kernel(op, plain, MACHINE), [pack(v, 16) for v in values], plain[-1])
        got = run(channelwise.kernel(op, [*xs, y], MACHINE), [in_memory(v, t) for v, t in zip(values, xs)], y)
        np.testing.assert_array_equal(got, numbers(bits(expected)) if y_type == HALF else expected)

    pooled(lambda x: nn.functional.max_pool2d(x, 3, 2, 1), (1, 20, 9, 11))
    pooled(lambda x: nn.functional.avg_pool2d(x, 2), (2, 32, 8, 6))
    pooled(lambda x, y: x * y, (1, 20, 5, 7), (1, 20, 1, 1))


@CPU
def test_concatenation() -> None:
    parts, y = [Tensor((2, c, 3, 5), t, 16) for c, t in ((16, HALF), (32, "float32"), (7, HALF))], Tensor((2, 55, 3, 5), HALF, 16)
    values = [array(*p.shape) for p in parts]
    got = run(concat.kernel(parts, y, MACHINE), [in_memory(v, p) for v, p in zip(values, parts)], y)
    np.testing.assert_array_equal(got, numbers(bits(np.concatenate(values, 1))))


@CPU
def test_rounding_is_to_nearest_even_and_keeps_what_is_no_number() -> None:
    tie, odd = np.uint32(0x3F808000).view("float32"), np.uint32(0x3F818000).view("float32")
    loud, last = np.uint32(0x7F800001).view("float32"), np.uint32(0xFFFFFFFF).view("float32")
    values = np.float32([1, tie, odd, tie + 1e-7, -tie, 3.3e38, 3.4e38, -3.4e38, np.inf, -np.inf, loud, last, 0.0, -0.0, 1e-37, 5.0])
    x, y = Tensor((1, 16, 1, 2), "float32", 16), Tensor((1, 16, 1, 2), HALF, 16)
    both = np.stack([values, values[::-1]], 1).reshape(x.shape)
    got = run(concat.kernel([x], y, MACHINE), [pack(both, 16)], y)
    np.testing.assert_array_equal(got, numbers(bits(both)))
    assert np.isnan(got[0, 10:12, 0, 0]).all() and np.isposinf(got[0, 6, 0, 0]) and got[0, 1, 0, 0] == 1 and got[0, 2, 0, 0] == 1 + 2**-6
    assert np.signbit(got[0, 13, 0, 0])
    # denormal numbers count as zero, or stay; they do not become others
    small = np.full(x.shape, 1e-40, "float32")
    assert set(np.unique(run(concat.kernel([x], y, MACHINE), [pack(small, 16)], y))) <= {0.0, float(numbers(bits(small)).max())}
