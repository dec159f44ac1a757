# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is computed from constants alone is known while a program is staged: through views, changes in place, reductions and texts."""

from __future__ import annotations

import functools

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError

X = [(torch.full((2, 4), v),) for v in (1.0, -1.0, 3.5)]


def checks_its_arguments(x):
    eos = torch.tensor(7).unsqueeze(0)
    if (eos < 0).any() or not torch.is_floating_point(x):
        print(f"bad {eos}")
    return x + eos, [int(e) for e in eos.tolist()]


def writes_a_constant_through_views(x):
    m = torch.zeros(4, 4)
    m[0] = 1
    m[:, 1:] += 2
    v = m.view(16)[2:6]
    m.diagonal().fill_(7)
    if v.max() > 2 and m.t()[1, 0] == 3:
        return x @ m, v.sum().item(), v
    return x


def texts(x):
    e = torch.arange(3)
    rank0 = e[1] * 2
    return x * 2, f"{rank0} {rank0:>4} {e} {e[0]:03d}", str(e.view(3, 1)), repr(rank0), f"{e.float().mean():.3f}"


def a_number_as_a_size(x):
    lengths = torch.tensor([1, 3])
    return x.view(-1)[: int(lengths.max())], [part.shape[-1] for part in x.split(lengths.tolist(), dim=1)]


def what_one_operand_decides(x):
    """The loop ends by its bound, whatever the run-time test says."""
    done, steps = torch.zeros(2, dtype=torch.bool), 0
    while not done.all():
        steps += 1
        x = torch.cat([x, x[:, -1:] * 2], 1)
        done = (x.sum(1) > 60) | torch.full((2,), steps >= 3)
    return x, (torch.zeros(2, 1, dtype=torch.long) * x.long()).sum().item()


@pytest.mark.parametrize(
    "program", [checks_its_arguments, writes_a_constant_through_views, texts, a_number_as_a_size], ids=lambda f: f.__name__
)
def test_known(program):
    assert len(check(program, X).blocks) == 1


def picks_by_a_known_mask(x):
    mask = torch.ones(4, 4).tril().bool()
    row = x.reshape(-1)[:4]
    return torch.masked_select(row.expand(4, 4), mask), row.masked_select(mask[2]), torch.combinations(row)


def test_elements_that_a_known_mask_picks():
    check(picks_by_a_known_mask, X)


def test_one_operand_decides():
    check(what_one_operand_decides, X)


def test_absorbing_is_exact_for_integers_and_bools_only():
    def f(x):
        n = x.long()
        return (n & 0, n | -1, (x > 0) | True, torch.zeros(4) * (x / 0), (x > 0) & torch.tensor([True, False, True, False]))

    check(f, X)


def test_nothing_is_beyond_an_infinity():
    inf = float("inf")

    def f(x):
        most = torch.full((4,), inf)
        y = x / (x - x[0, 0])  # with infinities of both signs, and what is no number
        if (y > most).any() or (y > inf).any() or (-most > y).any() or (y < -inf).any() or (y < -most).any() or (most.double() < y).any():
            return None
        return y >= most, y < most, y > -inf, most >= y, y > torch.tensor([inf, 0.0, inf, inf])

    assert len(check(f, X).blocks) == 1


@functools.lru_cache(maxsize=1)
def positions(n):
    return torch.arange(n).float().sin()


def test_a_cached_function_may_give_a_constant_tensor():
    def f(x):
        y = x + positions(4)
        return (y + positions(2).sum() + positions(4) if y.sum() > 0 else y), positions(4) is positions(4)

    check(f, X, paths=2)


def test_a_constant_that_a_cache_keeps_is_not_changed():
    def f(x):
        positions(4).add_(1)
        return x + positions(4)

    with pytest.raises(UnsupportedError, match="a cached function keeps"):
        stage(f, X[0])


@functools.lru_cache(None)
def quiet(n):
    seen = []
    for k in range(n):
        seen.append(inner(k))
    return tuple(seen)


@functools.lru_cache(None)
def inner(k):
    return k * 2


def test_a_cached_function_may_change_what_it_makes():
    check(lambda x: (x * quiet(3)[2], quiet(2)), X)


KEPT: list[int] = []


@functools.lru_cache(None)
def loud(n):
    KEPT.append(n)
    return n


def test_a_cached_function_that_leaves_something_is_refused():
    with pytest.raises(UnsupportedError, match="keeps its results in a cache"):
        stage(lambda x: x * loud(3) + len(KEPT), X[0])


def test_a_bounded_cache_forgets_what_was_used_for_least():
    def f(x):
        log = []

        @functools.lru_cache(maxsize=2)
        def g(n):
            log.append(n)
            return n * 2

        s = g(1) + g(2) + g(1) + g(3) + g(2)
        if x.sum() > 0:
            s += g(1) + g(3)
        return x * (s + g(2) + g(3) + g(1)), log

    check(f, X, paths=2)


class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        self.l = self.l.to(x.dtype)
        y = self.l(x)
        if 3 in y.round().long():
            y = y + 1
        return y


def test_a_cast_that_changes_nothing_and_membership_of_a_number():
    check(Casts(), X, blocks=4)


def shapes_that_depend_on_constants(x):
    steps = torch.cat([torch.tensor([1, 3]), torch.arange(4)])
    values, counts = steps.unique(return_counts=True)
    upper = torch.ones(4, 4).triu().bool()
    y = (x[:, :, None] * x[:, None, :])[:, upper]
    y[:, torch.tensor([True, False] * 5)] = 7
    return y, values.tolist(), x[:, (counts > 1)], upper.nonzero().stride(), steps[steps > 1]


def of_the_shape_of_an_input(x):
    lengths = x.new_ones(x.shape, dtype=torch.long).sum(1)
    items = [1, 2, 3, 4, 5]
    grown = torch.zeros_like(x).add_(x).mul_(torch.full_like(x, 2.5))
    return grown, items[: lengths[0]], torch.ones_like(x.t()).stride(), x.new_full((2,), 3, dtype=torch.int32).tolist()


@pytest.mark.parametrize("program", [shapes_that_depend_on_constants, of_the_shape_of_an_input], ids=lambda f: f.__name__)
def test_shapes(program):
    assert len(check(program, X).blocks) == 1
