# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Paths that part in unrolled trips of a loop meet at the end of each: code is linear in the trips.

``nonzero().squeeze()`` has a rank that the data decides, so it parts the paths where it stands: one where a single element is true, one for
all other numbers of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import PathExplosionError
from dycl_tvm.frontend.trace.decisions import Decisions

#: By the number of their positive elements.
ROWS = {0: [-1.0, -2.0, -1.0], 1: [1.0, -1.0, -0.5], 2: [1.5, 2.0, -1.0], 3: [0.5, 1.0, 2.0]}


def inputs(trips: int, counts: tuple[int, ...] = (0, 1, 2, 3)) -> list[tuple[torch.Tensor]]:
    """Return inputs of so many rows, each with one of the numbers of positive elements; all numbers come in all rows."""
    orders = [[counts[(k * step + first) % len(counts)] for k in range(trips)] for step in (0, 1, 2, 3) for first in range(len(counts))]
    return [(torch.tensor([ROWS[n] for n in order]),) for order in orders]


def positive(row: torch.Tensor) -> torch.Tensor:
    return (row > 0).nonzero().squeeze()


def sums(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    for i in range(7):
        found = positive(x[i])
        if found.numel() == 0:
            continue
        total = total * 0.5 + x[i].index_select(0, found.reshape(-1)).sum()
    return total


def leaves(x: torch.Tensor) -> Any:
    total = x.sum()
    for i in range(7):
        found = positive(x[i])
        if found.dim() == 0 and i > 2:
            return total, i
        if found.numel() == 3 and i > 3:
            total = total + 1
            break
        total = total * 0.5 + found.sum()
    else:
        total = total - 1
    return total, None


def writes(x: torch.Tensor) -> Any:
    marks, kept, seen = torch.zeros(7), [], {"ones": 0}
    for i in range(7):
        found = positive(x[i])
        if found.dim() == 0:
            marks[i] = 1
            seen["ones"] += 1
            kept.append(x[i].sum())
        else:
            marks[i] = found.numel()
            kept.append(x[i].max())
    return marks, kept, seen


def cleans_up(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    for i in range(7):
        try:
            if positive(x[i]).dim() == 0:
                continue
            total = total + 1
        finally:
            total = total * 0.5
    return total


def keeps(x: torch.Tensor) -> torch.Tensor:
    last, total = None, x.sum()
    for i in range(7):
        if positive(x[i]).dim() == 0:
            last = x[i] * 2
        if last is not None:
            total = total * 0.5 + last.sum()
    return total


class Layers(nn.Module):
    """Layers that keep what they saw last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(7))
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        state = x[0]
        for layer, row in zip(self.layers, x):
            found = positive(row)
            if found.dim():
                state = torch.tanh(layer(state + row))
            self.last = state
        return state, self.last.sum()


@pytest.mark.parametrize(("program", "most"), [(sums, 80), (leaves, 60), (writes, 40), (cleans_up, 40), (keeps, 70), (Layers(), 40)])
def test_paths_that_part_in_unrolled_trips_meet_at_their_ends(program: Any, most: int) -> None:
    check(program, inputs(7), paths=8, blocks=most)


def test_code_doubled_with_each_trip_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on paths is reached where paths do not meet, so the numbers of blocks above say something."""
    monkeypatch.setattr(Decisions, "meet_in_trips", lambda decisions, loop: None)
    with pytest.raises(PathExplosionError):
        check(sums, inputs(7), max_paths=40)


def uses_what_parted(x: torch.Tensor) -> torch.Tensor:
    before, total = None, x.sum()
    for i in range(4):
        found = positive(x[i])
        if before is not None:
            total = total + before.dim() * found.dim()
        before = found
    return total


def grows_on_some_paths(x: torch.Tensor) -> Any:
    kept = []
    for i in range(4):
        if positive(x[i]).dim() == 0:
            kept.append(x[i].sum())
    return kept, len(kept)


def advances(x: torch.Tensor) -> torch.Tensor:
    factors, total = iter(range(1, 9)), x.sum()
    for i in range(4):
        total = total + next(factors) if positive(x[i]).dim() == 0 else total * next(factors)
    return total


def catches_outside(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    try:
        for i in range(4):
            if positive(x[i]).dim() == 0:
                raise ValueError("one")
            total = total + 1
    except ValueError:
        total = total * 5
    return total


@pytest.mark.parametrize("program", [uses_what_parted, grows_on_some_paths, advances, catches_outside])
def test_what_cannot_be_joined_at_the_end_of_a_trip_parts_for_good(program: Any) -> None:
    check(program, inputs(4), paths=4)


def test_adaptive_log_softmax_of_many_clusters() -> None:
    torch.manual_seed(0)
    net = nn.AdaptiveLogSoftmaxWithLoss(8, 70, [10, 20, 30, 40, 50, 60], div_value=1.5).eval()
    x = torch.randn(6, 8)
    wanted = [[1, 11, 21, 31, 41, 51], [65] * 6, [0, 0, 15, 15, 69, 2], [33, 34, 61, 9, 10, 19], [20] * 5 + [40]]
    check(net, [(x, torch.tensor(t)) for t in wanted], paths=5, blocks=80)
