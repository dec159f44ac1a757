# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators whose arithmetic depends on the type: halves summed in float32, float64 kept, bools multiplied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dycl_tvm

HALF, BRAIN = torch.float16, torch.bfloat16

CASES: dict[str, tuple[Callable[..., Any], torch.dtype, float]] = {
    # PyTorch sums a window in float32: a sum in halves is wrong in the third digit
    "averages in float16": (lambda x: (F.avg_pool2d(x, 5), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_avg_pool2d(x, (2, 2))), HALF, 0),
    "maxima with places in bfloat16": (lambda x: (*F.max_pool2d(x, 2, return_indices=True), *F.adaptive_max_pool2d(x, 4, True)), BRAIN, 0),
    "weights of float64": (lambda x: F.interpolate(x, scale_factor=(1.7, 2.3), mode="bilinear"), torch.float64, 1e-12),
    "a product of bools": (lambda x: (x > 0).prod(-1, dtype=torch.bool), torch.float32, 0),
    "sums of products in float16": (lambda x: torch.addbmm(x[0, 0], x[0], x[1].mT), HALF, 1e-3),
}


@pytest.mark.parametrize("name", list(CASES))
def test_as_eager(name: str, tmp_path: Path) -> None:
    function, dtype, tolerance = CASES[name]
    x = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    artifact = dycl_tvm.build(function, (x,))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    got = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")(x)
    torch.testing.assert_close(got, function(x), rtol=tolerance, atol=tolerance)


def test_a_mode_may_be_built_for_halves() -> None:
    """PyTorch brings NaN into no order before it counts: that is nothing to compare with."""
    x = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 1.0]], dtype=HALF)
    dycl_tvm.build(lambda x: torch.mode(x)[0], (x,))
