# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rows that masks pick, whose number Python needs: masks that follow from each other, tests whether any is true, ragged lists of parts."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch.nn.utils.rnn import pad_sequence

from dycl_tvm.frontend.python import stage

ROWS = [(torch.randn(3, 5, generator=torch.Generator().manual_seed(k)),) for k in range(12)]
ROWS += [(torch.full((3, 5), n),) for n in (1.0, -1.0, -9.0)] + [(torch.tensor([[1.0] + [-1] * 4, [-1.0] * 5, [1.0] * 5]),)]


def the_same_mask_again(x):
    """Each computation of the mask has a number of true elements of its own, of which it is known that they are one."""
    stop = x.sum(1) > 0
    y, at, left = (t[~stop] for t in (x, torch.arange(3), x > 0))
    picked, places = ([t[m] for t, m in zip(of, left)] for of in (y, torch.arange(5).expand(y.shape[0], -1)))
    seen = torch.zeros(3, 5)
    for i in range(y.shape[0]):
        seen[at[i], places[i]] += 1
    return pad_sequence(picked, batch_first=True) if picked else y, seen


def both_parts(x):
    mask = x[0] > 0
    return torch.cat([x[:, mask], x[:, ~mask]], 1), x[:, mask].shape[1] + x[:, ~mask].shape[1]


def each_twice(x):
    mask = (x.sum(1) > 0).repeat_interleave(2)
    y = x.repeat_interleave(2, 0)[mask]
    return y.view(-1, 2, 5).sum(1), y.reshape(y.shape[0] // 2, 10), y[::2], list(x[x.sum(1) > 0])


def turned(x):
    mask = x.sum(1) > 0
    if mask.any():
        return list(x[mask.flip(0)]), list(x[mask]), x[mask[:, None].expand(3, 5)].view(-1, 5)
    return list(x[mask.flip(0)]), list(x[~mask])


def stopped_one_by_one(x):
    rows, sums, k = [], [], 0
    for k in range(3):
        stop = x.sum(1) > 1
        if torch.any(stop):
            rows.extend(list(x[stop]))
            sums.extend(x[stop].sum(1))
            x = x[~stop]
        if torch.all(stop):
            break
        x = x + 0.5
    return torch.stack(rows) if rows else None, sums, x, k


def all_of_one(x):
    stop = x[:1].sum(1) > 0
    twice = stop.repeat_interleave(3)
    if torch.any(stop):
        rows, x = list(x[twice]), x[~twice]
        return (rows, x) if torch.all(stop) else (rows, x + 1)
    return x, twice


def in_conditions(x):
    mask = x.sum(1) > 0
    if not mask.any() or (mask.all() and x[0, 0] > 0):
        return list(x[~mask]), x
    return [r for r in x[mask]] if mask.any() else [x[0]], list(x[~mask])


def changed_behind_the_test(x):
    mask = x.sum(1) > 0
    other = ~mask
    if mask.any():
        mask[0] = False
        return list(x[mask]), list(x[other])
    other[1] = False
    return list(x[mask]), list(x[other])


def in_another_function(x):
    def of(mask):
        if mask.any():
            if mask.all():
                return x.sum() * 2
            return x[mask].sum() + len(list(x[mask]))
        return x.sum()

    mask = x.sum(1) > 0
    return of(mask), list(x[mask]), of(~mask)


def behind_a_loop(x):
    """What was told of the state in a trip is not so of the state behind the loop, though it is computed alike."""
    while x.sum() < 3:
        if x[x > 0].shape[0] == 0:
            return x
        x = x + 0.5
    return (x, 1) if x[x > 0].shape[0] == 0 else (x[x > 1], 2)


def decided_in_a_loop(x):
    total, mask = x.sum() * 0, x.sum(1) > 0
    while total < 6:
        mask = x.sum(1) > 0
        for row in x[mask]:
            total = total + row.abs().sum()
        x, total = x + 0.3, total + 1
    return total, list(x[x.sum(1) > 0]), list(x[mask])


PROGRAMS = [
    *(the_same_mask_again, both_parts, each_twice, turned, stopped_one_by_one, all_of_one, in_conditions, changed_behind_the_test),
    *(in_another_function, behind_a_loop, decided_in_a_loop),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, ROWS)


def test_of_one_row_nothing_is_left_to_decide():
    """One row is any, and all: behind the test nothing depends on how many there are."""
    assert len(stage(all_of_one, ROWS[0]).blocks) == 3


def test_both_parts_of_a_mask_are_as_long_as_the_mask():
    assert len(stage(both_parts, ROWS[0]).blocks) == 1


def parts(x):
    return [row[row > 0] for row in x]


def padded_by_hand(x):
    rows = parts(x)
    made = x.new_zeros(3, max(len(r) for r in rows))
    for i, r in enumerate(rows):
        made[i, : r.shape[0]] = r
    return made


def without_empty_ones(x):
    rows = [r for r in parts(x) if r.numel() > 0]
    return pad_sequence(rows, batch_first=True, padding_value=-1) if rows else None


def pruned_in_each_layer(x):
    at = torch.arange(5).expand(3, -1)
    trips = torch.ones_like(at)
    for k in range(3):
        keep = x > k * 0.3
        x, kept, left = ([t[m] for t, m in zip(of, keep)] for of in (x, at, keep))
        for i in range(3):
            trips[i, kept[i]] += 1
        x, left = (pad_sequence(of, batch_first=True) for of in (x, left))
        at = pad_sequence(kept, batch_first=True, padding_value=-1)
    return x, at, trips, left


RAGGED = [
    lambda x: (pad_sequence(parts(x)), torch.cat(parts(x)), torch.tensor([len(r) for r in parts(x)])),
    lambda x: [r[-1] if len(r) else r.sum() for r in parts(x)],
    lambda x: [r.sort().values for r in map(lambda r: r[r < 1], x[:, x.sum(0) > 0])],
    lambda x: pad_sequence(torch.split(x[x > 0], (x > 0).sum(1).tolist()), batch_first=True),
    lambda x: [[r[m] for r, m in zip(y, y > 0)] for y in (x[x.sum(1) > 0], x[:, x.sum(0) > 0])],
    *(padded_by_hand, without_empty_ones, pruned_in_each_layer),
]


@pytest.mark.parametrize("program", RAGGED, ids=lambda f: f.__name__)
def test_ragged_parts(program):
    check(program, ROWS)
