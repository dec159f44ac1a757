# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of the run that Python itself needs (an end of a slice of a list, how often it is repeated): of a few, each is a path."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError

INPUTS = [(torch.tensor(row).view(2, 3),) for row in ([1.0, -2, 3, -4, 5, -6], [1.0, 2, 3, 4, 5, 6], [-1.0] * 6, [-1.0, 2, 3, -2, 0, -9])]


def positive(x):
    return int((x[0] > 0).sum())


def ends_of_slices(x):
    rows, n = [x[0], x[0] * 2, x[1]], positive(x)
    return rows[:n], rows[n:], [r.sum() for r in reversed(rows[:n])], tuple(rows)[-n:]


def repeated(x):
    n = positive(x)
    return [0.0] * n + [1.0] * (3 - n), "ab" * n


def searched(x):
    return [3, 2, 1, 0].index(positive(x)), x[0].argmax().item()


def early_return_before(x):
    """The path that has left the function is joined behind it, where the number is another one."""
    rows, n = [x[0], x[0] * 2, x[1]], positive(x)

    def part():
        if x.sum() > 0:
            return 1
        return len(rows[:n])

    return part() * x, rows[:n]


def in_a_branch(x):
    rows, n, y = [x[0], x[1], x[1] - 1], positive(x), x
    if x.sum() > 0:
        y = sum(rows[:n], x[0])
    return y + n


def in_a_loop(x):
    rows = [x[0], x[1], x[1] - 1]
    for row in x:
        rows = rows[: int((row > 0).sum())] + [row]
    return rows


def keys(x):
    d, s = {1: x[0]}, {1}
    d[positive(x)] = x[1]
    s.add(positive(x))
    d.setdefault(positive(x), x[0]).add_(1)
    s.add(positive(x) > 2)
    return d, s, 3 in d, len(s)


def keys_in_a_branch(x):
    d = {1: x}

    def part():
        if x.sum() > 0:
            return 1
        d[positive(x)] = x * 2
        return 2

    return part() * x, d


def where_a_test_holds(x):
    """A number that is one of some on a side of a test is no other there, and any other behind it."""
    d, seen, n, any_int = {}, [], x.flatten().argmax().item(), x[0, 0].long().item()
    if any_int in (1, 2):
        d[any_int] = 1.0
    if n == 2 or x[0, 0] > 0:
        seen.append([0.0] * n)
    if not (n == 2 and x[0, 0] > 1):
        seen.append([1.0] * n)
    return d, seen


def seen_in_trips(x):
    """What is done for some numbers only leaves as many dicts as these can be in, not as all can be."""
    numbers, first, last = x.argmax(0)[x[0] > 0], {}, 0
    for k in range(numbers.shape[0]):
        n = numbers[k].item()
        last = first[n] if n in first else last + 1
        if n in {1}:
            first[n] = last
    return x * last


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total = sum([x[0], x[1], x[0] * 3][: positive(x)], self.total)
        return self.total.clone()


@pytest.mark.parametrize(
    "program",
    [ends_of_slices, repeated, searched, early_return_before, in_a_branch, in_a_loop, keys, keys_in_a_branch, Kept()]
    + [where_a_test_holds, seen_in_trips],
)
def test_each_number_is_a_path(program):
    check(program, INPUTS, paths=2 if program is not searched else 1)


def looked_for(x):
    found, many = {1: 2.0, 3: 0.1, "1": 5.0}, int((x > -7).sum())
    return x * found.get(positive(x), 0.5), found.get(many, 1.5), {0: x}.get(positive(x))


def taken_out(x):
    d, s = {1: x, 2: x * 2, 0: x - 1}, {0, 1}
    s.discard(positive(x))
    y = d.pop(positive(x), x * 9)
    try:
        s.remove(int((x[1] > 0).sum()))
    except KeyError:
        y = y + 1
    return y, len(d), s


def gone(x):
    return {1: x, 3: x * 2}.pop(positive(x))


@pytest.mark.parametrize("program", [looked_for, taken_out, gone])
def test_keys_that_are_looked_for(program):
    check(program, INPUTS)


def test_what_is_found_by_a_number_is_joined():
    assert len(check(lambda x: x * {1: 2.0, 3: 0.1}.get(positive(x), 0.5), INPUTS).return_sites()) == 1


def test_of_many_none_is_a_key():
    def program(x):
        d = {}
        d[int((x > 0).sum())] = x
        return d

    with pytest.raises(UnsupportedError, match="needs an int"):
        stage(program, (torch.zeros(30),))


def test_of_many_none_is():
    rows = [torch.ones(2)] * 30
    with pytest.raises(UnsupportedError, match="needs an int"):
        stage(lambda x: rows[: int((x > 0).sum())], (torch.zeros(30),))
