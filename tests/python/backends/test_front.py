# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that compute the first rows only: which trips they skip, and that what they compute is right."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from kernel_utils import AVX2, machine, pack
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Digits, Extent
from dycl_tvm.backends.front import found, with_front
from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.attention import kernel
from dycl_tvm.backends.tir_cpu.families.dense_blocked import FAMILY
from dycl_tvm.backends.tir_cpu.families.normalisation import layer_norm
from dycl_tvm.backends.tir_cpu.families.relayout import kernel as relayout
from dycl_tvm.backends.tir_cpu.front import add_sizes, skip_behind
from dycl_tvm.backends.tir_cpu.words.attention import Attention, Strided
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Tensor

N = Extent(0, 1, 0)


@pytest.mark.parametrize(("rows", "k"), [(64, 256), (128, 1024)])
def test_rows_behind_what_is_wanted_are_not_computed(rows: int, k: int) -> None:
    """Tiles of many rows, and such as a kernel copies for itself: what is behind the last tile that is wanted stays as it was."""
    work = Dense(1, rows, 64, k)
    alone = replace(machine(), cores=1)  # what runs in threads needs the runtime
    plan = FAMILY.plans(work, alone)[0]
    front = with_front(FAMILY.kernel(work, plan, alone), (None, N, None))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype("float32") for shape in ((1, rows, k), FAMILY.packed(work, plan, alone).shape))
    weights = np.concatenate(list(w), 1)[:, :64]
    for n in (0, 1, plan.rows, rows // 2, rows - 1, rows):
        given: Any = [tvm.runtime.tensor(a) for a in (x, w, np.array(n, "int64"), np.full((1, rows, 64), 7, "float32"))]
        module["front"](*given)
        y = given[-1].numpy()[0]
        np.testing.assert_allclose(y[:n], (x[0] @ weights)[:n], rtol=1e-3, atol=1e-3)
        assert (y[n + plan.rows :] == 7).all()


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize(("shape", "k"), [((4, 16), 256), ((2, 5, 13), 1024)])
def test_rows_of_several_lengths_are_those_before_each(shape: tuple[int, ...], k: int, fine: bool) -> None:
    """Rows count through several dimensions: of a tile that has no row before all the sizes nothing is stored."""
    rows, alone = math.prod(shape), replace(machine(), cores=1)
    work = Dense(1, rows, 64, k)
    plan = FAMILY.plans(work, alone)[0]
    plan = FAMILY.finer(work, plan, alone) if fine else plan
    limits = tuple(Extent(d, 1, 0) for d in range(len(shape)))
    front = with_front(FAMILY.kernel(work, plan, alone), (None, Digits(shape, limits), None))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(s).astype("float32") for s in ((1, rows, k), FAMILY.packed(work, plan, alone).shape))
    expected = x[0] @ np.concatenate(list(w), 1)[:, :64]
    for sizes in itertools.product(*({0, 1, n // 2, n - 1, n} for n in shape)):
        wanted = np.zeros(shape, bool)
        wanted[tuple(slice(n) for n in sizes)] = True
        given: Any = [tvm.runtime.tensor(a) for a in (x, w, *(np.array(n, "int64") for n in sizes), np.full((1, rows, 64), 7, "float32"))]
        module["front"](*given)
        y, there = given[-1].numpy()[0], wanted.reshape(-1)
        np.testing.assert_allclose(y[there], expected[there], rtol=1e-3, atol=1e-3)
        near = np.convolve(there, np.ones(2 * plan.rows - 1), "same") > 0
        assert not all(sizes) or (y[~near] == 7).all()  # a tile over the end of a dimension does not know that the next has no rows


def test_a_view_of_all_rows_follows_all_lengths() -> None:
    shape = (3, 7, 32)
    front = with_front(layer_norm(shape, 1, 1e-5, replace(machine(), cores=1), False, False), (N, Extent(1, 1, 0), None))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for b, t in itertools.product(range(4), range(8)):
        given: Any = [tvm.runtime.tensor(a) for a in (x, np.array(b, "int64"), np.array(t, "int64"), np.full(shape, 7, "float32"))]
        module["front"](*given)
        y = given[-1].numpy()
        np.testing.assert_allclose(y[:b, :t], (x - x.mean(-1, keepdims=True))[:b, :t] / x[:b, :t].std(-1, keepdims=True), atol=1e-3)
        assert (y[b:] == 7).all() and (y[:, t:] == 7).all()


@pytest.mark.parametrize("channels", [3, 11])
def test_tiles_of_vectors_behind_what_is_wanted_are_not_unpacked(channels: int) -> None:
    """Of each channel the same is wanted, and vectors are stored: a tile reaches from its first element to its last."""
    plain = Tensor((2, channels, 6, 16), "float32")
    packed = replace(plain, block=machine().lanes)
    front = with_front(relayout(packed, plain, replace(machine(), cores=1)), (None, None, N, Extent(1, 1, 0)))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    x = np.random.default_rng(0).standard_normal(plain.shape).astype("float32")
    for rows, columns in itertools.product((0, 1, 5, 6), (0, 3, 8, 9, 16)):
        arrays = (pack(x, packed.block), np.array(rows, "int64"), np.array(columns, "int64"), np.full(plain.shape, 7, "float32"))
        given: Any = [tvm.runtime.tensor(a) for a in arrays]
        module["front"](*given)
        y = given[-1].numpy()
        assert (y[:, :, :rows, :columns] == x[:, :, :rows, :columns]).all()
        assert (y[:, :, rows:] == 7).all() and (y[..., -(-columns // packed.block) * packed.block :] == 7).all()


@pytest.mark.parametrize("rows", [21, 40])
def test_queries_behind_what_is_wanted_are_not_computed(rows: int) -> None:
    """The scores of a tile of queries lie in memory that all tiles of a head share: each tile writes what it reads."""
    shape, alone = (2, rows, 16), replace(machine(), cores=1)
    plain = Strided(math.prod(shape), 0, (rows * 16, 16, 1))
    work = Attention((2,), rows, rows, 16, 16, plain, plain, plain, (0, 1, 2))
    front = with_front(kernel(work, alone), (None, N, None))
    module = compile_kernels({"front": add_sizes(front).with_attr("global_symbol", "front")}, AVX2)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal(shape).astype("float32") for _ in range(3))
    scores = np.exp(q @ k.swapaxes(1, 2))
    expected = scores / scores.sum(-1, keepdims=True) @ v
    for n in (0, 1, 7, rows // 2, rows - 1, rows):
        arrays = (q.ravel(), k.ravel(), v.ravel(), np.array(n, "int64"), np.full(shape, 7, "float32"))
        given: Any = [tvm.runtime.tensor(a) for a in arrays]
        module["front"](*given)
        y = given[-1].numpy()
        np.testing.assert_allclose(y[:, :n], expected[:, :n], rtol=1e-4, atol=1e-5)
        assert (y[:, n + 8 :] == 7).all()  # no tile has more queries


@pytest.mark.parametrize("falls", [True, False])
def test_what_a_later_trip_reads_is_computed(falls: bool) -> None:
    """A sum that goes from trip to trip: trips at the end may be missing, those at the beginning not."""

    def body(x: Any, y: Any) -> None:
        total = T.alloc_buffer((4,), "float32")
        with T.serial(0, 8) as i, T.serial(0, 4) as j:
            store(total, [j], tirx.Select(i == 0, tirx.const(0, "float32"), total[j]) + x[i, j])
            store(y, [i if falls else 7 - i, j], total[j])

    fn = prim_func([("x", (8, 4), "float32"), ("y", (8, 4), "float32")], body)
    module = compile_kernels({"front": add_sizes(with_front(fn, (N, None))).with_attr("global_symbol", "front")}, AVX2)
    data = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
    sums = data.cumsum(0) if falls else data.cumsum(0)[::-1]
    for n in (0, 1, 3, 8):
        given: Any = [tvm.runtime.tensor(a) for a in (data, np.array(n, "int64"), np.full((8, 4), 7, "float32"))]
        module["front"](*given)
        np.testing.assert_allclose(given[-1].numpy()[:n], sums[:n], rtol=1e-5)
        assert not falls or (given[-1].numpy()[n:] == 7).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_loops_end_where_nothing_more_is_wanted(order: tuple[int, int]) -> None:
    """An index that counts through two dimensions, and innermost loops: no trip is left that asks."""

    def flat(x: Any, y: Any) -> None:
        with T.serial(0, 12 * 32) as i:
            store(y, [i], x[i] + 1)

    def nested(x: Any, y: Any) -> None:
        with T.serial(0, 12) as i, T.serial(0, 32) as j:
            place = (i, j) if order == (0, 1) else ((i * 32 + j) % 12, (i * 32 + j) // 12)
            store(y, [place[0] * 32 + place[1]], x[place[0] * 32 + place[1]] + 1)

    def of_vectors(x: Any, y: Any) -> None:
        with T.serial(0, 12 * 32 // 4) as i, T.vectorized(0, 4) as e:
            store(y, [i * 4 + e], x[i * 4 + e] + 1)

    limit = Digits((12, 32), (N, Extent(1, 8, 0)))
    for body, ends in ((flat, True), (nested, order == (0, 1)), (of_vectors, True)):
        fn = with_front(prim_func([("x", (384,), "float32"), ("y", (384,), "float32")], body), (limit,))
        loops = found(skip_behind(add_sizes(fn)).body, tirx.For)
        assert not ends or not any(found(loops[-1], tirx.IfThenElse))
        module = compile_kernels({"front": add_sizes(fn).with_attr("global_symbol", "front")}, AVX2)
        data = np.random.default_rng(0).standard_normal(384).astype("float32")
        for n, m in itertools.product((0, 1, 5, 12), (0, 1, 3, 4)):
            numbers = [np.array(k, "int64") for k in (n, m)]
            given: Any = [tvm.runtime.tensor(a) for a in (data, *numbers, np.full(384, 7, "float32"))]
            module["front"](*given)
            y = given[-1].numpy().reshape(12, 32)
            np.testing.assert_array_equal(y[:n, : 8 * m], (data + 1).reshape(12, 32)[:n, : 8 * m])
            assert not ends or ((y[n:] == 7).all() and (y[:, 8 * m :] == 7).all())
