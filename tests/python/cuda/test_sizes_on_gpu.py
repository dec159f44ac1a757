# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes that each call decides, in a network for a GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from emulation import Driver
from torch import nn

import dycl_tvm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(torch.relu(self.first(x)))
        return y.mean(0) if y.sum() > 0 else y.softmax(-1)


def test_all_sizes(gpu: Driver, tmp_path: Path) -> None:
    model = Net().eval()
    artifact = dycl_tvm.build(
        model, (torch.ones(2, 4),), target="cuda -arch=sm_72", host="llvm", dynamic_shapes={"x": {0: dycl_tvm.Dim("N", max=5)}}
    )
    module, ranks = gpu.load(artifact, tmp_path), set()
    for n in (5, 1, 3, 2, 5):
        for sign in (1, -1):
            x = sign * torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
            with torch.no_grad():
                want = model(x)
            torch.testing.assert_close(module(x), want)
            ranks.add(want.dim())
    assert ranks == {1, 2}
