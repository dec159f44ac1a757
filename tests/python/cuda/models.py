# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Small networks with control flow, for the tests of the GPU's side."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Several(nn.Module):
    """Several functions of the same inputs and weights."""

    def __init__(self, functions: list[Callable[..., Tensor]], weights: list[Tensor]) -> None:
        super().__init__()
        self.functions = functions
        for k, w in enumerate(weights):
            self.register_buffer(f"w{k}", w)

    def forward(self, *x: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(*x, *self.buffers()) for f in self.functions)


class EarlyExit(nn.Module):
    """Leaves after the first layer where it is sure; the state counts the calls that went on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)
        self.register_buffer("went_on", torch.zeros(1))

    def forward(self, x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.first(x))
        if h.max().item() > threshold.item():
            return h, h.sum()
        self.went_on = self.went_on + 1
        return torch.softmax(self.second(h), 1), self.went_on


class Loop(nn.Module):
    """A loop on a value of the data, with numbers that go from the host to the device."""

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while x.sum().item() < n.item() and steps < 20:
            x = x * 2 + torch.full((4,), steps * 0.5)
            steps += 1
        return x, steps


def example() -> tuple[Tensor, Tensor]:
    """Return inputs of :class:`EarlyExit`."""
    return torch.linspace(-1, 1, 32).reshape(2, 16), torch.tensor(100.0)
