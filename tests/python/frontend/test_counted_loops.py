# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``for`` loops over ranges that Python knows: rolled where their trips are alike, unrolled where they are not, and right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differential import check, stage
from test_growing_loops import PROMPTS, Cache, Decoder
from torch import nn

X = [(torch.randn(2, 3, generator=torch.Generator().manual_seed(k)) * (k / 2),) for k in range(8)]


def size_of(graph: Any) -> tuple[int, int]:
    """Return the number of blocks of a graph, and of their steps."""
    return len(graph.blocks), sum(len(b.steps) for b in graph.blocks)


class BreaksBefore(Decoder):
    """The end token is no part of the text."""

    def forward(self, ids):
        cache, new = Cache(), ids
        for _ in range(self.most):
            token = self.step(new, cache, None).argmax(-1)
            if (token < 2).all():
                break
            ids = torch.cat([ids, token[:, None]], -1)
            new = token[:, None]
        return ids


class BreaksAfter(Decoder):
    """The end token is one; the loop has an ``else``, and its number is read behind it."""

    def forward(self, ids):
        cache, new = Cache(), ids
        for i in range(self.most):
            token = self.step(new, cache, None).argmax(-1)
            ids = torch.cat([ids, token[:, None]], -1)
            new = ids[:, -1:]
            if (token < 2).any():
                break
        else:
            ids = ids * 2
        return ids, i


class Fixed(Decoder):
    """As many tokens in every call: the result has a plain shape, with which anything can be done."""

    def forward(self, ids):
        cache, new = Cache(), ids
        for _ in range(self.most):
            token = self.step(new, cache, None).argmax(-1)
            ids = torch.cat([ids, token[:, None]], -1)
            new = ids[:, -1:]
        return ids, ids.view(-1, 2).sum(0), ids.shape, ids.sort().values


class Returns(Decoder):
    """Each way out returns something else."""

    def forward(self, ids):
        cache, new = Cache(), ids
        for _ in range(self.most):
            token = self.step(new, cache, None).argmax(-1)
            ids = torch.cat([ids, token[:, None]], -1)
            new = ids[:, -1:]
            if (token < 2).any():
                return ids, "early"
        return ids, "late"


DECODERS = [BreaksBefore, BreaksAfter, Fixed, Returns]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: d.__name__)
def test_code_does_not_grow_with_the_number_of_tokens(decoder):
    graph = check(decoder(9).eval(), PROMPTS)
    assert size_of(graph) == size_of(stage(decoder(80).eval(), PROMPTS[0]))
    check(decoder(9).eval(), [(ids[:1],) for (ids,) in PROMPTS[:3]])


def halting(x):
    halted, out, n = torch.zeros(2), torch.zeros(2, 3), 0
    for step in range(12):
        x = torch.tanh(x * 1.2 + 0.1)
        p = torch.sigmoid(x.sum(1))
        halted = halted + p
        out = out + x * p[:, None]
        n += 1
        if (halted > 2.5).all():
            break
    return out, n, step


def a_part_of_the_trips_number(x):
    table = torch.arange(36.0).view(12, 3) / 40
    for step in range(2, 12):
        if x[0, 0] > 3:
            x = x - 1
            continue
        x = x + table[step] + step * 0.1
        if x.sum() > 20:
            break
    return x, step


def the_first_trip_differs(x):
    h = None
    for step in range(12):
        h = x if step == 0 else h * 1.1 + x
        if h.sum() > 20:
            break
    return h


def set_in_the_loop_only(x):
    for _ in range(10):
        y = x * 2
        x = x + y.abs()
        if x.sum() > 30:
            break
    return x, y


def backwards(x):
    for i in range(27, 0, -3):
        x = x + i * 0.1
        if x.sum() > 20:
            return x, i
    return x


def within_another(x):
    total = x * 0
    for _ in range(8):
        for _ in range(9):
            x = x * 1.1 + 0.01
            if x.abs().sum() > 8:
                break
        total = total + x
        x = x * 0.5
        if total.sum() > 30:
            break
    return total, x


def raising(x):
    for _ in range(10):
        x = x * 1.5
        if x.sum() > 20:
            raise ValueError("too large")
    return x


def nothing_after(x):
    for _ in range(10):
        if x.sum() > 6:
            return x
        x = x + 0.3
    raise ValueError("never")


@pytest.mark.parametrize(
    "program",
    [halting, a_part_of_the_trips_number, the_first_trip_differs, set_in_the_loop_only, backwards, within_another, raising, nothing_after],
    ids=lambda f: f.__name__,
)
def test_rolled(program):
    graph = check(program, X, paths=2)
    assert any(b.name.startswith("loop") for b in graph.blocks)
    assert len(graph.blocks) < 20


class Layers(nn.Module):
    """An early exit behind each of different layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(9))

    def forward(self, x):
        for i in range(len(self.layers)):
            x = torch.relu(self.layers[i](x)) + x
            if x.sum() > 3:
                break
        return x


def a_test_of_the_trips_number(x):
    for i in range(9):
        x = x * 2 if i % 3 == 1 else x + 0.5
        if x.sum() > 20:
            break
    return x, i


def numbers_from_a_list(x):
    scales = [0.1 * k for k in range(9)]
    for i in range(9):
        x = x + scales[i]
        if x.sum() > 6:
            break
    return x


def a_dict_of_the_trips(x):
    seen = {}
    for i in range(8):
        x = x + 0.5
        if x.sum() > 6:
            break
        seen[i] = x
    return x, seen


def a_loop_as_long_as_the_number(x):
    for i in range(9):
        for k in range(i):
            x = x + 0.1 * k
        if x.sum() > 12:
            break
    return x


def a_text_of_the_number(x):
    name = ""
    for i in range(9):
        x = x + 1
        name = f"step {i}"
        if x.sum() > 12:
            break
    return x, name


def asked_for_behind_the_loop(x):
    c = x[0]
    for _ in range(9):
        c = torch.cat([c, c[-1:] + x[1, :1]])
        if c.sum() > 12:
            break
    return c.mode()[0]


def an_iterator_beside_it(x):
    rows = iter(list(x) * 5)
    for _ in range(9):
        x = x + next(rows)
        if x.sum() > 12:
            break
    return x


def a_counter_of_its_own(x):
    k, first, rate = 0, True, 1.0
    for _ in range(9):
        x = x + (x * 0.1 if k % 2 == 0 else 0.3) * rate
        if x.sum() > 12 and not first:
            break
        k, first, rate = k + 1, False, rate * 0.9
    return x, k


@pytest.mark.parametrize(
    "program",
    [
        Layers().eval(),
        a_counter_of_its_own,
        a_test_of_the_trips_number,
        numbers_from_a_list,
        a_dict_of_the_trips,
        a_loop_as_long_as_the_number,
        a_text_of_the_number,
        asked_for_behind_the_loop,
        an_iterator_beside_it,
    ],
    ids=lambda f: getattr(f, "__name__", type(f).__name__),
)
def test_unrolled(program):
    graph = check(program, X, paths=2)
    assert not any(b.name.startswith("loop") for b in graph.blocks)


def few_trips(x):
    for _ in range(4):
        x = x + 0.5
        if x.sum() > 3:
            break
    return x


def no_way_out(x):
    for _ in range(20):
        x = torch.where(x > 1, x - 1, x + 0.4)
    return x


@pytest.mark.parametrize("program", [few_trips, no_way_out], ids=lambda f: f.__name__)
def test_unrolled_because_that_is_faster(program):
    graph = check(program, X)
    assert not any(b.name.startswith("loop") for b in graph.blocks)


class Kept(nn.Module):
    """State that grows in the loop, and is read by the next call."""

    def __init__(self):
        super().__init__()
        self.count = torch.zeros(())

    def forward(self, x):
        rows = x
        for _ in range(9):
            rows = torch.cat([rows, rows[-1:] * 0.9 + self.count])
            self.count = self.count + 1
            if rows.sum() > 40:
                break
        return rows, rows.shape[0]


def test_calls_in_succession():
    model, call = Kept(), stage(Kept(), X[1]).interpret()
    for (x,) in X:
        rows, n = model(x)
        found, m = call(x)
        assert n == m
        torch.testing.assert_close(rows, found)
