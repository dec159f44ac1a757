# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products and convolutions in bfloat16 by AMX against float64, emulated where the CPU has none; the bounds are in bf16_utils.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from amx_emulation import CPU, TARGET, emulated
from bf16_utils import CASES, Checker, array, check, conv, matmul, typed, workloads
from halves_utils import EACH, check_conv
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.backends.tir_cpu import tuning
from dycl_tvm.backends.tir_cpu.database import key_of
from dycl_tvm.backends.tir_cpu.families import amx_conv, amx_dense, bf16_dense
from dycl_tvm.backends.tir_cpu.families.family import Candidate
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.amx import Pairs, Tiles, even_rows
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import HALF, Conv2D, Dense
from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.trailer import cpu_flags

MACHINE = machine_of(TARGET)
CHECKER = Checker(amx_dense.FAMILY, amx_conv.FAMILY, TARGET)
SPLIT = Checker(amx_dense.FAMILY, amx_conv.FAMILY, TARGET, "bf16x3")
BOTH = pytest.mark.parametrize("checker", [CHECKER, SPLIT], ids=lambda c: c.accuracy)


@pytest.fixture(scope="module")
def tiles() -> Iterator[Any]:
    with emulated() as library:
        yield library


# ---- products --------------------------------------------------------------------------------------------------------


@CPU
@pytest.mark.parametrize(
    "work",
    [Dense(1, 2, 10, 300), Dense(1, 2, 3, 2), Dense(4, 1, 33, 9), Dense(3, 5, 17, 21), Dense(1, 70, 100, 40), Dense(1, 33, 48, 16)],
    ids=str,
)
@BOTH
def test_products(work: Dense, checker: Checker, tiles: Any) -> None:
    plans = amx_dense.FAMILY.plans(checker.typed(work), MACHINE)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    before = tiles.amx_emulator_products() if tiles else 0
    for plan in plans:
        checker.check_dense(work, plan)
    assert not tiles or tiles.amx_emulator_products() > before


@CPU
@BOTH
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 150), st.integers(1, 90), st.integers(0, 3))
def test_random_products(checker: Checker, tiles: Any, batch: int, m: int, n: int, k: int, choice: int) -> None:
    work = Dense(batch, m + (batch == 1), n, k)
    plans = amx_dense.FAMILY.plans(checker.typed(work), MACHINE)
    checker.check_dense(work, plans[choice % len(plans)])


@CPU
@pytest.mark.parametrize("high, wide", [(1, 1), (1, 3), (2, 2)])
def test_rows_in_blocks_and_pieces(high: int, wide: int, tiles: Any) -> None:
    work = Dense(1, 165, 70, 100)
    plan = amx_dense.AmxDensePlan(0.0, **{"high": high, "wide": wide, "row_pieces": 2, "column_pieces": 2})
    small = replace(MACHINE, l2=3 * 2 * 128 * 16 * 4)  # a few tiles of rows fit
    x, w = array(1, work.m, work.k), array(work.k, work.n)
    check(CHECKER.run_dense(work, plan, x, w, machine=small), matmul, x, w, work.k)


@CPU
def test_rounding_is_to_nearest_even_on_both_sides(tiles: Any) -> None:
    CHECKER.check_rounding()


@CPU
def test_nan_and_infinity_stay_in_their_rows_and_columns(tiles: Any) -> None:
    CHECKER.check_nan_and_infinity()


@CPU
def test_three_planes_hold_a_float32(tiles: Any) -> None:
    """Products with one are exact: on both sides, over all exponents whose last plane is no denormal number."""
    n = 60
    work = Dense(1, n, n, n)
    plan = amx_dense.FAMILY.plans(typed(work, "bf16x3"), MACHINE)[0]
    random = np.random.default_rng(0)
    values = np.float32(random.uniform(1, 2, n) * 2.0 ** random.integers(-100, 127, n) * random.choice([-1, 1], n))
    values[:3] = 1 + 2**-23, 2 - 2**-23, 1 + 2**-8 + 2**-16 + 2**-23
    one = np.eye(n, dtype="float32")
    np.testing.assert_array_equal(SPLIT.run_dense(work, plan, np.diag(values)[None], one)[0].diagonal(), values)
    np.testing.assert_array_equal(SPLIT.run_dense(work, plan, one[None], np.diag(values))[0].diagonal(), values)


@CPU
def test_three_planes_keep_nan_and_make_nan_of_infinity(tiles: Any) -> None:
    work = Dense(1, 4, 5, 7)
    plan = amx_dense.FAMILY.plans(typed(work, "bf16x3"), MACHINE)[0]
    x, w = array(1, 4, 7), array(7, 5)
    x[0, 1, 2], x[0, 2, 3] = np.uint32(0x7F800001).view("float32"), -np.inf
    y = SPLIT.run_dense(work, plan, x, w)
    assert np.isfinite(y[0, [0, 3]]).all() and np.isnan(y[0, 1]).all() and not np.isfinite(y[0, 2]).any()


# ---- convolutions ----------------------------------------------------------------------------------------------------

SEVERAL = {name: work for name, work in CASES.items() if name != "mostly_padding"} | {
    "odd_blocks": conv((40, 72), (6, 20), (3, 3), padding=(1, 1, 1, 1)),
    "even_window": conv((16, 16), (6, 7), (2, 2), stride=2),
    "long_rows": conv((32, 16), (3, 40), (1, 3), padding=(0, 1, 0, 1)),
    "planes": conv((3, 40), (12, 37), (7, 7), stride=2, padding=(3, 3, 3, 3), plain=True),
    "one_plane": conv((1, 16), (9, 7), (3, 3), padding=(1, 1, 1, 1), batch=2, plain=True),
    "planes_apart": conv((4, 16), (9, 17), (1, 1), stride=2, plain=True),
    "two_planes_far": conv((2, 16), (9, 21), (3, 3), dilation=2, plain=True),
    "half_a_step": conv((48, 16), (5, 6), (3, 3)),
}


@CPU
@BOTH
@pytest.mark.parametrize("name", SEVERAL)
def test_convolutions(name: str, checker: Checker, tiles: Any) -> None:
    work = SEVERAL[name]
    plans = amx_conv.FAMILY.plans(checker.typed(work), MACHINE)
    assert plans == sorted(plans, key=lambda p: p.seconds)
    checker.check_conv(work, plans[0])


@CPU
@pytest.mark.parametrize(
    "name, values",
    [
        ("channels_no_multiple", {"high": 2, "wide": 1, "flat": 0, "output_parts": 1, "parts": 3}),
        ("stride_2", {"high": 2, "wide": 1, "flat": 0, "output_parts": 1, "parts": 4}),
        ("3x3", {"high": 2, "wide": 2, "flat": 1, "output_parts": 2, "parts": 2}),
        ("3x3", {"high": 1, "wide": 2, "flat": 0, "output_parts": 1, "parts": 5}),
        ("groups_of_blocks", {"high": 1, "wide": 2, "flat": 1, "output_parts": 2, "parts": 2}),
        ("odd_blocks", {"high": 2, "wide": 2, "flat": 0, "output_parts": 3, "parts": 2}),
        ("pointwise", {"high": 2, "wide": 2, "flat": 1, "output_parts": 1, "parts": 4}),
        ("pointwise_stride_padding", {"high": 2, "wide": 1, "flat": 0, "output_parts": 1, "parts": 3}),
        ("one_dimension", {"high": 1, "wide": 1, "flat": 1, "output_parts": 1, "parts": 4}),
        ("long_rows", {"high": 2, "wide": 1, "flat": 0, "output_parts": 1, "parts": 1}),
    ],
)
def test_other_tiles(name: str, values: dict[str, int], tiles: Any) -> None:
    CHECKER.check_conv(SEVERAL[name], amx_conv.AmxConvPlan(0.0, **values))


@CPU
@BOTH
@settings(max_examples=8, deadline=None, derandomize=True)
@given(workloads(), st.integers(0, 11))
def test_random_convolutions(checker: Checker, tiles: Any, work: Conv2D, choice: int) -> None:
    plans = amx_conv.FAMILY.plans(checker.typed(work), MACHINE)
    if plans:
        checker.check_conv(work, plans[choice % len(plans)])


@CPU
def test_infinity_reaches_the_windows_that_hold_it_only(tiles: Any) -> None:
    """Tiles read positions beside a window, whose weights would be zero: infinity times zero is no number."""
    for work in (SEVERAL["3x3"], SEVERAL["odd_blocks"], SEVERAL["stride_2"]):
        plan = amx_conv.FAMILY.plans(typed(work), MACHINE)[0]
        x, weights = np.abs(array(*work.x.shape)), np.abs(array(*work.weight_shape))
        x[0, 5, 3, 4] = np.inf
        y = CHECKER.run_conv(work, plan, x, weights)
        expected = np.zeros(work.y.shape, bool)
        for row in range(work.y.shape[2]):
            for column in range(work.y.shape[3]):
                at = row * work.stride[0] - work.padding[0], column * work.stride[1] - work.padding[1]
                expected[0, :, row, column] = 0 <= 3 - at[0] < work.kernel[0] and 0 <= 4 - at[1] < work.kernel[1]
        assert expected.any() and (np.isposinf(y) == expected).all() and np.isfinite(y[~expected]).all()


@CPU
@pytest.mark.parametrize("name", ["channels_no_multiple", "pointwise_stride", "groups_of_blocks"])
def test_stored_as_bfloat16(name: str, tiles: Any) -> None:
    assert check_conv(amx_conv.FAMILY, typed(CASES[name]), target=TARGET) == EACH
    assert not amx_conv.FAMILY.plans(typed(CASES[name], "bf16x3").stored(HALF, "float32"), MACHINE)


# ---- what is generated -----------------------------------------------------------------------------------------------


def test_the_instructions_are_in_the_object(tmp_path: Path) -> None:
    work = typed(Dense(1, 32, 32, 64))
    fn = amx_dense.FAMILY.kernel(work, amx_dense.FAMILY.plans(work, MACHINE)[0], MACHINE)
    module = tvm.compile(tvm.IRModule({"main": fn.with_attr("global_symbol", "main")}), target=TARGET)
    path = tmp_path / "kernel.o"
    getattr(module, "mod", module).write_to_file(str(path))
    data = path.read_bytes()
    # sums 0 to 3 of left tiles 4 and 5 and right ones 6 and 7: VEX.128.F3.0F38.W0 5C, vvvv and rm name the factors
    for total, left, right in ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)):
        assert bytes([0xC4, 0xE2, 0x02 | (~right & 15) << 3, 0x5C, 0xC0 | total << 3 | left]) in data
    assert bytes([0xC4, 0xE2, 0x78, 0x49, 0xC0]) in data  # tilerelease
    try:
        listing = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    if "tdpbf16ps" in listing or "(bad)" not in listing:  # an objdump that knows AMX
        words = [line.split("\t")[2].split()[0] for line in listing.splitlines() if line.count("\t") >= 2]
        assert {w: words.count(w) for w in ("ldtilecfg", "tilerelease", "tilezero", "tilestored")} == {
            "ldtilecfg": 1, "tilerelease": 1, "tilezero": 4, "tilestored": 4,
        }  # fmt: skip
        assert words.index("ldtilecfg") < words.index("tdpbf16ps") < words.index("tilerelease")
        assert words.count("tdpbf16ps") == words.count("tileloadd") and words.count("tdpbf16ps") % 4 == 0


def test_tiles_are_of_one_height_and_few() -> None:
    assert [even_rows(n) for n in (1, 15, 16, 17, 32, 33, 35, 49)] == [1, 15, 16, 9, 16, 11, 12, 13]
    words = Tiles(9, 8, 2, 2, Pairs(1)).configuration()
    operand = b"".join(w.to_bytes(4, "little") for w in words)
    assert len(operand) == 64 and operand[0] == 1 and not any(operand[1:16]) and not any(operand[32:48]) and not any(operand[56:])
    assert list(operand[48:56]) == [9] * 6 + [8] * 2 and list(operand[16:32:2]) == [64] * 4 + [32] * 2 + [64] * 2


# ---- who may use it --------------------------------------------------------------------------------------------------


def test_the_cpu_decides() -> None:
    def has(target: dict[str, Any]) -> bool:
        return machine_of(tvm.target.Target({"kind": "llvm", **target})).amx

    assert has({"mcpu": "sapphirerapids"}) and has({"mcpu": "graniterapids"}) and not has({"mcpu": "znver4"})
    assert not has({"mcpu": "sapphirerapids", "mattr": ["-amx-bf16"]})
    assert has({"mcpu": "znver4", "mattr": ["+amx-tile", "+amx-bf16"]})


@pytest.mark.parametrize("work", [Dense(1, 64, 768, 768), conv((64, 256), (32, 32), (1, 1)), conv((64, 64), (32, 32), (3, 3))], ids=str)
def test_only_who_asks_gets_it(work: Any, tmp_path: Path) -> None:
    family = amx_dense.FAMILY if isinstance(work, Dense) else amx_conv.FAMILY
    without = replace(MACHINE, amx=False)
    assert not family.plans(work, MACHINE) and not any(family.plans(typed(work, a), without) for a in ("bf16", "bf16x3"))

    def chosen(machine: Any, accuracy: Any, disabled: frozenset[str] = frozenset()) -> str:
        options = KernelOptions(accuracy=accuracy, database=str(tmp_path / "none.json"), disabled_families=disabled)
        selector = Selector(machine, options, TARGET)
        found = selector.product(work) if isinstance(work, Dense) else selector.convolution(work)
        assert found is not None
        return found.name

    assert chosen(MACHINE, "bf16") == "amx"
    assert "amx" not in (chosen(MACHINE, "default"), chosen(without, "bf16"), chosen(MACHINE, "bf16", frozenset({"amx"})))
    for accuracy, same in (("bf16", False), ("bf16x3", False), ("default", True)):
        assert (key_of(work, MACHINE, accuracy) == key_of(work, without, accuracy)) == same


def test_not_taken() -> None:
    # one row: bound by the stream of the weights
    for work in (Dense(1, 1, 1000, 2048), Dense(1, 4, 4, 4, constant=False), Dense(2, 4, 4, 4, shared=False)):
        assert not amx_dense.FAMILY.plans(typed(work), MACHINE)
    assert bf16_dense.FAMILY.plans(typed(Dense(1, 1, 1000, 2048)), MACHINE)
    plain = replace(CASES["3x3"], x=replace(CASES["3x3"].x, block=1))
    for work in (plain, conv((32, 32), (5, 5), (3, 3), groups=8), CASES["mostly_padding"]):
        assert not amx_conv.FAMILY.plans(typed(work), MACHINE)


@pytest.mark.skipif("amx_tile" in cpu_flags(), reason="this CPU has AMX")
def test_tuning_without_the_registers_is_refused() -> None:
    work = Dense(1, 32, 32, 32)
    candidates = [Candidate(typed(work), amx_dense.FAMILY, p) for p in amx_dense.FAMILY.plans(typed(work), MACHINE)]
    with pytest.raises(UsageError, match="does not give the registers of AMX"):
        tuning.measure(candidates, MACHINE, TARGET)
