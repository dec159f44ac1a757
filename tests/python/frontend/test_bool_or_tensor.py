# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A bool on some paths and a tensor of one on others: its truth is one test, what else is asked of it parts the paths."""

from __future__ import annotations

import pytest
import torch
from differential import check

X = [(torch.tensor([v, 1.0]),) for v in (-3.0, -1.0, 0.5, 2.0, 5.0, 9.0)]


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
