# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Slices up to a number that is known only at run time: a counter of a rolled loop, or what the data say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

X = torch.tensor([[0.5, 1.5, -2.0], [3.0, 0.25, 1.0]])
T = torch.arange(24.0).reshape(2, 12)
INPUTS = [(X * s, torch.tensor(limit)) for limit in (0.0, 6.0, 9.0, 14.0, 500.0) for s in (1.0, -0.3)]


def a_slice_as_long_as_the_trips(x, limit):
    n, seen, y = 3, torch.zeros(2), T * x[0, 0] * 0.02
    while n < 9 and y.sum() < limit:
        part = y[:, :n]
        seen = seen + part.sum(1)
        y = y + part.mean() * 0.1 + 0.2
        n = n + 1
    return y, seen, n, y[:, :n]


def a_cache_that_is_written_in_place(x, limit):
    k, n, y = torch.zeros(2, 3, 10), 0, x
    while n < 10 and y.sum() < limit:
        k[:, :, n] = y
        keys = k[:, :, : n + 1]
        attention = torch.softmax(y[:, None] @ keys, -1)
        y = y * 0.9 + (attention @ keys.transpose(1, 2))[:, 0] * 0.3 + 0.2
        n += 1
    return y, k, k[:, :, :n], n


def the_last_trip_is_before_the_end_of_the_body(x, limit):
    y, n, s = torch.zeros(2, 10), 0, x.sum() * 0
    while s < limit:
        y[:, n] = x[:, 0] + n
        n += 1
        s = s + y[:, :n].sum().abs() + 1
        if n == 10:
            break
    return y[:, :n], n, s


def a_view_of_what_changes(x, limit):
    k, n, y = torch.zeros(2, 10), 1, x
    k[:, 0] = x[:, 0]
    while n < 9 and y.sum() < limit:
        part = k[:, :n].t()
        k[:, 0] += 1
        y = y + part.sum() * 0.1
        n += 1
    return y, k


def two_paths_through_the_trip(x, limit):
    y, n = T * 0.1, 2
    while n < 9 and y.sum() < limit + 25:
        found = None
        if y[0, 0] > 0.5:
            found = y[:, :n]
        n = n + 1
        y = y + (0.3 if found is None else found.sum() * 0.02) + y[:, :n].sum() * 0.01
    return y, n


def beams(x, limit):
    """Texts as they are so far, of which each trip chooses."""
    rows, n, score = torch.zeros(2, 3, 8), 1, x
    flat = rows[0, :, :1]
    while n < 8 and score.sum() < limit:
        flat = rows[:, :, :n].reshape(6, n)
        best = torch.topk(score + flat.sum() * 0.01, 3)[1]
        rows = torch.gather(rows, 1, best[:, :, None].expand(2, 3, 8))
        rows[:, :, n] = best + 1.0
        score = score * 0.9 + rows[:, :, n] * 0.3
        n = n + 1
    return rows, score, flat.sum()


def by_value(x, limit):
    n, k = (x > 0.3).sum(), int(x.sum() * 2)
    return T[:, :n], T[0, :k], T[:, :k].sum(1), T[..., :n] * 2, T[1, None, :n], T[:1, :k].t()


def cut_in_a_branch(x, limit):
    k = int(x.sum() * 3) - 2
    a = T[:, :k]
    if k > 2:
        a = a + 1
    return a, k


def padded_to_a_fixed_length(x, limit):
    c, seen, all_of = x, torch.zeros(2, 9), 0
    while c.shape[1] < 8 and c.sum() < limit:
        c = torch.cat([c, c[:, -1:] + 1], 1)
        seen = seen + F.pad(c, (0, 9 - c.shape[1]))
        q = F.pad(c, (0, 2), value=3.0)
        all_of = all_of + q.sum() + q.shape[1] + F.pad(c, (0, 1, 1, 0), value=2.0).sum() + F.pad(c, (0, -1)).sum()
        all_of = all_of + F.pad(c > 1, (0, 12 - c.shape[1]), value=True).sum() + F.pad(c, (0, 3 - c.shape[1])).sum()
    return c, seen, all_of, F.pad(c, (0, c.shape[1]))


ROLLED = [
    padded_to_a_fixed_length,
    a_slice_as_long_as_the_trips,
    a_cache_that_is_written_in_place,
    the_last_trip_is_before_the_end_of_the_body,
    a_view_of_what_changes,
    two_paths_through_the_trip,
    beams,
]


@pytest.mark.parametrize("program", ROLLED, ids=lambda f: f.__name__)
def test_rolled(program):
    graph = check(program, INPUTS, paths=3)
    assert sum(b.name.startswith("loop") for b in graph.blocks) == 1


@pytest.mark.parametrize("program", [by_value, cut_in_a_branch], ids=lambda f: f.__name__)
def test_of_values(program):
    check(program, INPUTS)


def test_of_a_bound_that_is_a_tensor():
    def f(x, n):
        return T[:, :n], T[:1, : n - 3].sum()

    check(f, [(X, torch.tensor(n)) for n in (0, 3, 12, 40)])


def longer_than_the_tensor(x, limit):
    y, n, seen = T[:, :6] * 0.1, 4, x.sum() * 0
    while True:
        seen = seen + y[:, :n].sum() * y[:, :n].shape[1]
        n += 1
        if n > 9 or seen > limit * 10:
            break
    return seen, n


def positions_from_a_counter(x, limit):
    n, y = 2, x.sum() * 0
    while n < 9 and y < limit:
        at = torch.arange(n, n + 2)
        y = y + T[0, at].sum() + at.sum()
        n += 1
    return y, n


def positions_from_a_tensor(x, limit):
    """A static cache's length is a tensor of rank 0 that is changed in place."""
    n, y = torch.tensor(2) + (x[0, 0] > 0), x.sum() * 0
    for _ in range(9):
        at = torch.arange(n, n + 3 - 1, dtype=torch.long).expand(2, -1)
        y = y + T[0, at].sum() + at.sum() + at.shape[1]
        n.add_(1)
        if y > limit:
            break
    return y, n


def read_before_it_changes(x, limit):
    k, n, y = torch.zeros(2, 10), 1, x
    k[:, 0] = x[:, 0]
    while n < 9 and y.sum() < limit:
        part = k[:, :n]
        last, flat = part[:, -1:], k[:, :n].reshape(-1)
        k[:, n] = y[:, 0]
        k[:, n - 1] += 1
        y = y + part.sum() * 0.1 + last.sum() + flat.sum()
        n += 1
    return y, k


def read_after_a_loop_that_may_go_on(x, limit):
    n, y = 0, x.sum() * 0
    while y < limit:
        y, n = y + 3, n + 1
    return T[:, :n], n


@pytest.mark.parametrize(
    "program",
    [longer_than_the_tensor, positions_from_a_counter, positions_from_a_tensor, read_before_it_changes, read_after_a_loop_that_may_go_on],
    ids=lambda f: f.__name__,
)
def test_right(program):
    check(program, INPUTS, paths=3)


@pytest.mark.parametrize("start", [0, 5, 2**63 - 2, 2**63 - 1, -(2**63)])
def test_an_end_that_has_wrapped_round_is_an_error(start):
    """The end is so far from the start unless the sum has left 64 bits: then it lies before it."""

    def counted(n):
        return torch.arange(n + 1, n + 2 + 1).shape[0], torch.arange(n - 1, n + 1)

    check(counted, [(torch.tensor(3),), (torch.tensor(start),)])


def test_an_end_that_has_wrapped_round_may_lie_behind_the_start():
    def counted(n):
        return torch.arange(n, n + 127 + 127 + 46).sum()

    check(counted, [(torch.tensor(k, dtype=torch.int8),) for k in (0, 60)], max_length=300)


def test_shapes_that_values_decide_are_refused_where_they_matter():
    def f(x, limit):
        return torch.linalg.inv(T[:, : int(x.sum())])

    with pytest.raises(UnsupportedError, match=r"a tensor \[2, n\] of float32 whose length n is known"):
        stage(f, INPUTS[0])
