# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of which calls decide how many rows there are: bodies for few rows in one kernel, on the same packed weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from kernel_utils import AVX2, DENORMAL, machine, meets_denormals
from tvm import tirx

from dycl_tvm.backends.extents import Bounds, Digits, Extent, Wanted
from dycl_tvm.backends.front import found, with_front
from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.products import ProductMaker
from dycl_tvm.backends.tir_cpu.front import add_sizes
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Epilogue, Tensor

N, M = Extent(0, 1, 0), Extent(1, 1, 0)
ALONE = replace(machine(), cores=1)  # what runs in threads needs the runtime


def maker(work: Dense, epilogue: Epilogue, varied: bool = True) -> ProductMaker:
    selector = Selector(ALONE, KernelOptions(), AVX2, varied=varied)
    chosen = selector.product(work)
    assert chosen is not None
    return ProductMaker(chosen, selector.fewer(chosen), ALONE, epilogue)


def bodies(fn: Any) -> list[Any]:
    """Return the tests of a kernel that read a size."""
    return [s for s in found(fn.body, tirx.IfThenElse) if "length" in str(s.condition)]


def added(*shape: int) -> Epilogue:
    return Epilogue((Tensor(shape),), lambda value, loads: value + loads[0], "add")


@pytest.mark.parametrize(
    ("work", "operand", "wanted", "sizes"),
    [
        (Dense(1, 64, 50, 40), (1, 64, 50), (None, N, None), [(n,) for n in (0, 1, 2, 3, 4, 5, 63, 64)]),
        (Dense(1, 10, 50, 40), (1, 1, 50), (None, N, None), [(n,) for n in (0, 1, 2, 3, 9, 10)]),
        (Dense(64, 1, 50, 40), (64, 1, 50), (N, None, None), [(n,) for n in (0, 1, 2, 3, 4, 5, 64)]),
        (Dense(4, 16, 50, 40), (4, 16, 50), (N, M, None), [(b, t) for b in (0, 1, 2, 4) for t in (0, 1, 2, 3, 16)]),
        (Dense(1, 64, 50, 40), (1, 64, 50), (None, Digits((8, 8), (N, M)), None), [(b, t) for b in (0, 1, 2, 8) for t in (0, 1, 2, 3, 8)]),
    ],
)
def test_right_with_nan_behind_what_is_wanted(work: Dense, operand: tuple[int, ...], wanted: Wanted, sizes: list[tuple[int, ...]]) -> None:
    make, bounds = maker(work, added(*operand)), Bounds([(0, 64), (0, 64)])
    own = make.own(wanted, bounds)
    fn = make(own)
    assert len(bodies(fn)) >= (len(make.fewer) if own else 0)
    module = compile_kernels({"front": add_sizes(with_front(fn, wanted)).with_attr("global_symbol", "front")}, AVX2)
    random = np.random.default_rng(0)
    packed = make.product.packed(ALONE).shape
    w, extra = (random.standard_normal(s).astype("float32") for s in (packed, operand))
    weights = np.concatenate(list(w), 1)[:, : work.n]
    for given in sizes:
        there = np.zeros((work.batch, work.m), bool)
        places = []
        for size, limit in zip(there.shape, wanted):
            places.append(
                limit.places(given) if isinstance(limit, Digits) else list(range(size if limit is None else min(size, limit.at(given))))
            )
        there[np.ix_(*places)] = True
        x = random.standard_normal((work.batch, work.m, work.k)).astype("float32")
        expected = x @ weights + extra
        numbers = [np.array(n, "int64") for n in given[: len(fn.params) - 4 if own else len(given)]]
        for behind in (DENORMAL, np.nan):
            x[~there] = behind
            args: Any = [
                tvm.runtime.tensor(a)
                for a in (x, w, extra, *(numbers if own else ()), *numbers, np.zeros((work.batch, work.m, work.n), "float32"))
            ]
            slow = meets_denormals(lambda args=args: module["front"](*args))  # type: ignore[misc]
            assert not (slow and there.any())
        np.testing.assert_allclose(args[-1].numpy()[there], expected[there], rtol=1e-3, atol=1e-3)


def test_the_bodies_for_few_rows_read_the_weights_of_the_other() -> None:
    make = maker(Dense(1, 64, 512, 256), Epilogue())
    assert [c.work.m for c in make.fewer] == [1, 2, 3]
    for few in make.fewer:
        assert few.packed(ALONE) == make.product.packed(ALONE)


def test_no_body_where_no_call_has_so_few_rows() -> None:
    make = maker(Dense(1, 64, 512, 256), Epilogue())
    of_all, of_many = (make.own((None, N, None), Bounds([(least, 64)])) for least in (1, 63))
    assert of_all == (None, N, Extent.number(0)) and of_many == (None, N, Extent.number(62))
    assert len(bodies(make(of_all))) == len(bodies(make(of_many))) + len(make.fewer)
    assert make.own((None, None, None), Bounds([])) == ()
    assert not bodies(make())


def test_the_last_tile_may_be_half_a_tile() -> None:
    make = maker(Dense(1, 64, 50, 40), Epilogue())
    wanted: Wanted = (None, N, None)
    fn = with_front(make(make.own(wanted, Bounds([(1, 64)]))), wanted)
    module = compile_kernels({"front": add_sizes(fn).with_attr("global_symbol", "front")}, AVX2)
    tile: int = make.product.plan.rows  # type: ignore[attr-defined]  # of a family that has tiles of rows
    half = -(-tile // 2)
    assert half < tile
    for rows, computed in ((tile + half, tile + half), (tile + half + 1, 2 * tile), (2 * tile, 2 * tile)):
        x, w, n = np.ones((1, 64, 40), "float32"), np.ones(make.product.packed(ALONE).shape, "float32"), np.array(rows, "int64")
        args: Any = [tvm.runtime.tensor(a) for a in (x, w, n, n, np.full((1, 64, 50), 7, "float32"))]
        module["front"](*args)
        assert (args[-1].numpy()[0, :computed] == 40).all()
        assert (args[-1].numpy()[0, computed:] == 7).all()


def test_static_models_have_one_body() -> None:
    assert maker(Dense(1, 64, 512, 256), Epilogue(), varied=False).fewer == ()
