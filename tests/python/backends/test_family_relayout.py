# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Changes of layout and concatenations move elements: they are exact."""

from __future__ import annotations

import kernel_utils as ku
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.backends.tir_cpu.families import concat, relayout
from dycl_tvm.backends.tir_cpu.words.workload import Tensor


def check(shape, block=8, dtype="float32"):
    target = ku.AVX2
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    plain, packed = Tensor(shape, dtype), Tensor(shape, dtype, block)
    machine = ku.machine(target)
    there = ku.Kernel(relayout.kernel(plain, packed, machine), target)([values], packed.physical, dtype)
    np.testing.assert_array_equal(there, ku.pack(values, block))
    back = ku.Kernel(relayout.kernel(packed, plain, machine), target)([there], shape, dtype)
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    "shape", [(2, 20, 3, 5), (1, 3, 40, 41), (3, 33), (2, 17, 1, 1), (1, 16, 7, 7), (2, 5, 19), (1, 9, 2, 3, 4), (1, 64, 16, 16)], ids=str
)
def test_both_ways(shape):
    check(shape)


@pytest.mark.parametrize("block", [4, 16])
def test_other_blocks(block):
    check((2, 21, 5, 7), block)


def test_other_types():
    check((2, 9, 5, 3), dtype="float64")


@given(st.lists(st.integers(1, 20), min_size=2, max_size=4))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_random_shapes(shape):
    check(tuple(shape))


def test_refuses_what_is_no_change_of_layout():
    with pytest.raises(ValueError, match="another layout"):
        relayout.kernel(Tensor((1, 8, 2)), Tensor((1, 9, 2), block=8), ku.machine())


@pytest.mark.parametrize("channels", [(8, 16, 8), (16, 3), (8, 24, 13)], ids=str)
@pytest.mark.parametrize("epilogue", [False, True])
def test_concatenation(channels, epilogue):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, c, 5, 3)).astype("float32") for c in channels]
    y = Tensor((2, sum(channels), 5, 3), block=8)
    parts = [Tensor(a.shape, block=8) for a in arrays]
    assert concat.takes(parts, y)
    want, extra, after = np.concatenate(arrays, 1), [], {}
    if epilogue:
        bias = rng.standard_normal((1, y.shape[1], 1, 1)).astype("float32")
        want, extra, after = np.maximum(want + bias, 0), [ku.pack(bias, 8)], {"epilogue": ku.relu_with_bias(y)}
    kernel = ku.Kernel(concat.kernel(parts, y, ku.machine(), **after))
    got = ku.unpack(kernel([*(ku.pack(a, 8) for a in arrays), *extra], y.physical), y)
    np.testing.assert_array_equal(got, want)


def test_concatenation_of_bytes():
    arrays = [np.random.default_rng(c).integers(0, 256, (1, c, 4, 5)).astype("uint8") for c in (16, 8, 3)]
    parts, y = [Tensor(a.shape, "uint8", 8) for a in arrays], Tensor((1, 27, 4, 5), "uint8", 8)
    kernel = ku.Kernel(concat.kernel(parts, y, ku.machine()))
    made = tvm.runtime.tensor(np.zeros(y.physical, "uint8"))
    kernel.run(*(tvm.runtime.tensor(ku.pack(a, 8)) for a in arrays), made)
    np.testing.assert_array_equal(ku.unpack(made.numpy(), y), np.concatenate(arrays, 1))


def test_concatenation_needs_whole_blocks():
    parts, y = [Tensor((1, 9, 4), block=8), Tensor((1, 8, 4), block=8)], Tensor((1, 17, 4), block=8)
    assert not concat.takes(parts, y)
    with pytest.raises(ValueError, match="concatenated"):
        concat.kernel(parts, y, ku.machine())
