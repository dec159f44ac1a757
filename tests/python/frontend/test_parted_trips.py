# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Paths through the body of a rolled loop that cannot be joined before its end: each goes on by itself to the end of the trip."""

from __future__ import annotations

import pytest
import torch
from differential import check

INPUTS = [
    (torch.tensor(x), torch.tensor(n))
    for x in ([0.0, 0.0, 0.0], [3.0, 0.0, 1.0], [0.0, 4.0, 2.0], [5.0, 5.0, 5.0], [-6.0, 1.0, 7.0], [9.0, -9.0, 2.5])
    for n in (-10.0, 3.0, 20.0, 50.0)
]


def an_optional_value(x, n):
    while x.sum() < n:
        mask = None
        if x[0] > 2:
            mask = x * 2
        y = x + 1
        if mask is not None:
            y = y + mask.abs()
        x = y
    return x


def helper(x):
    if x.max() > 6:
        return None
    if x.min() < 0:
        return x[:2]
    return x.abs() + 1


def the_value_of_a_function(x, n):
    while x.sum() < n:
        found = helper(x)
        x = x + 1.5 if found is None else x + found.sum()
    return x


def containers_of_other_lengths(x, n):
    count = 0
    while x.sum() <= n:
        parts = {}
        if x[0] > 3:
            parts["a"] = x
        if x.sum() > n + 2:
            break
        if x[1] > 2:
            parts["b"] = x * 2
        for v in parts.values():
            x = x + v.abs() * 0.1
        x = x + 1 if len(parts) < 2 else x + 2
        if len(parts) == 2 and x[2] > 9:
            return x * 100, count
        count += len(parts)
    return x, count


def leaves_before_they_part(x, n):
    for i in range(int(n.abs())):
        if x[2] > 30:
            return x * 3
        if x[0] > 25:
            x = x - 1
            continue
        if x[1] > 20:
            break
        rows = [x] if x[0] > 0 else [x, x + 1]
        x = torch.stack(rows).sum(0).abs() + len(rows) + i
    return x


def loops_within(x, n):
    while x.sum() < n:
        step = None
        while x[0] < 3:
            step = x * 0.5 if step is None else step + 1
            x = x + 1
        kept = [] if x[1] > 2 else [x]
        for _ in range(int(x[2].abs()) % 3):
            extra = None if x[0] > 4 else x
            x = x + 1 if extra is None else x + extra.abs() * 0.25
            if x.sum() > n:
                break
        for k in kept:
            x = x + k.abs() * 0.125
        if step is not None:
            x = x + step.abs() * 0.1
        x = x + 0.5
    return x


def a_length_that_python_needs(x, n):
    while x.sum() < n:
        part = x[x > 1]
        items = part.unbind()
        x = x + 1 + len(items)
        if len(part.unbind()) > 1:
            x = x + items[1].abs() * 0.5
    return x


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, torch.zeros(3)

    def forward(self, x, n):
        while x.sum() < n:
            self.calls += 1
            pair = (x, 1) if x[0] > 1 else None
            x = x + 1
            if pair is not None:
                self.last = pair[0]
                self.calls += pair[1]
        return x + self.last, self.calls


PROGRAMS = [
    an_optional_value,
    the_value_of_a_function,
    containers_of_other_lengths,
    leaves_before_they_part,
    loops_within,
    a_length_that_python_needs,
    Counts(),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: getattr(f, "__name__", type(f).__name__))
def test_right(program):
    graph = check(program, INPUTS, paths=3)
    assert any(b.name.startswith("loop") for b in graph.blocks)
    assert len(graph.blocks) < 120


def test_state_over_several_calls():
    model, call = Counts(), check(Counts(), INPUTS).interpret()
    for args in INPUTS:
        want, got = model(*args), call(*args)
        assert torch.equal(want[0], got[0]) and want[1] == got[1]
