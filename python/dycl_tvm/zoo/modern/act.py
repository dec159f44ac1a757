# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Adaptive computation time: a recurrent network that ponders on each input until it has decided to go on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ACTCell(nn.Module):
    """Runs a GRU cell on one input again and again, until its halting probabilities sum to one.

    Parameters
    ----------
    input_size, hidden_size : int
        Widths.
    epsilon : float
        How little may be missing from a sum of one.
    max_ponder : int
        Bound on the number of runs.
    """

    def __init__(self, input_size: int, hidden_size: int, epsilon: float = 0.01, max_ponder: int = 10) -> None:
        super().__init__()
        # One more input says whether the cell sees its input for the first time.
        self.cell = nn.GRUCell(input_size + 1, hidden_size)
        self.halting = nn.Linear(hidden_size, 1)
        self.epsilon = epsilon
        self.max_ponder = max_ponder

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the mean state, the remainder (a differentiable cost), and the number of runs."""
        accumulated = torch.zeros_like(hidden)
        halting_sum = x.new_zeros(x.size(0), 1)
        remainder = x.new_ones(x.size(0), 1)
        first = torch.cat([x, x.new_ones(x.size(0), 1)], dim=1)
        again = torch.cat([x, x.new_zeros(x.size(0), 1)], dim=1)
        steps = 0
        while halting_sum < 1 - self.epsilon and steps < self.max_ponder:
            hidden = self.cell(first if steps == 0 else again, hidden)
            p = torch.sigmoid(self.halting(hidden))
            steps += 1
            if halting_sum + p >= 1 - self.epsilon or steps == self.max_ponder:
                remainder = 1 - halting_sum
                p = remainder
            accumulated = accumulated + p * hidden
            halting_sum = halting_sum + p
        return accumulated, remainder, steps


class ACTRNN(nn.Module):
    """A recurrent network over a short sequence, each of whose steps takes its time.

    Parameters
    ----------
    input_size, hidden_size, output_size : int
        Widths.
    """

    def __init__(self, input_size: int = 16, hidden_size: int = 64, output_size: int = 8) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.rnn = ACTCell(input_size, hidden_size)
        self.output = nn.Linear(hidden_size, output_size)

    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Take (1, time, input) to outputs (1, time, output), the ponder cost, and the runs at each place."""
        hidden = sequence.new_zeros(sequence.size(0), self.hidden_size)
        outputs = []
        ponder_cost = torch.zeros(sequence.size(0), 1)
        ponder_steps = []
        for x in sequence.unbind(dim=1):
            hidden, remainder, steps = self.rnn(x, hidden)
            outputs.append(self.output(hidden))
            ponder_cost = ponder_cost + remainder + steps
            ponder_steps.append(steps)
        return torch.stack(outputs, dim=1), ponder_cost, ponder_steps
