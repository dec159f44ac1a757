# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Integers that leave their type wrap round as in PyTorch, also where a kernel uses the result: TVM takes it that none does."""

from __future__ import annotations

import torch

import dycl_tvm

NUMBERS = torch.tensor([0, 1, 5, -1, 255, 40_000, 65_535, 2**31, 2**40 + 3, 2**63 - 1, -(2**63), -128])


class Hashed(torch.nn.Module):
    """Hash functions, and what a bound that does not hold would simplify."""

    def forward(self, x):
        low = x & 0xFFFF
        return (
            (low.to(torch.int32) * 40_503_123).abs() % 10,
            (low * 0x5851F42D4C957F2D + 1_442_695_040_888_963_407) >> 33,
            (low + (2**63 - 5)).clamp(min=0),
            (low + (2**63 - 5)) < 0,
            (-2 - low - (2**63 - 2)).clamp(max=0),
            (-(x.clamp(max=0))).clamp(min=0),
            x.abs() >= 0,
            (x & 0xFFFFFFFFFF).to(torch.int32).clamp(min=0),
            x * 0 + low,
        )


class Of(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        x = x.to(self.dtype)
        return (x * 7 + 100 - x * x).clamp(min=3) // 5, (torch.zeros_like(x) + torch.zeros_like(x) - x).clamp(min=0)


class All(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([Hashed(), *map(Of, (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))])

    def forward(self, x):
        return [y for part in self.parts for y in part(x)]


def test_as_in_eager(tmp_path):
    dycl_tvm.build(All(), (NUMBERS,), verify="off").export_library(tmp_path / "m.so", embed_params=True)
    net = dycl_tvm.load(tmp_path / "m.so")
    for at, (made, expected) in enumerate(zip(net(NUMBERS), All()(NUMBERS), strict=True)):
        assert torch.equal(made, expected), (at, made, expected)
