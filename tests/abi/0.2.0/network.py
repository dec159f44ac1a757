# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The network of ``recorded.tar.xz``, library and params, which version 0.2.0 built.

``build(Recorded().eval(), (torch.zeros(512, 64), torch.tensor(3)), target="llvm -mcpu=x86-64-v3")``
"""

from __future__ import annotations

import torch
from torch import nn


class Recorded(nn.Module):
    """A branch, a loop whose length a call decides, an error, state, and products that are worth several threads."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)
        self.register_buffer("seen", torch.zeros(64))
        with torch.no_grad():
            for parameter in self.parameters():  # numbers that no version of PyTorch draws otherwise
                parameter.copy_((torch.arange(parameter.numel()) % 29 - 14).reshape(parameter.shape) / 128)

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        n = count.item()
        if n < 0:
            raise ValueError("n is negative")
        self.seen += x.sum(0)
        i = 0
        while i < n:
            x = torch.relu(self.down(torch.relu(self.up(x)))) + 0.5 * x
            i += 1
        return x + self.seen if x.sum() > 0 else x - self.seen
