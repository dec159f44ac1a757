# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rows in groups, each with a matrix of its own, as mixtures of experts multiply them."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn

pytestmark = pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this PyTorch has no grouped_mm")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 16) * 0.3)

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        if chosen.max() == 0:
            return x.mean()
        order = chosen.sort(stable=True).indices
        ends = torch.stack([(chosen <= k).sum() for k in range(4)]).to(torch.int32)
        y = torch.nn.functional.grouped_mm(x[order], self.up, offs=ends)
        return y[order.argsort()].relu(), y.stride()


def test_experts():
    torch.manual_seed(0)
    check(Experts(), [(torch.randn(6, 8) * s + s,) for s in (1.0, 2.0, 0.1, -3.0)])


def test_what_eager_refuses():
    def f(x, w):
        try:
            return torch.nn.functional.grouped_mm(x, w, offs=torch.tensor([1, 3], dtype=torch.int32))
        except RuntimeError as error:
            return str(error)

    check(f, [(torch.randn(3, 5), torch.randn(2, 5, 3))])


def test_counts_of_experts():
    def f(x):
        n = x.long() % 5
        return torch.histc(n.float(), bins=5, min=0, max=4), torch.histc(x, 7, -1.5, 2.5), torch.histc(x[0].double(), bins=3, min=0, max=1)

    check(
        f,
        [(torch.randn(6, 8) * s,) for s in (1.0, 3.0)] + [(torch.tensor([[0.0, 1.0, -1.5, 2.5, float("nan"), 0.5]]).repeat(6, 2)[:, :8],)],
    )
