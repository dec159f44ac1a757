# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A dynamic network built with ``accuracy="bf16"``: within 2e-2 of eager on every path; in float32 where the CPU lacks the instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from kernel_utils import BF16, needs
from torch import Tensor, nn

import dycl_tvm


class EarlyExit(nn.Module):
    """Leaves after the first stage if the input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 1)
        self.early, self.late = nn.Linear(32, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs().mean()
        x = self.stem(x).relu()
        if size > 2:
            return self.early(x.mean((2, 3)))
        return self.late(self.body(x).relu().mean((2, 3)))


def run(target: Any, tmp_path: Path) -> tuple[float, bool]:
    """Return the largest error relative to the largest output, and whether kernels of the family are in the library."""
    torch.manual_seed(0)
    model, x = EarlyExit().eval(), torch.randn(1, 3, 12, 12)
    artefact = dycl_tvm.build(model, (x,), target=target, accuracy="bf16")
    artefact.export_library(tmp_path / "model.so", embed_params=True)
    session = dycl_tvm.load(tmp_path / "model.so")
    paths, errors = set(), []
    for scale in (1, 4):
        with torch.no_grad():
            expected = model(x * scale)
        errors.append(float((torch.as_tensor(session(x * scale)) - expected).abs().max() / expected.abs().max()))
        paths.add(str(session.last_path))
    assert len(paths) == 2
    return max(errors), "dycl_conv2d_bf16_" in artefact.source()


@needs(BF16)
def test_rounded_factors(tmp_path: Path) -> None:
    error, rounded = run(BF16, tmp_path)
    assert rounded and 1e-5 < error < 2e-2


def test_float32_where_the_target_has_no_bfloat16(tmp_path: Path) -> None:
    error, rounded = run("llvm", tmp_path)
    assert not rounded and error < 1e-5
