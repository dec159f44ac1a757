# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls in which Python has to know how long a tensor is: each length is a side of a switch, and what the call gives is joined."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from differential import check, stage
from test_lengths import INPUTS
from torch import nn

import dycl_tvm
from dycl_tvm.hcfg.nodes import Switch


def front(x):
    return x[: int((x > 0).sum())]


def told(part, factor=1.0):
    known = [i for i, _ in enumerate(part.unbind()) if i % 2]
    return {"n": len(known), "part": part, "all": (len(part), 2.0)}, factor * len(known)


def a_record_of_it(x):
    found, factor = told(front(x), factor=2.0)
    return found, found["part"] * factor, x[: found["all"][0]]


def of_two_lengths(x):
    a, b = front(x), x[: int((x > 0.7).sum())]

    def both(a, b):
        return len(a.unbind()) * 10 + len(b.tolist()), a.sum() + b.sum()

    return both(a, b), both(b, b)


def calls_in_calls(x):
    def inner(part):
        return sum(1 for v in part.unbind() if v is not None), part * 2

    def outer(part):
        n, twice = inner(part)
        return n + 1, twice, len([*part])

    return outer(front(x))


def lists_that_differ(x):
    def numbers(part):
        return part.unbind()

    part = front(x)
    return numbers(part), sum(numbers(part)), len(numbers(part))


def variables_around(x):
    n, y = 0, x

    def count(part):
        nonlocal n
        for _ in part.unbind():
            n += 1

    def change(part):
        nonlocal y
        y = y + 1
        if x[0] > 0.7:
            y = y * len(part.unbind())

    count(front(x))
    change(front(x))
    return n, y


def early(x):
    def first(part, otherwise):
        items = part.unbind()
        if len(items) < 2:
            return otherwise
        if items[1] > 1.5:
            return items[0]
        return items[1]

    return first(front(x), 7.0), x.sum()


def errors(x):
    def second(part):
        return part.unbind()[1]

    return second(front(x)) * 2


def errors_that_are_caught(x):
    def second(part):
        return part.unbind()[1]

    try:
        return second(front(x)), "there"
    except IndexError:
        return 0.0, "none"


def what_it_leaves(x):
    log, last = [x], {}

    def leave(part):
        nonlocal x
        log[0] = log[0] + 1
        x = x * 2
        last["n"] = len(part.unbind())
        log[0] = log[0] * last["n"]
        return part

    y = leave(front(x))
    return log, last, x, y


def in_place(x):
    y = x.clone()

    def scale(part, y):
        y.mul_(3)
        y[0] += len(part.unbind())
        return y

    return scale(front(x), y), y


def in_a_loop(x):
    def count(part):
        return len([v for v in part.unbind()])

    n = 0
    while (x > 0).any():
        n += count(front(x))
        x = x - 1
    return n, x


def in_a_branch(x):
    def count(part):
        return len(part.unbind()) * part.sum()

    if x.sum() > 0:
        return count(front(x))
    return x.mean()


def under_try_and_with(x):
    entered = []

    @contextlib.contextmanager
    def noted():
        entered.append(1)
        yield
        entered.append(2)

    def count(part):
        with noted():
            try:
                return len(part.unbind())
            finally:
                entered.append(3)

    return count(front(x)), entered


def iterators(x):
    it = iter([1.0, 2.0, 3.0])

    def take(part):
        return next(it) + len(part.unbind())

    return take(front(x)), next(it)


def draws(x):
    torch.manual_seed(3)

    def drawn(part):
        return torch.rand(2) + len(part.unbind())

    return drawn(front(x)), torch.rand(2)


def generators(x):
    def items(part):
        for v in part.unbind():
            yield v + 1

    return sum(items(front(x)))


def kinds(x):
    def shape(part):
        items = part.unbind()
        return None if not items else "one" if len(items) == 1 else torch.stack([part.sum()] * 2)

    return shape(front(x))


def in_many_rows(x):
    rows = [front(x * s) for s in (1.0, -1.0, 0.5)]

    def of(row):
        flags = [v is None for v in row.unbind()]
        return [i for i, f in enumerate(flags) if f], (1, 1 + len(row))

    return [of(row) for row in rows]


PROGRAMS = [
    a_record_of_it,
    of_two_lengths,
    calls_in_calls,
    variables_around,
    lists_that_differ,
    early,
    errors,
    errors_that_are_caught,
    what_it_leaves,
    in_place,
    in_a_loop,
    in_a_branch,
    under_try_and_with,
    iterators,
    draws,
    generators,
    kinds,
    in_many_rows,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS, paths=2)


def test_what_follows_is_staged_once():
    graph = stage(in_many_rows, INPUTS[0])
    switches = [b.terminator for b in graph.blocks if isinstance(b.terminator, Switch)]
    assert [len(s.edges) for s in switches] == [6, 6, 6]
    assert len(graph.return_sites()) == 1


class Counter(nn.Module):
    """Takes the items of a tensor in a method, which also changes the model."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.seen = 0

    def lengths(self, part):
        self.seen += 1
        return sum(1 for _ in part.unbind()), part

    def forward(self, x):
        n, part = self.lengths(front(x))
        return self.linear(x) * n, part, self.seen


def test_a_method_compiled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Counter().eval()
    dycl_tvm.build(model, INPUTS[0]).export_library(tmp_path / "net.so", embed_params=True)
    net = dycl_tvm.load(tmp_path / "net.so")
    for (x,) in INPUTS:
        want, got = model(x), net(x)
        assert torch.allclose(want[0], torch.as_tensor(got[0]), atol=1e-5)
        assert torch.equal(want[1], torch.as_tensor(got[1]))
        assert want[2] == got[2]
