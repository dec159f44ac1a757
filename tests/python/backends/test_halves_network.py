# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which tensors of a network are stored as bfloat16, and that its results are as near to eager as docs/accuracy.md says, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_utils import AVX512, BF16, needs
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.backends.tir_cpu import halves


class Inverted(nn.Module):
    """Widens, convolves each channel by itself, and narrows again."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.wide, self.each = nn.Conv2d(inputs, width, 1), nn.Conv2d(width, width, 3, stride, 1, groups=width)
        self.narrow, self.residual = nn.Conv2d(width, outputs, 1), inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(F.relu6(self.each(F.relu6(self.wide(x)))))
        return x + y if self.residual else y


class EarlyExit(nn.Module):
    """Leaves after the first blocks if what they give is large; channels are no multiples of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.first = nn.Sequential(Inverted(32, 40, 24, 2), Inverted(24, 56, 24))
        self.second, self.early, self.late = Inverted(24, 40, 20, 2), nn.Linear(24, 10), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x).relu())
        pooled = x.mean((2, 3))
        if pooled.abs().max() > 1:
            return self.early(pooled)
        x = self.second(x)
        return self.late(torch.cat([x, F.max_pool2d(x, 3, 1, 1)], 1).relu().mean((2, 3)))


def build(model: nn.Module, x: Tensor, folder: Path, target: Any = BF16, **options: Any) -> tuple[Any, Any]:
    art = dycl_tvm.build(model, (x,), target=target, **{"accuracy": "bf16", **options})
    return art, dycl_tvm.load(art.export_library(folder / "m.so"), art.save_params(folder / "m.params"))


@needs(BF16)
def test_an_early_exit_on_both_paths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = EarlyExit().eval(), torch.randn(1, 3, 36, 44)
    art, session = build(model, x, tmp_path, verify="full")
    assert art.report().halved >= 5 and "tensors between kernels as bfloat16" in str(art.report())
    paths = set()
    for scale in (0.1, 1, 30):
        with torch.no_grad():
            expected = model(x * scale)
        error = (torch.as_tensor(session(x * scale)) - expected).abs().max() / expected.abs().max()
        assert 1e-5 < error < 2e-2
        paths.add(str(session.last_path))
    assert len(paths) == 2


@needs(BF16)
def test_what_only_convolutions_read_is_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rounds its input anyway: stored so, or read so, it is one rounding."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Conv2d(24, 40, 1), nn.ReLU(), nn.Conv2d(40, 72, 1, 2), nn.Conv2d(72, 8, 1)).eval(), torch.randn(2, 24, 9, 7)
    stored, session = build(model, x, tmp_path)
    expected = torch.as_tensor(session(x)).clone()
    monkeypatch.setattr(halves, "store", lambda graph, kernels: 0)
    without, other = build(model, x, tmp_path)
    assert (stored.report().halved, without.report().halved) == (2, 0)
    assert torch.equal(expected, torch.as_tensor(other(x)))


class Ends(nn.Module):
    """All that a tensor may be beside read by kernels: a result, what a test reads, what is read in another order of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(32, 32, 1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x)
        y = self.b(x)
        z = self.c(y)
        if z[0, 0, 0, 0] > 0:
            z = self.a(z)
        return y, self.b(z).transpose(1, 2) + self.c(z.flatten(2).reshape(z.shape))


@needs(BF16)
def test_results_and_what_is_tested_stay_float32(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, x = Ends().eval(), torch.randn(1, 32, 32, 5)
    art, session = build(model, x, tmp_path, verify="full")
    assert art.report().halved == 1  # the first: it is nothing but read
    for sign in (1, -1):
        with torch.no_grad():
            expected = model(sign * x)
        for ours, eager in zip(session(sign * x), expected):
            assert (torch.as_tensor(ours) - eager).abs().max() / eager.abs().max() < 2e-2
            assert ours.dtype in (torch.float32, "float32")


@pytest.mark.parametrize("target, options", [(BF16, {"accuracy": "default"}), (BF16, {"accuracy": "strict"}), (AVX512, {})])
def test_nobody_else_gets_it(target: Any, options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 1))
    art = dycl_tvm.build(model, (torch.randn(1, 32, 4, 4),), target=target, verify="off", **{"accuracy": "bf16", **options})
    assert art.report().halved == 0


@needs(BF16)
def test_sizes_that_calls_decide(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, x = EarlyExit().eval(), torch.randn(3, 3, 20, 24)
    art, session = build(model.first, torch.randn(3, 32, 10, 12), tmp_path, dynamic_shapes={"input": {0: dycl_tvm.Dim("B", max=3)}})
    assert art.report().halved >= 2
    for batch in (1, 3):
        given = x.new_empty(batch, 32, 10, 12).normal_()
        with torch.no_grad():
            expected = model.first(given)
        assert (torch.as_tensor(session(given)) - expected).abs().max() / expected.abs().max() < 2e-2
