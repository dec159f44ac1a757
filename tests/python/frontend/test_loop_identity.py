# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which list, dict or tuple a name has after a loop whose trip count is known only at run time: as in eager, or refused."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

BASE = torch.arange(6.0).reshape(2, 3)
X = [(BASE,), (BASE - 9,), (BASE * 0.1,), (BASE - 3,)]


def another(x):
    a, b, k = [x], [x + 1], x.sum()
    while k < 10:
        a = b
        k = k + 5
    return a is b, id(a) == id(b)


def asked_in_the_body(x):
    a, b, k, n = [x], [x + 1], x.sum(), 0
    while k < 10:
        if a is b:
            n = n + 1
        a = b
        k = k + 5
    return n


def changed_afterwards(x):
    a, b, k = [x], [x], x.sum()
    while k < 10:
        a = b
        k = k + 5
    a[0] = a[0] + 1
    return b[0]


def a_new_dict(x):
    d = {"k": x}
    e, k = d, x.sum()
    while k < 10:
        d = {**d}
        d["k"] = d["k"] + 1
        k = k + 5
    return d is e, e["k"], d["k"]


def an_equal_dict(x):
    d = {"k": x}
    e, k = d, x.sum()
    while k < 10:
        d = {**d}
        k = k + 5
    return d is e


def a_tuple_of_others(x):
    t, u, k = (x, 1), (x + 1, 1), x.sum()
    s = t
    while k < 10:
        t = u
        k = k + 5
    return t is u, t is s


def a_new_tuple(x):
    t, k = (x, 1), x.sum()
    u = t
    while k < 10:
        t = (t[0] + 1, 1)
        k = k + 5
    return t is u


def made_by_a_library(x):
    t, k = (1, 2), x.sum()
    u = t
    while k < 10:
        t = tuple(list(t))
        k = k + 5
    return t is u


def in_another_list(x):
    a, k = {"k": [x]}, x.sum()
    b = a["k"]
    while k < 10:
        a = {"k": [a["k"][0] + 1]}
        k = k + 5
    return a["k"] is b


@pytest.mark.parametrize(
    "program",
    [
        *(another, asked_in_the_body, changed_afterwards, a_new_dict, an_equal_dict, a_tuple_of_others, a_new_tuple, made_by_a_library),
        in_another_list,
    ],
    ids=lambda p: p.__name__,
)
def test_as_in_eager(program):
    check(program, X)


def swapped(x):
    a, b, k = [x], [x + 1], x.sum()
    s = b
    while k < 10:
        a, b = b, a
        k = k + 5
    return a is s


def both_new(x):
    a, k = [x], x.sum()
    b = a
    while k < 10:
        a = [a[0] + 1]
        b = a
        k = k + 5
    return a is b


def kept_in_a_list(x):
    a, k = [x], x.sum()
    o = [a]
    while k < 10:
        a = [a[0] + 1]
        o[0] = a
        k = k + 5
    return a is o[0]


@pytest.mark.parametrize("program", [swapped, both_new, kept_in_a_list], ids=lambda p: p.__name__)
def test_what_cannot_be_told_is_refused(program):
    with pytest.raises(UnsupportedError, match="one object depends on the path"):
        stage(program, X[0])


def test_a_tensor_turned_in_place_after_a_path_that_left():
    def leaves(x):
        y = x + 1
        for _ in range(3):
            if y.sum() > 10:
                break
            y.t_()
            if y[0, 0] > 2:
                continue
            y = y + 2
        return y

    def turned_at_the_end(x):
        y = x + 1
        while y.sum() < 20:
            y = y + 1
            if y.sum() > 10:
                break
        y.t_()
        return y * 2

    for program in (leaves, turned_at_the_end):
        check(program, X)
