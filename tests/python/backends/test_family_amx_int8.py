# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products and convolutions of 8-bit integers by AMX, emulated where the CPU has none: exact, for the largest sums too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from amx_emulation import CPU, TARGET, emulated
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_utils import check_conv, check_dense, conv, dense, numbers
from kernel_utils import windows
from tvm import tirx

from dycl_tvm.backends.tir_cpu.database import key_of
from dycl_tvm.backends.tir_cpu.families import amx_conv, amx_dense
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense

MACHINE = machine_of(TARGET)


@pytest.fixture(scope="module", autouse=True)
def tiles() -> Iterator[Any]:
    with emulated() as library:
        yield library


# ---- products --------------------------------------------------------------------------------------------------------


@CPU
@pytest.mark.parametrize("work", [dense(1, 2, 3, 2), dense(3, 7, 33, 40), dense(1, 70, 20, 80), dense(1, 33, 50, 260)], ids=str)
def test_products(work: Dense, tiles: Any) -> None:
    plans = amx_dense.FAMILY.plans(work, MACHINE)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    x, w = numbers(0, 255, work.batch, work.m, work.k), numbers(-128, 127, work.k, work.n)
    before = tiles.amx_emulator_products() if tiles else 0
    for plan in plans:
        check_dense(amx_dense.FAMILY, work, plan, TARGET, x, w)
    assert not tiles or tiles.amx_emulator_products() > before


@CPU
@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(2, 40), st.integers(1, 70), st.integers(1, 200), st.integers(0, 3))
def test_random_products(batch: int, m: int, n: int, k: int, choice: int) -> None:
    work = dense(batch, m, n, k)
    plans = amx_dense.FAMILY.plans(work, MACHINE)
    x, w = numbers(0, 255, batch, m, k), numbers(-128, 127, k, n)
    check_dense(amx_dense.FAMILY, work, plans[choice % len(plans)], TARGET, x, w)


@CPU
@pytest.mark.parametrize("weight", [-128, 127])
def test_the_largest_sums_do_not_saturate(weight: int) -> None:
    work = dense(1, 2, 16, 300)
    x, w = np.full((1, 2, 300), 255, np.uint8), np.full((300, 16), weight, np.int8)
    check_dense(amx_dense.FAMILY, work, amx_dense.FAMILY.plans(work, MACHINE)[0], TARGET, x, w)


# ---- convolutions ----------------------------------------------------------------------------------------------------

#: Channels in and out, size, kernel, stride, padding, dilation, groups.
CASES: dict[str, tuple[Any, ...]] = {
    "3x3": (64, 32, (6, 20), (3, 3), (1, 1), (1, 1, 1, 1), 1, 1),
    "groups": (64, 32, (6, 5), (3, 3), (1, 1), (1, 1, 1, 1), 1, 2),
    "blocks_no_multiple": (40, 33, (7, 9), (3, 3), (2, 2), (1, 1, 1, 1), 1, 1),
    "few_channels": (6, 20, (9, 11), (5, 5), (1, 1), (2, 2, 2, 2), 1, 1),
    "pointwise": (80, 48, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1),
    "pointwise_stride_padding": (32, 16, (9, 7), (1, 1), (2, 2), (1, 0, 1, 1), 1, 1),
    "dilated": (16, 16, (9, 12), (3, 3), (1, 1), (2, 2, 2, 2), 2, 1),
    "rows_longer_than_tiles": (16, 16, (3, 40), (3, 3), (1, 1), (1, 1, 1, 1), 1, 1),
}


@CPU
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    work = replace(conv(TARGET, 1, *CASES[name]), border=len(name))
    plans = amx_conv.FAMILY.plans(work, MACHINE)
    for plan in (plans[0], plans[-1]):
        check_conv(amx_conv.FAMILY, work, plan, TARGET)


@CPU
def test_convolutions_of_few_channels_read_planes() -> None:
    for channels, size, kernel, stride in ((3, (12, 37), (7, 7), (2, 2)), (1, (9, 7), (3, 3), (1, 1)), (4, (9, 17), (1, 1), (2, 2))):
        work = conv(TARGET, 2, channels, 20, size, kernel, stride, (kernel[0] // 2,) * 4, 1, 1)
        plain = replace(work, x=replace(work.x, block=1), border=7)
        check_conv(amx_conv.FAMILY, plain, amx_conv.FAMILY.plans(plain, MACHINE)[0], TARGET)
    wide = conv(TARGET, 1, 5, 16, (4, 4), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1)
    assert not amx_conv.FAMILY.plans(replace(wide, x=replace(wide.x, block=1)), MACHINE)


@CPU
@settings(max_examples=6, deadline=None, derandomize=True)
@given(windows(), st.integers(1, 70), st.integers(1, 40), st.integers(1, 2), st.integers(0, 255), st.integers(0, 11))
def test_random_convolutions(window: Any, c: int, o: int, stride: int, border: int, choice: int) -> None:
    size, kernel, padding, dilation = window
    work = replace(conv(TARGET, 1, c, o, size, kernel, (stride, stride), padding, dilation, 1), border=border)
    if plans := amx_conv.FAMILY.plans(work, MACHINE):
        check_conv(amx_conv.FAMILY, work, plans[choice % len(plans)], TARGET)


@CPU
def test_one_row_of_each_band_and_an_odd_number_of_tiles() -> None:
    """No bound is found for where a tile begins; the size of the copy then named a variable of a loop, and that did not compile."""
    work = conv(TARGET, 1, 5, 16, (32, 41), (1, 1), (2, 1), (0, 0, 0, 0), 1, 1)
    check_conv(
        amx_conv.FAMILY, work, amx_conv.AmxConvPlan(0.0, **{"high": 2, "wide": 1, "flat": 0, "output_parts": 1, "parts": 16}), TARGET
    )


# ---- who gets it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [dense(1, 64, 768, 768), conv(TARGET, 1, 64, 64, (32, 32), (3, 3), (1, 1), (1,) * 4, 1, 1)], ids=str)
def test_the_cpu_decides(work: Dense | Conv2D, tmp_path: Any) -> None:
    assert MACHINE.amx_int8 and not machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"})).amx_int8
    without = replace(MACHINE, amx_int8=False)

    def chosen(machine: Any, disabled: frozenset[str] = frozenset()) -> str:
        selector = Selector(machine, KernelOptions(database=str(tmp_path / "none.json"), disabled_families=disabled), TARGET)
        found = selector.product(work) if isinstance(work, Dense) else selector.convolution(work)
        assert found is not None
        return found.name

    assert (chosen(MACHINE), chosen(without), chosen(MACHINE, frozenset({"amx"}))) == ("amx", "int8", "int8")
    # what was measured on a CPU without tiles says nothing of one that has them
    assert key_of(work, MACHINE, "default") != key_of(work, without, "default")


def test_one_row_is_left_to_vectors() -> None:
    assert not amx_dense.FAMILY.plans(dense(1, 1, 1000, 2048), MACHINE)


def test_a_line_of_the_copy_is_written_at_once() -> None:
    """Block by block, each line of 64 bytes came to the nearest cache once for every 16 of its bytes: half of a kernel's time."""
    work = conv(TARGET, 1, 128, 16, (8, 8), (1, 1), (1, 1), (0, 0, 0, 0), 1, 1)
    together = []

    def visit(loop: tirx.For) -> None:
        inner = loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
        together.append(sum(isinstance(s, tirx.BufferStore) and str(s.buffer.dtype) == "int32" for s in inner))

    tvm_ffi.structural_walk(amx_conv.FAMILY.kernel(work, amx_conv.FAMILY.plans(work, MACHINE)[0], MACHINE).body, (tirx.For, visit))
    assert 4 in together
