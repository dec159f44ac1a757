# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What bounds the numbers of a rolled loop: the test that its trips begin with, and no claim that nobody proves."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import Return
from dycl_tvm.hcfg.types import TensorType


def _bits(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, 2, (1, 9), generator=generator) for _ in range(2))
    return x, torch.where(torch.arange(9) < seed % 6, x, y)


PAIRS = [_bits(seed) for seed in range(24)]


def as_long_as_they_agree(x, y):
    n = 0
    while n < 3 and bool(x[0, n] == y[0, n]):
        n += 1
    return torch.cat([x[:, : n + 1], y[:, n : n + 1]], 1), n


def downwards(x, y):
    n = 5
    while n > 1 and bool(x[0, n] != y[0, n]):
        n -= 2
    return x[:, n : n + 2], y[:, :n]


def sometimes(x, y):
    n = k = 0
    while n < 4 and k < 8:
        if x[0, k] == y[0, k]:
            n += 1
        k += 1
    return x[:, :n], x[:, : n + k - n]


def set_to_another(x, y):
    n = k = 0
    while n < 3 and bool(y[0, k] == x[0, k]) and k < 8:
        n = int(x[0, k]) * 7
        k += 1
    return x[:, :n], n


def from_a_number_of_the_run(x, y):
    n = int(x.sum())
    while n < 5 and bool(y[0, n] == 1):
        n += 2
    return y[:, :n], n


def of_two_loops(x, y):
    taken = x[:, :1]
    while taken.shape[1] < 6:
        n = 0
        while n < 2 and bool(x[0, n] == y[0, taken.shape[1] + n - 1]):
            n += 1
        taken = torch.cat([taken, x[:, : n + 1]], 1)
    return taken


def with_a_break(x, y):
    n = 0
    while n < 5:
        n += 1
        if x[0, n] != y[0, n]:
            break
        n += 1
    return x[:, :n], y[:, n:]


def another_number_in_the_test(x, y):
    k, n = int(x.sum()), 0
    while k < 4 and bool(x[0, n] == y[0, n]) and n < 7:
        n += 1
    return x[:, :k], x[:, :n]


@pytest.mark.parametrize(
    "program",
    [
        as_long_as_they_agree,
        downwards,
        sometimes,
        set_to_another,
        from_a_number_of_the_run,
        of_two_loops,
        with_a_break,
        another_number_in_the_test,
    ],
    ids=lambda f: f.__name__,
)
def test_right(program):
    check(program, PAIRS, paths=2, max_loop_trips=16)


class Drafting(nn.Module):
    """Self-speculative decoding: a part of the layers drafts three tokens, all of them say how many are right."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.near, self.far = nn.Embedding(12, 8), nn.Linear(8, 12), nn.Linear(8, 12)

    def forward(self, ids):
        start, accepted = ids.shape[1], 0
        while ids.shape[1] < start + 6:
            draft = ids
            for _ in range(3):
                draft = torch.cat([draft, self.near(self.embed(draft))[:, -1].argmax(-1, keepdim=True)], 1)
            hidden = self.embed(draft)
            full = (self.near(hidden) + 0.3 * self.far(hidden.cumsum(1))).argmax(-1)
            n, base = 0, ids.shape[1]
            while n < 3 and bool(draft[0, base + n] == full[0, base + n - 1]):
                n += 1
            ids = torch.cat([draft[:, : base + n], full[:, base + n - 1 : base + n]], 1)
            accepted += n
        return ids, accepted


def test_the_tokens_that_are_accepted_are_bounded():
    prompts = [(torch.randint(0, 12, (1, 4), generator=torch.Generator().manual_seed(k)),) for k in range(16)]
    graph = check(Drafting().eval(), prompts, paths=2)
    (site,) = [b.terminator for b in graph.blocks if isinstance(b.terminator, Return)]
    assert [v.type.shape for v in site.values if isinstance(v.type, TensorType)] == [(1, 4 + 6 - 1 + 4)]


def a_slice_as_long_as_what_grows(x, y, k):
    total = y.new_zeros(())
    while bool(total < k):
        part = y[: x.shape[0]]
        x = torch.cat([x, x[:1]])
        total = total + part.shape[0] * 100 + part.sum()
    return total, x


def in_a_counted_loop(x, y, k):
    total = y.new_zeros(())
    for _ in range(int(k) % 20):
        part = y[: x.shape[0]]
        x = torch.cat([x, x[:1]])
        total = total + part.shape[0] * 100 + part.sum()
    return total, x


def by_a_number_of_the_run(x, y, k):
    total = y.new_zeros(())
    while bool(total < k):
        part = y[: x.shape[0]]
        x = torch.cat([x, x[: int(total > 300) + 1]])
        total = total + part.shape[0] * 100 + part.sum()
    return total, x


@pytest.mark.parametrize("program", [a_slice_as_long_as_what_grows, in_a_counted_loop, by_a_number_of_the_run], ids=lambda f: f.__name__)
def test_a_slice_ends_where_its_tensor_does(program):
    """Python's slices do: that the length which grows stays within is claimed only where the trips are proved."""
    x, y = torch.arange(2.0), torch.arange(6.0)
    check(program, [(x, y, torch.tensor(float(k))) for k in (1100, 0, 300, 700, 2700, 19, 4000)], paths=2, max_length=20)


def test_a_test_at_the_head_is_no_longer_known_behind_the_loop():
    def program(x, y):
        n = 0
        while n < 3 and bool(x[0, n] == y[0, n]):
            n += 1
        return n == 3, x[:, n : n + 3]

    graph = stage(program, PAIRS[0], max_loop_trips=16)
    assert [graph.interpret()(*pair)[0] for pair in PAIRS] == [program(*pair)[0] for pair in PAIRS]
    assert any(program(*pair)[0] for pair in PAIRS)


def up_to_a_number_that_changes(x, y):
    kept, i, n = x[:, :1], 0, 2
    while i < n:
        kept = torch.cat([kept, x[:, i : i + 1 + int(y[0, i])]], 1)
        if y[0, i] == 0 and n < 7:
            n = n + 2
        i += 1
    return kept


def down_to_nothing(x, y):
    kept, i = x[:, :1], int((y > 0).sum())
    while i > 0:
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1] + i], 1)
        i -= 1
    return kept, i


def two_at_a_time(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()) and bool(kept.sum() < 4):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i += 2
    return kept


def in_an_inner_loop(x, y):
    kept, i = x[:, :2], 0
    while i < int((y > 0).sum()):
        k = 0
        while k < i:
            if x[0, k] > 0:
                kept = torch.cat([kept[:, 1:], x[:, k : k + 1], y[:, k : k + 1]], 1)
            k += 1
        i += 1
    return kept


def by_one_step_or_another(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i += 1 if y[0, i] > 0 else 2
    return kept, i


def with_an_extra_step(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
            if y[0, i] > 0:
                i += 2
                continue
        i += 1
    return kept, i


def _next(i, t):
    if t[0, i] > 0:
        return i + 1
    return i + 2


def by_a_function(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i = _next(i, y)
    return kept, i


def moved_on_by_an_inner_loop(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i += 1
        while i < 8 and bool(x[0, i] == 0):
            i += 1
    return kept, i


def by_truths(x, y):
    kept, i, k = x[:, :1], 0, 0
    while i < 7 and k < 7:
        i += 1 + int(x[0, i] > 0)
        kept = torch.cat([kept, x[:, i : i + 1 + int(y[0, k] > 0)]], 1)
        k = k + 2 - (y[0, k] > 0).item()
    return kept, i, k, x[:, i - 8 :]


def counted_from_the_left(x, y):
    kept, i = x[:, :1], 0
    while i < int((y > 0).sum()):
        if x[0, i] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i = 1 + i
    return kept, i


def perhaps_not_at_all(x, y):
    kept, i, k = x[:, :1], 0, 0
    while i < int((y > 0).sum()) and k < 9:
        if x[0, k] > 0:
            kept = torch.cat([kept, x[:, i : i + 1]], 1)
            i += 1
        k += 1
    return kept, i


@pytest.mark.parametrize(
    "program",
    [
        up_to_a_number_that_changes,
        down_to_nothing,
        two_at_a_time,
        in_an_inner_loop,
        by_one_step_or_another,
        with_an_extra_step,
        by_a_function,
        moved_on_by_an_inner_loop,
        by_truths,
        counted_from_the_left,
        perhaps_not_at_all,
    ],
    ids=lambda f: f.__name__,
)
def test_a_number_that_the_test_bounds_bounds_the_trips(program):
    """So nobody has to say how long what the loop makes longer may get."""
    check(program, PAIRS, paths=3, blocks=80)


def until_they_are_equal(x, y):
    kept, i, n = x[:, :0], 0, int((y > 0).sum())
    while i != n:
        kept = torch.cat([kept, x[:, i : i + 1]], 1)
        i += 1
    return kept


def test_where_bounds_say_that_a_loop_goes_on_for_ever():
    """No run comes there: ``i != n`` surely holds beyond what ``n`` may be. Unrolled trips end with the bound, and so does staging."""
    check(until_they_are_equal, PAIRS, max_loop_trips=9)
    with pytest.raises(UnsupportedError, match="max_loop_trips=N"):
        stage(until_they_are_equal, PAIRS[0])


def as_long_as_what_it_changes(x, y):
    kept, i = torch.arange(9)[y[0] > 0], 0
    while i < kept.shape[0]:
        kept = torch.cat([kept[:i], kept[i + 1 :]]) if x[0, i] > 0 else kept
        i += 1
    return kept, i


def test_a_buffer_that_says_how_many_trips_there_are_is_not_made_for_them():
    """It would be longer for more trips, which would be more as it is longer."""
    graph = check(as_long_as_what_it_changes, PAIRS, paths=3)
    assert max(v.type.numel for b in graph.blocks for v in b.params if isinstance(v.type, TensorType)) < 1000


def one_or_two(x, y):
    n = 0
    while n < 200:
        x = torch.tanh(x + n)
        n += 1 if x.sum() > y[0, n % 9] else 2
    return x, n


def one_to_four(x, y):
    n = 0
    while n < 200:
        x = torch.tanh(x * 3 + n)
        n += min(int(x.abs().sum()), 3) + 1
    return x, n


def known_beside_bounds(x, y):
    n, k = 0, 0
    while k < 5 and n < 200:
        x = torch.tanh(x + y[0, k])
        n += 1 if x.sum() > y[0, k] else 2
        k += 1
    return x, n


@pytest.mark.parametrize("program", [one_or_two, one_to_four], ids=lambda f: f.__name__)
def test_trips_that_bounds_say_are_made_are_one_body(program):
    """A loop of which the bounds of its counter tell that it goes on for fifty trips at least is not fifty bodies."""
    check(program, PAIRS, blocks=10)


def test_trips_that_python_knows_beside_bounds():
    check(known_beside_bounds, PAIRS, blocks=20)


def from_just_before_the_front(x, y):
    n = int((y > 0).sum()) - 1
    return x[:, n:], x[:, :n], x[0, n:], n


def from_either_side(x, y):
    n = int((y > 0).sum()) - 3
    return x[:, n:], x[:, n : n + 2], x[:, 1:n], x[:, n:-1], x[:, -n:]


def down_by_twos(x, y):
    i = 9
    while i > int((y > 0).sum()):
        i -= 2
    return x[:, i:], x[:, :i]


def that_ends_before_it_begins(x, y):
    n = int((y > 0).sum())
    return x[:, n : n - 3], x[:, n : n - 1], x[:, n - 3 : n], x[:, -n : -n - 2]


@pytest.mark.parametrize(
    "program",
    [from_just_before_the_front, from_either_side, down_by_twos, that_ends_before_it_begins],
    ids=lambda f: f.__name__,
)
def test_a_slice_from_a_number_that_may_be_negative(program):
    """What is not negative is no place near the end: a buffer as long as from there on would cut the slice off."""
    check(program, PAIRS)
