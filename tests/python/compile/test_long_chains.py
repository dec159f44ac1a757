# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that name their operand several times, one after the other: as one expression they would have exponential size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dycl_tvm

X, Y = torch.randn(4, 13) * 10, torch.tensor(5.0)


def bounds(x, y):
    for k in range(6):
        x = torch.minimum(x.clamp(k - 20, 20 - k), y + k)
        x = torch.where(x > 3, x - 1, x)
    return x


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32])
def test_on_a_cpu(dtype: torch.dtype, tmp_path: Path) -> None:
    """All but float32 are TVM's expressions; nine of these steps took 45 s (bfloat16) or over 60 s (int64)."""
    args = X.to(dtype), Y.to(dtype)
    artifact = dycl_tvm.build(bounds, args)
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    got = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")(*args)
    torch.testing.assert_close(got, bounds(*args), rtol=1e-6, atol=0)


def test_on_a_gpu() -> None:
    """What follows or goes before a product or a sum of rows is cut too."""

    def model(x, y):
        return bounds(x, y), bounds(x @ x.T, y), bounds(x, y).sum(-1)

    artifact = dycl_tvm.build(model, (X, Y), target="cuda -arch=sm_72")
    kernels = [kernel.symbol for kernel in artifact._lowered.program.kernels]
    assert any("minimum" in k for k in kernels)
    assert max(k.count("minimum") for k in kernels) < 6, kernels


def quotients(x):
    for k in range(9):
        x = x % (7 + k) + x // (3 + k)
    return x


def remainders(x):
    for k in range(12):
        x = x % (50 - k)
    return x


@pytest.mark.parametrize("model", [quotients, remainders])
@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_72"])
def test_quotients_and_remainders_of_whole_numbers(model: Callable[[torch.Tensor], torch.Tensor], target: str) -> None:
    """One tensor read by two ways doubles an expression too, and remainders of remainders are few nodes that TVM reasons long about.

    ``quotients`` for a GPU and ``remainders`` for a CPU did not end in 150 s.
    """
    dycl_tvm.build(model, (X.to(torch.int64),), target=target)
