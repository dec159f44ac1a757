# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The network that is served: sizes of callers, state, random numbers, an error, a loop, two results of other structures, many dtypes."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x, steps, mixed):
        if steps < 0:
            raise ValueError("steps must not be negative")
        self.calls = self.calls + 1
        h = self.layer(x)
        i = 0
        while i < steps:
            h = torch.tanh(self.layer(h))
            i = i + 1
        if x.sum() > 0:
            return {"scores": h, "exit": 0, "calls": self.calls, "noise": torch.rand(3)}
        return h, [mixed["half"] * 2, mixed["brain"] * 2, ~mixed["flag"]], None, "late"
