# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention against float64; the bound is that of the family's docstring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from amx_emulation import CPU, TARGET, emulated
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, BF16, WIDTHS, Kernel, each, machine, needs, relu_with_bias
from tvm import tirx

from dycl_tvm.backends.extents import Bounds, Extent
from dycl_tvm.backends.tir_cpu.families.attention import AttentionMaker, kernel, wins
from dycl_tvm.backends.tir_cpu.words.attention import Attention, Strided
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue, Tensor

RNG = np.random.default_rng(3)
U = 2.0**-24
inf, nan = float("inf"), float("nan")


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def plain(*shape: int) -> Strided:
    strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    return Strided(math.prod(shape), 0, strides)


def work_of(lead: tuple[int, ...], rows: int, keys: int, depth: int, width: int, **rest: Any) -> Attention:
    parts = {
        "q": plain(*lead, rows, depth),
        "k": plain(*lead, keys, depth),
        "v": plain(*lead, keys, width),
        "order": tuple(range(len(lead) + 2)),
    }
    return Attention(lead, rows, keys, depth, width, **(parts | rest))


def scaled(factor: float) -> Epilogue:
    return Epilogue((), lambda value, loads: value * tirx.const(factor, "float32"), f"scale {factor}", 1)


def masked(shape: tuple[int, ...]) -> Epilogue:
    half, low = tirx.const(0.5, "float32"), tirx.const(-inf, "float32")
    return Epilogue((Tensor(shape, "bool"),), lambda value, loads: tirx.Select(loads[0], value * half, low), f"mask {shape}", 2)


def exact_and_bound(work: Attention, q: Any, k: Any, v: Any, factor: float, mask: Any = None) -> tuple[Any, Any]:
    """The result in float64, and the bound of its error; -inf in rows that see nothing count as NaN."""
    q, k, v = (torch.from_numpy(a).double() for a in (q, k, v))
    scores = (q @ k.mT) * factor
    if mask is not None:
        scores = scores.masked_fill(~torch.from_numpy(mask), -inf)
    if work.causal:
        scores = scores.masked_fill(~torch.ones(work.rows, work.keys, dtype=torch.bool).tril(), -inf)
    p = scores.softmax(-1)
    of_scores = ((q.abs() @ k.abs().mT) * factor * (work.depth + 10)).amax(-1, keepdim=True)
    distance = (scores.amax(-1, keepdim=True) - scores).nan_to_num(0, 0, 0).amax(-1, keepdim=True)
    bound = (p @ v.abs()) * (2 * of_scores + distance + 2 * work.keys + 32) * U
    if work.rounded:
        of_factors = 2.0**-7 + 2.0**-16 + (work.depth + 8) * 2.0**-23
        s = of_factors * ((q.abs() @ k.abs().mT) * factor).amax(-1, keepdim=True)
        bound += (p @ v.abs()) * (torch.exp(2 * s) * (1 + 2.0**-7 + 2.0**-16 + (work.keys + 8) * 2.0**-23) - 1)
    return (p @ v).numpy(), bound.numpy() + 1e-37


def check(work: Attention, target: Any = AVX2, factor: float = 0.3, mask: Any = None) -> None:
    q, k, v = array(*work.lead, work.rows, work.depth), array(*work.lead, work.keys, work.depth), array(*work.lead, work.keys, work.width)
    between = scaled(factor) if mask is None else masked(mask.shape)
    run = Kernel(kernel(work, machine(target), between), target)
    y = run([q.ravel(), k.ravel(), v.ravel(), *([] if mask is None else [mask])], work.y.shape)
    exact, bound = exact_and_bound(work, q, k, v, factor if mask is None else 0.5, mask)
    assert (np.abs(y - exact) <= bound).all()


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.data())
def test_random_shapes(data: Any) -> None:
    draw = data.draw
    lead = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    rows, keys, depth, width = (draw(st.integers(1, 40)) for _ in range(4))
    check(work_of(lead, rows, keys, depth, width, causal=draw(st.booleans())), draw(st.sampled_from(WIDTHS)))


@pytest.mark.parametrize("target", each(AVX2, AVX512))
@pytest.mark.parametrize("shape", [(3, 1, 131, 20, 64), (2, 67, 70, 32, 16), (1, 130, 64, 5, 40), (2, 3, 1, 64, 3)], ids=str)
def test_hand_picked_shapes(shape: tuple[int, ...], target: Any) -> None:
    check(work_of(shape[:1], *shape[1:]), target)


@pytest.mark.parametrize("shape", [(13, 21), (1, 21), (2, 1, 13, 21)], ids=str)
def test_masks(shape: tuple[int, ...]) -> None:
    mask = RNG.random(shape) < 0.6
    mask[..., 0] = True
    mask = mask.reshape((1,) * (4 - len(shape)) + shape)
    check(work_of((2, 3), 13, 21, 17, 24), mask=mask)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("empty_rows", [False, True])
def test_special_values(rows: int, empty_rows: bool) -> None:
    work = work_of((1,), rows, 19, 16, 12, empty_rows=empty_rows)
    q, k, v = array(1, rows, 16), array(1, 19, 16), array(1, 19, 12)
    mask = np.ones((1, rows, 19), bool)
    mask[0, 0] = False
    q[0, 1, 3] = nan
    v[0, 2, 5], v[0, 3, 7] = inf, nan
    y = Kernel(kernel(work, machine(), masked(mask.shape)))([q.ravel(), k.ravel(), v.ravel(), mask], work.y.shape)
    tq, tk, tv = (torch.from_numpy(a) for a in (q, k, v))
    p = (tq @ tk.mT * 0.5).masked_fill(~torch.from_numpy(mask), -inf).softmax(-1)
    if empty_rows:
        p = p.masked_fill(~torch.from_numpy(mask).any(-1, keepdim=True), 0)
    np.testing.assert_allclose(y, (p @ tv).numpy(), rtol=2e-5, atol=1e-6)


def test_one_row_of_one_head_is_left_to_kernels_that_cut_it() -> None:
    assert wins(work_of((1, 8), 128, 128, 64, 64), machine())
    assert wins(work_of((1, 1), 1, 256, 64, 64), machine())
    assert not wins(work_of((1, 1), 1, 8192, 64, 64), machine())


def test_small_plain_attention_is_left_to_separate_kernels() -> None:
    for lead, rows, keys, depth in (((1, 4), 16, 16, 16), ((1, 4), 1, 16, 16), ((2,), 8, 8, 16)):
        assert not wins(work_of(lead, rows, keys, depth, depth), machine(AVX512))
    for lead, rows, keys, depth in (((1, 4), 1, 64, 32), ((8,), 1, 64, 64), ((1, 4), 32, 32, 32)):
        assert wins(work_of(lead, rows, keys, depth, depth), machine(AVX512))
    heads = replace(work_of((1, 4), 16, 16, 16, 16), order=(0, 2, 1, 3))
    assert wins(heads, machine(AVX512))  # separate kernels would transpose
    one_row = replace(work_of((1, 4), 1, 16, 16, 16), order=(0, 2, 1, 3))
    assert not wins(one_row, machine(AVX512))  # which is no transposition of one row


def test_infinite_scores_give_what_softmax_gives() -> None:
    work = work_of((1,), 4, 9, 8, 8)
    q, k, v = array(1, 4, 8), array(1, 9, 8), array(1, 9, 8)
    q[0, 0] = 3e38
    y = Kernel(kernel(work, machine()))([q.ravel(), k.ravel(), v.ravel()], work.y.shape)
    tq, tk, tv = (torch.from_numpy(a) for a in (q, k, v))
    np.testing.assert_allclose(y, ((tq @ tk.mT).softmax(-1) @ tv).numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 11])
def test_reads_parts_of_one_array_and_writes_heads_side_by_side(rows: int) -> None:
    """q, k and v are columns of one projection (batch, words, 3, heads, depth); the output is (batch, words, heads, depth)."""
    heads, depth = 3, 12
    x = array(2, rows, 3, heads, depth)
    row = 3 * heads * depth
    q, k, v = (Strided(x.size, part * heads * depth, (rows * row, depth, row, 1)) for part in range(3))
    work = work_of((2, heads), rows, rows, depth, depth, q=q, k=k, v=v, order=(0, 2, 1, 3))
    bias = relu_with_bias(Tensor((2, rows, heads, depth)))
    bias = Epilogue((Tensor((1, 1, 1, depth)),), bias.element, bias.key)
    b = array(1, 1, 1, depth)
    y = Kernel(kernel(work, machine(), scaled(0.3), bias))([x.ravel()] * 3 + [b], work.y.shape)
    tq, tk, tv = (np.ascontiguousarray(x[:, :, part].transpose(0, 2, 1, 3)) for part in range(3))
    exact, bound = (a.transpose(0, 2, 1, 3) for a in exact_and_bound(work, tq, tk, tv, 0.3))
    assert (np.abs(y - np.maximum(exact + b, 0)) <= bound + U * np.abs(b)).all()


def test_keys_that_lie_transposed_and_are_shared_by_heads() -> None:
    work = work_of((2, 3), 9, 10, 8, 8, k=Strided(2 * 8 * 10, 0, (80, 0, 1, 10)))
    q, k, v = array(2, 3, 9, 8), array(2, 8, 10), array(2, 3, 10, 8)
    y = Kernel(kernel(work, machine(), NOTHING))([q.ravel(), k.ravel(), v.ravel()], work.y.shape)
    exact, bound = exact_and_bound(work, q, np.ascontiguousarray(np.broadcast_to(k.transpose(0, 2, 1)[:, None], (2, 3, 10, 8))), v, 1.0)
    assert (np.abs(y - exact) <= bound).all()


@pytest.mark.parametrize("target", each(AVX2, AVX512, BF16))
@pytest.mark.parametrize(
    "shape", [(1, 128, 20, 64), (2, 70, 32, 16), (3, 13, 17, 24), (9, 100, 16, 40), (1, 5, 8, 3), (20, 64, 5, 33), (9, 37, 32, 16)], ids=str
)
def test_keys_that_a_call_counts(shape: tuple[int, ...], target: Any) -> None:
    """Whatever lies behind the keys that are said to be read plays no part, and those between are masked."""
    rows, keys, depth, width = shape
    work = work_of((2,), rows, keys, depth, width, empty_rows=True)
    work = replace(work, rounded=work.may_round(machine(target)), tiles=work.may_use_tiles(machine(target)))
    mask = Epilogue((Tensor((1, 1, keys), "float32"),), lambda value, loads: value + loads[0], "add", 1)
    used, bounds = Extent(0, 1, -1), Bounds([(0, keys + 1)])
    maker = AttentionMaker(work, machine(target), mask, NOTHING)
    read, run = maker.read(used, bounds), Kernel(maker([used]), target)
    for count in sorted({0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 48, 49, keys // 2, keys - 1, keys} & set(range(keys + 1))):
        looked_at = keys if read is None else min(keys, read.at([count + 1]))
        assert looked_at < count + 2 * machine(target).lanes
        q, k, v = array(2, rows, depth), array(2, keys, depth), array(2, keys, width)
        exact, bound = exact_and_bound(work, q, k[:, : count or 1], v[:, : count or 1], 1.0)
        k[:, looked_at:], v[:, looked_at:] = nan, nan
        hidden = np.where(np.arange(keys) < count, np.float32(0), np.float32(-inf)).reshape(1, 1, keys)
        y = run([q.ravel(), k.ravel(), v.ravel(), hidden, np.array(count + 1, "int64")], work.y.shape)
        assert (np.abs(y - exact) <= bound).all() if count else not y.any()


ROUNDED = [(4, 1, 32, 16), (128, 128, 64, 64), (20, 37, 32, 48), (33, 197, 96, 80), (5, 16, 32, 16), (17, 33, 32, 32)]


@pytest.fixture(scope="module")
def tiles() -> Iterator[Any]:
    with emulated() as library:
        yield library


#: By AVX512-BF16, and by the tiles of AMX.
BY_BOTH = pytest.mark.parametrize(
    "target", [pytest.param(BF16, id="vectors", marks=needs(BF16)), pytest.param(TARGET, id="tiles", marks=CPU)]
)


def rounded(work: Attention, target: Any) -> Attention:
    assert work.may_round(machine(target))
    return replace(work, rounded=True, tiles=work.may_use_tiles(machine(target)))


@BY_BOTH
@pytest.mark.parametrize("shape", ROUNDED, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_factors_in_bfloat16(shape: tuple[int, ...], causal: bool, target: Any, tiles: Any) -> None:
    work = rounded(work_of((2,), *shape, causal=causal), target)
    assert not work.may_round(machine(AVX512)) and work.tiles == (target is TARGET)
    check(work, target, 0.1)
    q, k, v = (array(2, size, columns) for size, columns in ((shape[0], shape[2]), (shape[1], shape[2]), (shape[1], shape[3])))
    factor = shape[2] ** -0.5
    y = Kernel(kernel(work, machine(target), scaled(factor)), target)([q.ravel(), k.ravel(), v.ravel()], work.y.shape)
    error = np.abs(y - exact_and_bound(work, q, k, v, factor)[0]).max()
    assert (error > 1e-5 or shape[1] == 1) and error <= 8e-3 * np.abs(v).max()


@needs(BF16)
def test_what_is_not_rounded() -> None:
    """Few rows read the keys as they lie, and rows that are no whole vectors or have gaps are left to float32."""
    for shape in ((3, 40, 32, 16), (20, 40, 48, 16), (20, 40, 32, 8)):
        assert not work_of((2,), *shape).may_round(machine(BF16))
    assert not work_of((2,), 20, 40, 32, 16, k=Strided(2 * 1280, 0, (1280, 1, 40))).may_round(machine(BF16))


@BY_BOTH
def test_not_a_number_in_bfloat16(target: Any, tiles: Any) -> None:
    work = rounded(work_of((1,), 20, 19, 32, 16, empty_rows=True), target)
    q, k, v = array(1, 20, 32), array(1, 19, 32), array(1, 19, 16)
    mask = np.ones((1, 20, 19), bool)
    mask[0, 0] = False
    q[0, 1, 3] = nan
    v[0, 18, 5], v[0, 3, 7] = inf, nan
    y = Kernel(kernel(work, machine(target), masked(mask.shape)), target)([q.ravel(), k.ravel(), v.ravel(), mask], work.y.shape)[0]
    assert np.isnan(y[1]).all() and np.isposinf(y[2:, 5]).all() and np.isnan(y[2:, 7]).all()
    assert np.isfinite(np.delete(y, (5, 7), 1)[[0, *range(2, 20)]]).all() and not np.delete(y[0], (5, 7)).any()
