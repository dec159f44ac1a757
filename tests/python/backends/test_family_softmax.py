# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Softmax, normalisations and the functions below them, against float64; the bounds are those of the files' docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, Kernel, each, machine
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families.normalisation import group_norm, layer_norm
from dycl_tvm.backends.tir_cpu.families.softmax import softmax
from dycl_tvm.backends.tir_cpu.words import vector_math
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store

RNG = np.random.default_rng(0)
inf, nan = float("inf"), float("nan")
SPECIAL = np.array([nan, inf, -inf, 0.0, -0.0, 1e30, -1e30, 88.8, -103.5, 1e-40, 3e-7, 89.5, -87.5, 0.94, 4.0, -0.94], "float32")


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def map_of(fn: Callable[[Any], Any], n: int, target: Any) -> Kernel:
    lanes = machine(target).lanes

    def body(x: Any, y: Any) -> None:
        with T.serial(0, n // lanes) as i, T.vectorized(0, lanes) as v:
            store(y, [i * lanes + v], fn(x[i * lanes + v]))

    return Kernel(prim_func([("x", (n,), "float32"), ("y", (n,), "float32")], body), target)


@pytest.mark.parametrize("target", each(AVX2, AVX512))
@pytest.mark.parametrize("name, ulps", [("exp", 1.0), ("sigmoid", 2.5), ("tanh", 2.6), ("erf", 2.5)])
def test_functions(name: str, ulps: float, target: Any) -> None:
    n = 1 << 17
    tiny = RNG.uniform(-1, 1, n // 4) * 10.0 ** RNG.uniform(-30, 0, n // 4)
    x = np.concatenate([RNG.uniform(-87, 88, n // 4), RNG.normal(0, 3, n // 4), tiny, RNG.uniform(-12, 12, n // 4)]).astype("float32")
    x[:16] = SPECIAL
    y = map_of(getattr(vector_math, name), n, target)([x], (n,))
    exact = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
    rounded = getattr(torch, name)(torch.from_numpy(x)).numpy()
    normal = np.isfinite(rounded) & (np.abs(exact) > 1.2e-38)
    assert (np.abs(y[normal] - exact[normal]) <= ulps * np.spacing(np.abs(exact[normal]).astype("float32"))).all()
    # NaN, infinities, zeros with their signs, subnormal results
    np.testing.assert_allclose(y[:16], rounded[:16], rtol=1e-6, atol=2e-45)
    np.testing.assert_array_equal(np.signbit(y[3:5]), np.signbit(rounded[3:5]))


@pytest.mark.parametrize("target", each(AVX2, AVX512))
def test_short_erf(target: Any) -> None:
    n = 1 << 15
    x = np.concatenate([RNG.uniform(-4, 4, n // 2), RNG.uniform(-1, 1, n // 2) * 10.0 ** RNG.uniform(-30, 0, n // 2)]).astype("float32")
    x[:16] = SPECIAL
    y = map_of(lambda v: vector_math.shortened(vector_math.erf(v)), n, target)([x], (n,))
    exact = torch.erf(torch.from_numpy(x).double()).numpy()
    there = ~np.isnan(x)
    error = np.abs(y - exact)[there]
    assert (np.isnan(y) == ~there).all() and 1e-5 < error.max() <= 3e-5
    assert (error <= 2.0**-13 * np.abs(exact[there]) + 1e-37).all()
    assert (y[np.abs(np.nan_to_num(x)) > 3] ** 2 == 1).all()  # a GELU multiplies what is left of 1


@pytest.mark.parametrize("target", each(AVX2, AVX512))
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape, axis", [((3, 1000), 1), ((5, 33), -1), ((1, 1), 1), ((3, 7, 11), 1), ((1, 5, 67), 1), ((4, 3), 0)])
def test_softmax(shape: tuple[int, ...], axis: int, log: bool, target: Any) -> None:
    x = array(*shape) * 5
    y = Kernel(softmax(shape, axis, machine(target), log), target)([x], shape)
    fn = torch.log_softmax if log else torch.softmax
    exact = fn(torch.from_numpy(x).double(), axis).numpy()
    # the difference to the maximum is rounded before its exponential is taken
    distance = np.abs(x - x.max(axis, keepdims=True)) + 8
    assert (np.abs(y - exact) <= 2.0**-24 * distance * (2 if log else exact)).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_special_values(axis: int) -> None:
    x = array(4, 20) if axis else array(20, 4)
    rows = x if axis else x.T
    rows[0, 3], rows[1, 17], rows[2], rows[3, :10] = nan, inf, -inf, -inf
    y = Kernel(softmax(x.shape, axis, machine()))([x], x.shape)
    np.testing.assert_allclose(y, torch.from_numpy(x).softmax(axis).numpy(), rtol=1e-6)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 90), st.booleans(), st.booleans(), st.booleans())
def test_layer_norm(rows: int, n: int, weight: bool, bias: bool, centred: bool) -> None:
    x, w, b = array(rows, n) * 3 + 2, array(n), array(n)
    kernel = Kernel(layer_norm((rows, n), 1, 1e-5, machine(), weight, bias, centred))
    y = kernel([x, *([w] if weight else []), *([b] if bias else [])], x.shape)
    d = x.astype("float64")
    if centred:
        d = d - d.mean(1, keepdims=True)
    exact = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * (w if weight else 1) + (b if bias else 0)
    # a row of nearly equal elements loses what the subtraction cancels
    cancelled = 1e-7 * np.abs(x).max() / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
    assert (np.abs(y - exact) <= 2e-6 * (1 + np.abs(exact).max()) + 4 * cancelled * (np.abs(w) if weight else 1)).all()


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_normalisation_far_from_zero(mean: float) -> None:
    """However far the mean, within a few units in the last place: eager's is off by a hundredth at 1e5."""
    x = array(4, 6, 128) + np.float32(mean)
    exact = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), (128,))
    ones, zeros = np.ones(128, "float32"), np.zeros(128, "float32")
    y = Kernel(layer_norm(x.shape, 1, 1e-5, machine()))([x, ones, zeros], x.shape)
    np.testing.assert_allclose(y, exact.numpy(), rtol=0, atol=2e-6)
    y = Kernel(group_norm(x.shape, 6, 1e-5, machine()))([x, ones[:6], zeros[:6]], x.shape)
    np.testing.assert_allclose(y, exact.numpy(), rtol=0, atol=2e-6)


def test_normalisation_of_equal_elements() -> None:
    x = np.full((3, 50), 3.3e9, "float32")
    y = Kernel(layer_norm(x.shape, 1, 1e-5, machine(), False, False))([x], x.shape)
    assert (y == 0).all()


def test_layer_norm_over_two_axes_and_nan() -> None:
    x, w, b = array(3, 4, 10), array(4, 10), array(4, 10)
    x[1, 2, 3] = nan
    y = Kernel(layer_norm((3, 4, 10), 2, 1e-5, machine()))([x, w, b], x.shape)
    exact = torch.nn.functional.layer_norm(*(torch.from_numpy(a) for a in (x,)), (4, 10), torch.from_numpy(w), torch.from_numpy(b))
    np.testing.assert_allclose(y, exact.numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_group_norm(groups: int) -> None:
    x, w, b = array(2, 12, 5, 7), array(12), array(12)
    y = Kernel(group_norm(x.shape, groups, 1e-5, machine()))([x, w, b], x.shape)
    given_ = [torch.from_numpy(a).double() for a in (x, w, b)]
    exact = torch.nn.functional.group_norm(given_[0], groups, given_[1], given_[2], 1e-5)
    np.testing.assert_allclose(y, exact.numpy(), rtol=1e-5, atol=2e-6)
