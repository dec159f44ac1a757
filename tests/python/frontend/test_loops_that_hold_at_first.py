# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops that hold at first, as their variables begin with ``x.new_zeros(...)``: rolled with the first trip where they can be."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

X = torch.tensor([[0.1, 0.2, -0.3], [0.5, -0.4, 0.2]])
INPUTS = [(X * k,) for k in (1.0, -3.0, 8.0, 0.0, 0.2)]


def halting(x):
    total, n, out = x.new_zeros(x.size(0)), 0, torch.zeros_like(x)
    while (total < 0.9).all() and n < 8:
        p = torch.sigmoid(x.sum(1))
        out = out + p[:, None] * x
        total = total + p * 0.3
        n += 1
    return out, total, n


def nested(x):
    total, n = x.new_zeros(()), 0
    while total < 4:
        inner = x.new_zeros(())
        while inner < x.abs().sum():
            inner = inner + 1.5
            n += 1
        total = total + inner + 0.5
    return total, n


def ended_by_break(x):
    going, n = x.new_ones((), dtype=torch.bool), 0
    while going:
        n += 1
        if n > 4 or x.sum() * n > 10:
            break
    return x * n


def none_at_first(x):
    total, previous, n = x.new_zeros(()), None, 0
    while total < 5:
        y = x * 2 if previous is None else previous + x.abs()
        previous, total = y, total + 1 + y.abs().mean()
        n += 1
    return previous, n


def a_list_that_grows(x):
    i, parts = x.new_zeros(()), []
    while i < 3:
        parts.append(x * i)
        i = i + 1
    return torch.stack(parts)


def a_shape_that_grows(x):
    i = x.new_zeros(())
    while i < 2:
        x = torch.cat([x, x])
        i = i + 1
    return x


def a_generator(x):
    def powers(i):
        while i < 4:
            yield i
            i = i * 2

    return x + sum(powers(x.new_ones(())))


@pytest.mark.parametrize(
    "program",
    [halting, nested, ended_by_break, none_at_first, a_list_that_grows, a_shape_that_grows, a_generator],
    ids=lambda f: f.__name__,
)
def test_right(program):
    check(program, INPUTS)


def test_the_first_trip_is_no_code_of_its_own():
    sigmoids = [s for b in stage(halting, INPUTS[0]).blocks for s in b.steps if getattr(s, "op", "") == "aten.sigmoid.default"]
    assert len(sigmoids) == 1
