# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An early-exit network trained on real data: 8 bits keep its classes, and the paths that it takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dycl_tvm

datasets = pytest.importorskip("sklearn.datasets")

HELD_OUT = 100


class TwoExits(nn.Module):
    """Digits of 8 x 8; the first classifier answers if it is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.deep = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.first, self.last = nn.Linear(256, 10), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        early = self.first(x.flatten(1))
        if early.softmax(1).max() > 0.95:
            return early
        return self.last(self.deep(x).flatten(1))

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        return self.first(x.flatten(1)), self.last(self.deep(x).flatten(1))


def _trained(x: torch.Tensor, y: torch.Tensor) -> TwoExits:
    torch.manual_seed(0)
    model = TwoExits()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(4):
        order = torch.randperm(len(x))
        for chosen in order.split(128):
            loss = sum(nn.functional.cross_entropy(out, y[chosen]) for out in model.both(x[chosen]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
    return model.eval().requires_grad_(False)


def test_classes_and_paths_of_a_trained_network_are_kept() -> None:
    data = datasets.load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x, y = (torch.from_numpy(data.images).float() / 8 - 1)[order, None], torch.from_numpy(data.target).long()[order]
    model = _trained(x[HELD_OUT:1100], y[HELD_OUT:1100])
    calibration = [x[k : k + 1] for k in range(HELD_OUT, HELD_OUT + 50)]
    held_out = [x[k : k + 1] for k in range(HELD_OUT)]
    quantised = dycl_tvm.quantize(model, calibration, held_out=held_out)
    first, last = model.both(x[:HELD_OUT])
    early = first.softmax(1).amax(1) > 0.95
    assert 0.1 < early.float().mean() < 0.95
    assert (torch.where(early, first.argmax(1), last.argmax(1)) == y[:HELD_OUT]).float().mean() > 0.93
    agreement = quantised.report.held_out
    assert agreement is not None and agreement.inputs == HELD_OUT
    assert agreement.largest >= 0.99 * HELD_OUT and agreement.paths >= 0.97 * HELD_OUT
