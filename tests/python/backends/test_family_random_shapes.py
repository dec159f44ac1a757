# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Families whose other tests have hand-picked shapes, over random ones, against float64; the bounds are those of docs/accuracy.md."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernel_utils as ku
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import WIDTHS, Kernel, machine
from torch import nn

import dycl_tvm
from dycl_tvm.backends.tir_cpu.families import concat
from dycl_tvm.backends.tir_cpu.families.matmul import matmul
from dycl_tvm.backends.tir_cpu.families.normalisation import group_norm
from dycl_tvm.backends.tir_cpu.families.softmax import softmax
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Tensor

RNG = np.random.default_rng(0)
UNIT = 2.0**-24
TARGETS = st.sampled_from(WIDTHS)


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 3), st.booleans(), TARGETS)
def test_softmax(shape: list[int], axis: int, log: bool, target: Any) -> None:
    x, axis = array(*shape) * 5, axis % len(shape)
    y = Kernel(softmax(tuple(shape), axis, machine(target), log), target)([x], tuple(shape))
    exact = (torch.log_softmax if log else torch.softmax)(torch.from_numpy(x).double(), axis).numpy()
    distance = np.abs(x - x.max(axis, keepdims=True)) + 8
    assert (np.abs(y - exact) <= UNIT * distance * (2 if log else exact)).all()


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 7), st.integers(2, 60), TARGETS)
def test_group_norm(batch: int, groups: int, each: int, pixels: int, target: Any) -> None:
    x, w, b = array(batch, groups * each, pixels) + 3, array(groups * each), array(groups * each)
    y = Kernel(group_norm(x.shape, groups, 1e-5, machine(target)), target)([x, w, b], x.shape)
    exact = nn.functional.group_norm(torch.from_numpy(x).double(), groups, *(torch.from_numpy(a).double() for a in (w, b)), 1e-5).numpy()
    assert np.abs(y - exact).max() <= 1e-6 * max(np.abs(exact).max(), 1)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(*[st.integers(1, 40)] * 3, st.integers(1, 3), st.booleans(), st.booleans(), TARGETS)
def test_products_of_run_time_tensors(m: int, n: int, k: int, batch: int, shared: bool, transposed: bool, target: Any) -> None:
    a, b = array(batch, m, k), array(*([] if shared else [batch]), *((n, k) if transposed else (k, n)))
    work = Dense(batch, m, n, k, constant=False, shared=shared)
    y = Kernel(matmul(work, machine(target), NOTHING, transposed), target)([a, b], (batch, m, n))
    right = (b.swapaxes(-1, -2) if transposed else b).astype("float64")
    assert (np.abs(y - a.astype("float64") @ right) <= (k + 8) * UNIT * (np.abs(a).astype("float64") @ np.abs(right))).all()


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 20), st.integers(1, 6), st.integers(1, 7))
def test_concatenation(whole: list[int], last: int, height: int, width: int) -> None:
    arrays = [array(2, c, height, width) for c in (*(8 * blocks for blocks in whole), last)]
    want = np.concatenate(arrays, 1)
    parts, y = [Tensor(a.shape, block=8) for a in arrays], Tensor(want.shape, block=8)
    assert concat.takes(parts, y)
    got = Kernel(concat.kernel(parts, y, machine()))([ku.pack(a, 8) for a in arrays], y.physical)
    np.testing.assert_array_equal(ku.unpack(got, y), want)


@settings(max_examples=2, deadline=None, derandomize=True)
@given(st.sampled_from([nn.LSTM, nn.GRU]), st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_recurrent_layers(layer: Any, steps: int, batch: int, inputs: int, hidden: int, both: bool) -> None:
    net, x = layer(inputs, hidden, bidirectional=both).eval(), torch.from_numpy(array(steps, batch, inputs))
    artifact = dycl_tvm.build(net, (x,))
    with TemporaryDirectory() as name:
        folder = Path(name)
        module = dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
        (y, _) = module(x)
    with torch.inference_mode():
        exact, _ = copy.deepcopy(net).double()(x.double())
    np.testing.assert_allclose(np.asarray(y), exact.numpy(), rtol=2e-6, atol=2e-6)
    assert not artifact.report().generic
