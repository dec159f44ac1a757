# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Winograd convolutions against float64, for shapes that fit the tiles and shapes that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_utils as ku
import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, SSE, Kernel, each, pack, relu_with_bias, unpack
from tvm import tirx

from dycl_tvm.backends.extents import Extent
from dycl_tvm.backends.tir_cpu.families.conv_winograd import FAMILY, WinogradMaker
from dycl_tvm.backends.tir_cpu.families.conv_winograd_loops import WinogradPlan
from dycl_tvm.backends.tir_cpu.options import Accuracy, KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor
from dycl_tvm.errors import UsageError

#: Max error / max abs output against float64, as the module's docstring states it.
BOUND = {2: 2e-6, 4: 8e-6}


def conv(target: Any, n: int, ci: int, co: int, h: int, w: int, padding: tuple[int, int, int, int] = (1, 1, 1, 1)) -> Conv2D:
    return ku.conv((ci, co), (h, w), (3, 3), padding=padding, batch=n, lanes=machine_of(target).lanes)


def plan(m: int, oc: int = 1, cols: int = 1, blocks: int = 1, split: int = 0) -> WinogradPlan:
    return WinogradPlan(0.0, m, oc, cols, blocks, split)


def residual(y: Tensor) -> Epilogue:
    """max(value + residual, 1): not zero for zeros."""
    return Epilogue((y,), lambda value, loads: tirx.max(value + loads[0], tirx.const(1, "float32")), "residual", 2)


def error(target: Any, work: Conv2D, chosen: WinogradPlan, kind: str = "", seed: int = 0) -> float:
    """Run a plan on normally distributed values; return max error / max abs output."""
    machine = machine_of(target)
    random = np.random.default_rng(seed)
    x = random.standard_normal(work.x.shape).astype("float32")
    w = (random.standard_normal(work.weight_shape) / np.sqrt(9 * work.x.shape[1])).astype("float32")
    top, left, bottom, right = work.padding
    padded = torch.nn.functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    expected = torch.conv2d(padded, torch.from_numpy(w).double()).numpy()
    operands, epilogue = [], NOTHING
    if kind == "bias+relu":
        bias = random.standard_normal((1, work.y.shape[1], 1, 1)).astype("float32")
        operands, epilogue, expected = [bias], relu_with_bias(work.y), np.maximum(expected + bias, 0)
    elif kind == "residual":
        other = random.standard_normal(work.y.shape).astype("float32")
        operands, epilogue, expected = [other], residual(work.y), np.maximum(expected + other, 1)
    u = Kernel(FAMILY.pack(work, chosen, machine), target)([w], FAMILY.packed(work, chosen, machine).physical)
    kernel = Kernel(FAMILY.kernel(work, chosen, machine, epilogue), target)
    y = unpack(kernel([pack(x, work.x.block), u, *(pack(o, work.y.block) for o in operands)], work.y.physical), work.y)
    return float(np.abs(y - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("target", each(SSE, AVX2, AVX512))
@pytest.mark.parametrize("m", [2, 4])
def test_planned_kernels_are_right(target: Any, m: int) -> None:
    work = conv(target, 2, 19, 3 * machine_of(target).lanes - 1, 13, 17)
    best = next(p for p in FAMILY.plans(work, machine_of(target)) if p.m == m)
    assert error(target, work, best, "bias+relu") < BOUND[m]


@pytest.mark.parametrize(
    ("m", "shape", "padding", "chosen", "kind"),
    [
        (4, (1, 1, 1, 1, 1), (1, 1, 1, 1), {}, ""),  # one tile, mostly padding
        (4, (1, 3, 20, 3, 3), (0, 0, 0, 0), {"oc": 2}, "residual"),  # one output pixel
        (2, (1, 8, 8, 2, 9), (2, 2, 2, 2), {"cols": 3}, "bias+relu"),  # whole rows of padding
        (4, (3, 9, 24, 7, 7), (1, 1, 1, 1), {"oc": 2, "cols": 2, "blocks": 4}, "residual"),  # 6 rows in 4 blocks; groups of 2 and 1
        (4, (3, 17, 24, 7, 7), (1, 1, 1, 1), {"oc": 2, "cols": 2, "blocks": 4, "split": 1}, "bias+relu"),
        (2, (1, 16, 16, 8, 8), (1, 0, 0, 2), {"oc": 2, "cols": 4, "blocks": 2, "split": 1}, "residual"),
        (4, (1, 16, 64, 33, 30), (1, 1, 1, 1), {"oc": 3, "cols": 3, "blocks": 3}, "residual"),
    ],
)
def test_hard_shapes(m: int, shape: tuple[int, ...], padding: tuple[int, int, int, int], chosen: dict[str, int], kind: str) -> None:
    assert error(AVX2, conv(AVX2, *shape, padding), plan(m, **chosen), kind) < BOUND[m]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data())
def test_random_shapes(data: st.DataObject) -> None:
    size = st.integers(1, 21)
    padding = data.draw(st.tuples(*[st.integers(0, 2)] * 4))
    n, ci, co = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    h, w = max(data.draw(size), 3 - padding[0] - padding[2]), max(data.draw(size), 3 - padding[1] - padding[3])
    work = conv(AVX2, n, ci, co, h, w, padding)
    chosen = data.draw(st.sampled_from(FAMILY.plans(work, machine_of(AVX2))))
    kind = data.draw(st.sampled_from(["", "bias+relu", "residual"]))
    assert error(AVX2, work, chosen, kind) < BOUND[chosen.m]


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("channels", [8, 512])
def test_accuracy(m: int, channels: int) -> None:
    worst = max(error(AVX2, conv(AVX2, 1, channels, 64, 16, 16), plan(m, 2, 4), seed=seed) for seed in range(2))
    assert worst < BOUND[m]


def test_strict_allows_only_the_small_tile(tmp_path: Path) -> None:
    work, machine = conv(AVX2, 1, 64, 64, 32, 32), machine_of(AVX2)
    plans = FAMILY.plans(work, machine)
    assert {p.m for p in plans} == {2, 4} and {p.m for p in plans if p.strict} == {2}
    cases: tuple[tuple[Accuracy, int], ...] = (("strict", 2), ("default", 4))
    for accuracy, m in cases:
        options = KernelOptions(accuracy=accuracy, disabled_families=frozenset(("direct",)), database=str(tmp_path / "none.json"))
        chosen = Selector(machine, options, AVX2).convolution(work)
        assert chosen is not None and dict(chosen.plan.params)["m"] == m


def test_the_estimate_knows_what_weights_cost() -> None:
    machine = replace(machine_of(AVX2), l3=16 << 20)
    assert FAMILY.plans(conv(AVX2, 1, 64, 64, 32, 32), machine)[0].m == 4
    heavy = FAMILY.plans(conv(AVX2, 1, 512, 512, 4, 4), machine)
    assert heavy[0].m == 2
    # more bytes than the caches hold come from memory, for all cores together no faster than this
    seconds = min(plan.seconds for plan in heavy if plan.m == 4)
    assert seconds > 36 * 512 * 512 * 4 / (machine.bandwidth * 1e9 * machine.cores)


def test_other_convolutions_are_left_to_others() -> None:
    machine = machine_of(AVX2)
    x, y = Tensor((1, 16, 9, 9), block=8), Tensor((1, 16, 9, 9), block=8)
    assert FAMILY.plans(Conv2D(x, y, (3, 3), padding=(1, 1, 1, 1)), machine)
    assert not FAMILY.plans(Conv2D(x, y, (1, 1)), machine)
    assert not FAMILY.plans(Conv2D(x, Tensor((1, 16, 5, 5), block=8), (3, 3), (2, 2), (1, 1, 1, 1)), machine)
    assert not FAMILY.plans(Conv2D(x, y, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)), machine)
    assert not FAMILY.plans(Conv2D(x, y, (3, 3), padding=(1, 1, 1, 1), groups=2), machine)
    assert not FAMILY.plans(Conv2D(Tensor((1, 16, 9, 9)), y, (3, 3), padding=(1, 1, 1, 1)), machine)


@pytest.mark.parametrize("bad", [plan(3), plan(4, cols=5), plan(4, blocks=3), plan(4, oc=0)])
def test_plans_that_do_not_fit_are_refused(bad: WinogradPlan) -> None:
    with pytest.raises(UsageError, match="winograd"):
        FAMILY.kernel(conv(AVX2, 1, 8, 8, 8, 8), bad, machine_of(AVX2))


def test_kernels_compile_for_aarch64(tmp_path: Path) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57"})
    work, machine = conv(target, 1, 10, 12, 9, 9), machine_of(target)
    fn = FAMILY.kernel(work, FAMILY.plans(work, machine)[0], machine, relu_with_bias(work.y))
    module = tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), target=target)
    module.mod.write_to_file(str(tmp_path / "kernel.o"))
    assert (tmp_path / "kernel.o").read_bytes()[18] == 0xB7  # the ELF machine AArch64


@pytest.mark.parametrize(
    ("chosen", "shape"),
    [
        (plan(4, oc=2, cols=3, blocks=3), (2, 19, 40, 13, 17)),
        (plan(4, oc=1, cols=12, blocks=1, split=1), (1, 16, 16, 24, 16)),
        (plan(2, oc=3, cols=2, blocks=5), (3, 8, 24, 7, 6)),
    ],
)
def test_of_images_rows_and_columns_only_what_is_wanted(chosen: WinogradPlan, shape: tuple[int, ...]) -> None:
    """Whatever reaches into what is wanted is read and no more: what else the image and the output hold is NaN."""
    work, machine = conv(AVX2, *shape), machine_of(AVX2)
    random = np.random.default_rng(0)
    x = random.standard_normal(work.x.shape).astype("float32")
    w = (random.standard_normal(work.weight_shape) / np.sqrt(9 * work.x.shape[1])).astype("float32")
    expected = torch.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1).numpy()
    u = Kernel(FAMILY.pack(work, chosen, machine), AVX2)([w], FAMILY.packed(work, chosen, machine).physical)
    make = WinogradMaker(work, chosen, machine, NOTHING)
    own = (Extent(0, 1, 0), Extent(1, 2, 1), Extent(3, 1, -1), None, None)
    run = tvm.compile(tvm.IRModule({"main": make(own).with_attr("global_symbol", "main")}), AVX2)
    n, _, height, width = work.y.shape
    for sizes in ((0, 3, 4), (1, 0, 2), (n, 2, 1), (n, -1, 9), (1, 2, width + 1), (n + 1, height, width + 9), (1, 1, 8)):
        count, rows, columns = (max(0, min(*e)) for e in zip((sizes[0], 2 * sizes[1] + 1, sizes[2] - 1), (n, height, width)))
        there = x.copy()
        # the last tile's columns and rows reach one further
        there[:, :, -(-rows // chosen.m) * chosen.m + 1 :] = there[..., -(-columns // chosen.m) * chosen.m + 1 :] = np.nan
        there[count:] = np.nan
        y = tvm.runtime.tensor(np.full(work.y.physical, np.nan, "float32"))
        run["main"](*(tvm.runtime.tensor(a) for a in (pack(there, work.x.block), u, *(np.array(s, "int64") for s in sizes))), y)
        got = unpack(np.nan_to_num(y.numpy()), work.y)[:count, :, :rows, :columns]
        np.testing.assert_allclose(got, expected[:count, :, :rows, :columns], rtol=1e-3, atol=1e-4)
        assert np.isnan(y.numpy()[count:]).all()


@pytest.mark.parametrize("chosen", [plan(2, oc=1, cols=9, blocks=1), plan(4, oc=2, cols=5, blocks=2), plan(4, cols=6, blocks=1, split=1)])
def test_no_denormal_number_behind_what_is_wanted_is_multiplied(chosen: WinogradPlan) -> None:
    """Neither of the image nor of the kernel's own memory, in which an earlier call left some."""
    work, machine = conv(AVX2, 1, 11, 16, 14, 15), replace(machine_of(AVX2), cores=1)
    x = np.random.default_rng(0).standard_normal(work.x.shape).astype("float32")
    u = np.ones(FAMILY.packed(work, chosen, machine).physical, "float32")
    fn = WinogradMaker(work, chosen, machine, NOTHING)((None, Extent(0, 1, 0), Extent(1, 1, 0), None, None))
    run = tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), AVX2)
    y = tvm.runtime.tensor(np.zeros(work.y.physical, "float32"))

    def slow(rows: int, columns: int, image: Any) -> bool:
        args = [tvm.runtime.tensor(a) for a in (pack(image, work.x.block), u, np.array(rows, "int64"), np.array(columns, "int64"))]
        return ku.meets_denormals(lambda: run["main"](*args, y))

    height, width = work.y.shape[2:]
    for rows, columns in ((1, 1), (4, 5), (1, width), (height, 1), (9, 9)):
        assert slow(height, width, np.full_like(x, ku.DENORMAL))
        there = np.full_like(x, ku.DENORMAL)
        there[..., : rows + 1, : columns + 1] = x[..., : rows + 1, : columns + 1]
        assert not slow(rows, columns, there)


@pytest.mark.parametrize(("m", "cols"), [(2, 1), (4, 7)])
def test_what_lies_behind_the_end_of_an_image_is_zero(m: int, cols: int) -> None:
    """An image that ends at a row and a column of the call has zeros behind them, whatever lies there; for every number of tiles."""
    work, machine = conv(AVX2, 1, 11, 16, 14, 15), machine_of(AVX2)
    chosen = plan(m, oc=1, cols=cols, blocks=2)
    random = np.random.default_rng(0)
    x = random.standard_normal(work.x.shape).astype("float32")
    w = (random.standard_normal(work.weight_shape) / np.sqrt(9 * work.x.shape[1])).astype("float32")
    u = Kernel(FAMILY.pack(work, chosen, machine), AVX2)([w], FAMILY.packed(work, chosen, machine).physical)
    sizes = (Extent(0, 1, 0), Extent(1, 1, 0))
    fn = WinogradMaker(work, chosen, machine, NOTHING)((None, *sizes, *sizes))
    run = tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), AVX2)
    height, width = work.y.shape[2:]
    for rows, columns in [*((k, k) for k in range(height + 1)), (1, width), (height, 1), (height - 1, width), (5, 9), (9, 5)]:
        there, zeros = np.full_like(x, np.nan), np.zeros_like(x)
        there[..., :rows, :columns] = zeros[..., :rows, :columns] = x[..., :rows, :columns]
        expected = torch.conv2d(torch.from_numpy(zeros).double(), torch.from_numpy(w).double(), padding=1).numpy()
        y = tvm.runtime.tensor(np.full(work.y.physical, np.nan, "float32"))
        run["main"](
            *(tvm.runtime.tensor(a) for a in (pack(there, work.x.block), u, np.array(rows, "int64"), np.array(columns, "int64"))), y
        )
        got = unpack(np.nan_to_num(y.numpy(), nan=7), work.y)[..., :rows, :columns]
        np.testing.assert_allclose(got, expected[..., :rows, :columns], rtol=1e-3, atol=1e-4)
