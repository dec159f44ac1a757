# Licensed under the Apache License, Version 2.0; see LICENSE.
"""RNN, GRU and LSTM of steps that no network of PyTorch's has: a loop over the steps, so its text is a part of the model's program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def over_steps(
    step: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    x: torch.Tensor,
    hidden: int,
    backwards: Sequence[bool],
    lengths: torch.Tensor | None,
    h0: torch.Tensor | None,
    c0: torch.Tensor | None,
    batch_first: bool,
    *weights: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return all hidden states and the last ones and cells of each direction; ``backwards`` says in which each goes.

    Behind its end a sequence keeps its state and gives zeros; an empty one ends in zeros, whatever it begins with.
    """
    if batch_first:
        x = x.transpose(0, 1)
        h0, c0 = None if h0 is None else h0.transpose(0, 1), None if c0 is None else c0.transpose(0, 1)
    count = x.size(0)
    zeros = torch.zeros((x.size(1), hidden), dtype=x.dtype)
    rows, last, cells = [], [], []
    for d in range(len(backwards)):
        h, c = zeros if h0 is None else h0[d], zeros if c0 is None else c0[d]
        outputs = []
        for k in range(count):
            t = count - 1 - k if backwards[d] else k
            new_h, new_c = step(d, x[t], h, c, *weights)
            if lengths is None:
                outputs.append(new_h)
                h, c = new_h, new_c
            else:
                going = (lengths > t).reshape(-1, 1)
                outputs.append(torch.where(going, new_h, zeros))
                h, c = torch.where(going, new_h, h), torch.where(going, new_c, c)
        if lengths is not None:
            some = (lengths > 0).reshape(-1, 1)
            h, c = torch.where(some, h, zeros), torch.where(some, c, zeros)
        made = torch.stack(outputs, 0)
        rows.append(torch.flip(made, [0]) if backwards[d] else made)
        last.append(h)
        cells.append(c)
    y, y_h, y_c = torch.stack(rows, 1), torch.stack(last, 0), torch.stack(cells, 0)
    if batch_first:
        return y.permute(2, 0, 1, 3), y_h.transpose(0, 1), y_c.transpose(0, 1)
    return y, y_h, y_c
