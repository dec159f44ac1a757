# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A number on some paths and a tensor of rank 0 on others: its truth and arithmetic are no forks, other uses part the paths."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from differential import check, stage

from dycl_tvm.frontend.trace.decisions import Decisions

X = [(torch.tensor([v, 1.0]),) for v in (-3.0, -1.0, 0.5, 2.0, 5.0, 9.0)]
NUMBERS = [(torch.tensor([v, 1.0, 3.0]),) for v in (-3.0, -1.0, 0.5, 2.0, 5.0, 9.0)]


def corrected(x):
    ok = x.sum() > 0
    if x[0] > 4:
        ok = False
    if x[0] < -2:
        ok = True
    if ok:
        x = x + 1
    return x * 2 if not ok else x


def an_adaptive_loop(x):
    trips = 0
    while x.abs().sum() < 60:
        trips += 1
        accept = x.sum() < 20
        if x[0] > 30:
            accept = False
        x = x + 1 if accept else x * 1.5
    return x, trips


def other_tests_between(x):
    ok = x.sum() > 0
    if x[0] > 4:
        ok = False
    n = x[1].item()
    return (x + n if n > 0 else x) if ok and x[0] > 0 else x - n


def changed_under_another_name(x):
    ok = x.sum() > 0
    other = ok
    if x[0] > 4:
        ok = False
    if x[0] < 1:
        other.logical_not_()
    if x[0] < -2:
        ok = True
    return x + 1 if ok else x


def changed_in_a_loop(x):
    ok, n = x.sum() > 0, 0
    other = ok
    if x[0] > 4:
        ok = False
    while n < x.abs().sum().item() % 5:
        n += 1
        if ok:
            x = x + 0.5
        other.logical_not_()
    return x


@pytest.mark.parametrize("program, blocks", [(corrected, 19), (an_adaptive_loop, 14)], ids=lambda p: getattr(p, "__name__", ""))
def test_its_truth_is_no_fork(program, blocks):
    check(program, X, paths=3, blocks=blocks)


@pytest.mark.parametrize("program", [other_tests_between, changed_under_another_name, changed_in_a_loop], ids=lambda f: f.__name__)
def test_right(program):
    check(program, X)


def returned(x):
    ok = x.sum() > 0
    if x[0] > 4:
        ok = False
    return ok


def test_which_of_them_it_is_parts_the_paths():
    check(returned, X, paths=2)


# -- numbers ----------------------------------------------------------------------------------------------------------------
def _place(x):
    """Return an int on some paths, and a tensor on others."""
    return x.argmax() if x[0] > 1 else 3


def sums_in_place(x):
    n, sums, count = _place(x), torch.zeros(2, dtype=torch.long), 1
    sums[0] += n
    sums[1] -= n * 2
    count += n
    return sums, count + sums


def ends_of_a_segment(x):
    """What transformers' Whisper does with the last timestamp, if there is one."""

    def end(y):
        last = int(y[1] * 5)
        if y.sum() > 3 and y[0] != 2:
            last = (y[0] - 1).to(torch.float64)
        return {"start": y[0], "end": y[0].double() + last * 0.02}

    return end(x), end(x + 1)


def types_of_results(x):
    n, y = 2.5, x
    if x[0] > 1:
        n, y = x.half().sum(), x + 1
    return n * torch.ones(2, dtype=torch.float64), n * torch.ones(2, dtype=torch.float16), y - n


def compared(x):
    n = _place(x)
    near, x = n >= 2, x + 10 if n == 3 else x
    return x if near and n < 12 else x * n


def of_three_paths(x):
    n = _place(x)
    if x[0] > 4:
        n = 7
    if x[0] > 6:
        n = x.argmin()
    return n + x, 2 - n + x[0], -n * x


def in_loops(x):
    total = torch.zeros((), dtype=torch.long)
    for _ in range(4):
        n = _place(x)
        total += n
        x = x + n * 0.1
    while x.abs().sum() < 60:
        n = _place(x - 3)
        x, total = x * 1.5 + n, total + n
    return x, total


@pytest.mark.parametrize(
    "program", [sums_in_place, ends_of_a_segment, types_of_results, compared, of_three_paths, in_loops], ids=lambda f: f.__name__
)
def test_arithmetic_is_no_fork(program, monkeypatch):
    """The two are computed where they are, and what that gives is one value behind."""

    def split(self, fork):
        raise AssertionError(fork)

    check(program, NUMBERS, paths=2)
    monkeypatch.setattr(Decisions, "split", split)
    stage(program, NUMBERS[0])


def a_type_that_cannot_be_kept(x):
    n, whole = 2.5, torch.zeros(2, dtype=torch.long)
    if x[0] > 1:
        n = x.argmax()
    whole += n
    return whole


def such_a_type_is_caught(x):
    try:
        return a_type_that_cannot_be_kept(x)
    except RuntimeError:
        return x


def results_of_other_types(x):
    n = _place(x)
    return n + 1, torch.arange(3) * (n if x[0] < 4 else 2.5), isinstance(n * 2, int)


def changed_before_it_is_used(x):
    t, n = x * 2, 3
    if x[0] > 1:
        n = t[0]
    y = n + x
    t[0] = 100.0
    return n + x, y


def changed_in_place_itself(x):
    n = x.argmax()
    other = n
    if x[0] < 1:
        n = 3
    n += 1
    return n + x, other


def divided(x):
    n = 0
    if x[0] > 1:
        n = x.sum()
    try:
        return x / n, 1 / n
    except ZeroDivisionError:
        return x, -1


def called_by_name(x):
    n, sums = _place(x), torch.zeros(2)
    operator.iadd(sums, n)
    return torch.add(x, n), x.mul(n), sum([n, n]), sums, n // 2, n**2, abs(n), n % 2


class Wrapped:
    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        return Wrapped(self.x + other)

    def __radd__(self, other):
        return Wrapped(other - self.x)


def operands_of_other_classes(x):
    n = _place(x)
    return (Wrapped(x) + n).x, (n + Wrapped(x)).x, np.float64(2) + n, len([1, 2] * n)


def changed_by_a_loop(x):
    n, i = _place(x), 0
    while i < x.abs().sum():
        i, x = i + 1, x - n * 0.01
        if i > 3:
            n = 1
    return x, n


OTHERS = [results_of_other_types, changed_before_it_is_used, changed_in_place_itself, divided, called_by_name, operands_of_other_classes]


@pytest.mark.parametrize(
    "program", [a_type_that_cannot_be_kept, such_a_type_is_caught, changed_by_a_loop, *OTHERS], ids=lambda f: f.__name__
)
def test_other_uses_are_right(program):
    check(program, NUMBERS, paths=2)
