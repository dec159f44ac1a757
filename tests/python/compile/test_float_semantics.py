# Licensed under the Apache License, Version 2.0; see LICENSE.
"""No algebra that holds for numbers only: TVM's simplifier would take ``x * 0`` for 0 and ``(x + y) - y`` for x."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dycl_tvm
from dycl_tvm.compare import difference
from dycl_tvm.runtime import Module

inf, nan = float("inf"), float("nan")
X = torch.tensor([nan, 1.0, 0.0, -0.0, inf, -inf, -2.5, 3.7e-7, 0.3, 1e30, -1e30, 0.7])

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "x * 0.0": lambda x: x * 0.0,
    "0 * x": lambda x: 0 * x,
    "x.mul(0)": lambda x: x.mul(0),
    "x * 0.0 + 1": lambda x: x * 0.0 + 1,
    "x * 0.0 + x": lambda x: x * 0.0 + x,
    "x * -0.0": lambda x: x * -0.0,
    "zeros_like(x) * x": lambda x: torch.zeros_like(x) * x,
    "exp(x) * 0.0": lambda x: torch.exp(x) * 0.0,
    "(x * 0.0).sum()": lambda x: (x * 0.0).sum(),
    "x - x": lambda x: x - x,
    "relu(x - x)": lambda x: torch.relu(x - x),
    "x * x - x * x": lambda x: x * x - x * x,
    "(x + 1) - x": lambda x: (x + 1) - x,
    "x - (x + 1)": lambda x: x - (x + 1),
    "(x + 12582912) - 12582912": lambda x: (x + 12582912.0) - 12582912.0,
    "1 - (1 - x)": lambda x: 1 - (1 - x),
    "x / x": lambda x: x / x,
    "0.0 / x": lambda x: 0.0 / x,
    "x / 0.0": lambda x: x / 0.0,
    "x / -0.0": lambda x: x / -0.0,
    "x + 0.0": lambda x: x + 0.0,
    "0.0 - x": lambda x: 0.0 - x,
    "x == x": lambda x: x == x,
    "x != x": lambda x: x != x,
    "x <= x": lambda x: x <= x,
    "not x < x": lambda x: ~(x < x),
    "not x >= x": lambda x: torch.logical_not(x >= x),
    "(x < 1) ^ (x > 1)": lambda x: (x < 1) ^ (x > 1),
    "(x < 1) ^ True": lambda x: (x < 1) ^ True,
    "where(not x > 0, 1, 2)": lambda x: torch.where(~(x > 0), torch.ones_like(x), 2.0),
    "where(x == x, x, 0)": lambda x: torch.where(x == x, x, torch.zeros_like(x)),
    "(x > 0) | (x <= 0)": lambda x: (x > 0) | (x <= 0),
    "x.isnan()": torch.isnan,
    "x.isfinite()": torch.isfinite,
    "log1p(x)": torch.log1p,
    "expm1(x)": torch.expm1,
    "softmax": lambda x: x.softmax(0),
    "pow(x, 0)": lambda x: x.pow(0),
}


def _all(x: Tensor) -> list[Tensor]:
    return [case(x) for case in CASES.values()]


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Module, Tensor]:
    folder = tmp_path_factory.mktemp("floats")
    x = X.to(request.param)
    artifact = dycl_tvm.build(_all, (x,))
    return dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params")), x


@pytest.mark.parametrize("name", CASES)
def test_rules_of_floating_point_hold(name: str, compiled: tuple[Module, Tensor]) -> None:
    module, x = compiled
    k = list(CASES).index(name)
    expected, actual = _all(x)[k], module(x)[k]
    assert difference(expected, actual, rtol=1e-6) is None
    if expected.dim() and expected.is_floating_point():
        number = ~expected.isnan()
        # element by element: an error in a small one must not hide behind a large one
        torch.testing.assert_close(actual[number], expected[number], rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["x * 0.0", "x - x", "(x + 1) - x", "x + 0.0"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_other_dtypes(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    x = (X[1:4] if dtype == torch.int32 else X[:9]).to(dtype)
    artifact = dycl_tvm.build(CASES[name], (x,))
    module = dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))
    assert difference(CASES[name](x), module(x), rtol=1e-3) is None


@pytest.mark.parametrize("passes", [(), ("fold_batch_norm",)], ids=["folded", "as_it_is"])
def test_batch_norm_without_a_bias_keeps_the_sign_of_zero(passes: tuple[str, ...], tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(1, affine=False).eval()
    x = torch.tensor([[0.0], [-0.0], [1.0]])
    artifact = dycl_tvm.build(norm, (x,), disable_passes=passes)
    module = dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))
    assert torch.equal(module(x).signbit(), norm(x).signbit())


def test_kernels_of_bfloat16_weights_run_at_build_time(tmp_path: Path) -> None:
    scale = torch.tensor([9.0, 0.5, 1.0, 2.0], dtype=torch.bfloat16)[1:]  # where no vector could be read
    x = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.bfloat16)

    def model(x: Tensor) -> Tensor:
        return x * torch.exp(scale) + scale.sum()

    artifact = dycl_tvm.build(model, (x,))
    module = dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))
    assert difference(model(x).float().detach(), module(x).float(), rtol=1e-2) is None


def test_the_index_of_the_largest_in_a_window_is_that_of_its_last_nan(tmp_path: Path) -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        pool = torch.nn.functional
        return (*pool.max_pool2d(x, 2, return_indices=True), *pool.adaptive_max_pool2d(x, (2, 3), return_indices=True))

    x = torch.tensor([[nan, 1, 2, nan], [3, nan, nan, 5], [1, 1, 7, 7], [1, 1, nan, 7.0]]).reshape(1, 1, 4, 4)
    artifact = dycl_tvm.build(model, (x,))
    module = dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(model(x), module(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_narrow_integers_keep_the_last_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        return x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16)

    x = torch.tensor([256.0, 300.0, -1.0, -300.0, 40000.0, -40000.0, 127.9, 128.0, 60000.0, nan]).to(dtype)
    artifact = dycl_tvm.build(model, (x,))  # the check of kernels tries numbers that do not fit
    module = dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))
    assert all(torch.equal(a, b) for a, b in zip(model(x), module(x)))
    assert artifact.certificate["kernels"]["runs"] > 3


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "x * 0.3": lambda x: x * 0.3,
    "x / 0.7": lambda x: x / 0.7,
    "0.7 / x": lambda x: 0.7 / x,
    "x.square() * 0.7": lambda x: x.square() * 0.7,
    "x * torch.tensor(0.3)": lambda x: x * torch.tensor(0.3),
    "x / torch.tensor(0.7, dtype=torch.float64)": lambda x: x / torch.tensor(0.7, dtype=torch.float64),
    "x + 0.1": lambda x: x + 0.1,
    "x % 0.3": lambda x: x % 0.3,
    "torch.fmod(x, 0.3)": lambda x: torch.fmod(x, 0.3),
    "x // 0.3": lambda x: x // 0.3,
    "torch.atan2(x, torch.tensor(0.3))": lambda x: torch.atan2(x, torch.tensor(0.3)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_halves_meet_have_the_digits_that_they_have_in_eager(dtype: torch.dtype, tmp_path: Path) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x) for f in NUMBERS.values())

    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    artifact = dycl_tvm.build(program, (x,))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    results = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")(x)
    assert [name for name, got, want in zip(NUMBERS, results, program(x)) if not torch.equal(got, want)] == []
