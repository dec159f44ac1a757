# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The backend that docs/backends.md shows, from the page's text: what it takes, leaves and computes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dycl_tvm
from dycl_tvm.backends.registry import register_backend, unregister_backend

PAGE = Path(__file__).parents[3] / "docs" / "backends.md"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    code = re.search(r"\n((?: {4}.*\n|\n)+)\n- The kernel of a region", PAGE.read_text(encoding="utf-8"))
    assert code is not None
    module: dict[str, Any] = {}
    exec(textwrap.dedent(code[1]), module)  # the page is the test's subject
    register_backend(module["backend"]())
    yield
    unregister_backend("tiny")


def network(x: Tensor, y: Tensor) -> Tensor:
    z = torch.relu(x * y)
    if z.sum() > 3:
        return torch.relu(z * y) - x
    return z @ x.T


def build(*inputs: Tensor, folder: Path, **options: Any) -> tuple[Any, Any]:
    built = dycl_tvm.build(network, inputs, **options)
    return built.report(), dycl_tvm.load(built.export_library(folder / "m.so"), built.save_params(folder / "m.params"))


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (16, 33)])
def test_it_takes_regions_and_they_are_right(shape: tuple[int, int], tmp_path: Path) -> None:
    report, module = build(torch.zeros(shape), torch.zeros(shape), folder=tmp_path)
    assert report.offload["tiny"].regions == 2 and report.kernels_by_backend["tiny"] == 1
    assert "tiny: " in str(report)
    for scale in (0.0, 10.0):
        x, y = scale * torch.randn(shape), torch.rand(shape)
        torch.testing.assert_close(torch.as_tensor(module(x, y)), network(x, y))
    nan = torch.full(shape, torch.nan)
    assert torch.as_tensor(module(nan, nan)).isnan().all()


def test_the_predicate_leaves_what_the_code_could_not_compute(tmp_path: Path) -> None:
    for x, y in ((torch.randn(3, 5).double(), torch.randn(3, 5).double()), (torch.randn(3, 5), torch.randn(5))):
        report, module = build(x, y, folder=tmp_path)
        assert not report.offload["tiny"].regions
        torch.testing.assert_close(torch.as_tensor(module(x, y)), network(x, y))


def test_it_can_be_left_out(tmp_path: Path) -> None:
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    report, module = build(x, y, folder=tmp_path, disable_backends=["tiny"])
    assert "tiny" not in report.kernels_by_backend
    torch.testing.assert_close(torch.as_tensor(module(x, y)), network(x, y))
