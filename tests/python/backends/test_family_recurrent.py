# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recurrent cells against PyTorch's in float64: error at most 2e-6 (sums of 100 products of numbers near 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from kernel_utils import AVX2, AVX512, Kernel, machine
from torch import nn

from dycl_tvm.backends.tir_cpu.families import recurrent
from dycl_tvm.backends.tir_cpu.families.recurrent import Cell


def step(cell: Cell, target: Any, poison: bool = False) -> None:
    torch.manual_seed(0)
    cpu = machine(target)
    module = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell.kind](cell.inputs, cell.hidden, cell.bias)
    x = torch.randn(cell.batch, cell.inputs)
    states = [torch.randn(cell.batch, cell.hidden) for _ in range(2 if cell.kind == "lstm" else 1)]
    if poison:
        x[0, 0], states[0][-1, 0] = float("nan"), float("inf")
    packed = Kernel(recurrent.pack(cell, cpu), target)([p.detach().numpy() for p in module.parameters()], recurrent.packed_shape(cell, cpu))
    kernel = Kernel(recurrent.kernel(cell, cpu), target)
    out = [tvm.runtime.tensor(np.full((cell.batch, cell.hidden), np.nan, "float32")) for _ in states]
    kernel.run(*[tvm.runtime.tensor(t.numpy()) for t in (x, *states)], tvm.runtime.tensor(packed), *out)
    module = module.double() if not poison else module
    given = [t.double() if not poison else t for t in (x, *states)]
    with torch.inference_mode():
        exact = module(given[0], tuple(given[1:]) if len(given) > 2 else given[1])
    for actual, expected in zip(out, exact if cell.kind == "lstm" else [exact]):
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("batch, inputs, hidden", [(1, 5, 3), (1, 64, 40), (5, 19, 21)])
def test_cell(kind: Any, batch: int, inputs: int, hidden: int, target: Any) -> None:
    step(Cell(kind, batch, inputs, hidden), target)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_without_bias(kind: Any) -> None:
    step(Cell(kind, 2, 6, 16, bias=False), AVX2)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_nan_and_infinity(kind: Any) -> None:
    step(Cell(kind, 2, 6, 9), AVX2, poison=True)
