# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that a hunt by hand found to be staged wrongly, made small."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
import torch
from differential import check

from dycl_tvm.errors import UnsupportedError

X = [(torch.tensor([[a, b, 0.3]]),) for a in (-2.0, 0.4, 3.0, 0.0) for b in (-1.0, 0.0, 5.0)]


@dataclass
class Gate:
    open: bool
    n: int


class Default(dict):  # type: ignore[type-arg]
    def __missing__(self, key: int) -> str:
        return "none"


class Half(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: int) -> str:
        return str(super().__getitem__(key // 2))


class Plain:
    def __init__(self, v: int) -> None:
        self.v = v

    def __eq__(self, other: object) -> bool:
        return bool(self.v == other.v)  # type: ignore[attr-defined]


# -- patterns of True, False and None ask `is` ------------------------------------------------------------------------------
def true_alone(x):
    match bool(x.sum() > 0):
        case True:
            return 1
        case False:
            return 2


def true_in_a_tuple_of_alternatives(x):
    match (bool(x[0, 0] > 0), bool(x[0, 1] > 0)):
        case (True, True) | (False, False):
            return "same"
        case (True, _):
            return "first"
    return "second"


def true_in_attributes_and_items(x):
    match Gate(bool(x.sum() > 0), 2), {"high": bool(x.max() > 1)}:
        case Gate(open=True, n=2), {"high": False}:
            return "a"
        case Gate(open=False), {"high": True}:
            return "b"
    return "c"


def true_is_not_one(x):
    match x[0].argmax().item():
        case True | None:
            return "never"
        case 1:
            return "one"
    return "other"


def none_on_one_path(x):
    v = None if x.sum() > 0 else x
    match (v, x):
        case (None, None):
            return 0
        case (None, t):
            return t + 1
        case (t, _):
            return t * 2


# -- items of a dict at a number known only at run time -----------------------------------------------------------------------
def float_keys(x):
    return {0.0: "a", 0.5: "b", 1: "c"}[x[0].argmax().item() / 2]


def missing_keys(x):
    k = x[0].argmax().item()
    return Counter({0: 5, 1: 6})[k], Default({0: "zero"})[k]


def tensors_are_keys_by_identity(x):
    try:
        return {0: "a", 1: "b", 2: "c"}[x[0].argmax()]
    except KeyError:
        return "none"


def the_key_in_the_error(x):
    try:
        return {0: 4.0, 1: 6.0}[x[0].argmax().item()]
    except KeyError as error:
        return -float(error.args[0])


# -- errors of numbers that a handler sees ------------------------------------------------------------------------------------
def words_of_divisions_by_zero(x):
    v, said = x[0, 0].round().item(), []
    for op in (lambda: 1 / v, lambda: 1 // v, lambda: 1 % v, lambda: 3 // int(v), lambda: 3 % int(v), lambda: 3 / int(v), lambda: v**-1):
        try:
            said.append(op())
        except ZeroDivisionError as error:
            said.append(str(error))
            break
    return said


def negative_power_of_zero(x):
    try:
        return x[0, 1].item() ** -2
    except ZeroDivisionError as error:
        return str(error)


RIGHT = [
    true_alone,
    true_in_a_tuple_of_alternatives,
    true_in_attributes_and_items,
    true_is_not_one,
    none_on_one_path,
    float_keys,
    missing_keys,
    the_key_in_the_error,
    words_of_divisions_by_zero,
    negative_power_of_zero,
]


@pytest.mark.parametrize("program", RIGHT, ids=lambda f: f.__name__)
def test_as_in_eager(program):
    check(program, X, paths=2)


def test_a_tensor_is_a_key_by_identity():
    check(tensors_are_keys_by_identity, X)


def an_object_that_compares_itself(x):
    match Plain(1):
        case None:
            return 0
    return x.sum() > 0


def a_class_within_a_tuple(x):
    match (x[0].argmax().item(), 1):
        case (int(n), 1):
            return n + 1
    return "no"


def a_key_that_is_inserted(x):
    return defaultdict(int)[x[0].argmax().item()]


def a_lookup_of_the_users(x):
    return Half({0: "a", 1: "b"})[x[0].argmax().item()]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (an_object_that_compares_itself, "compares itself"),
        (a_class_within_a_tuple, "class pattern"),
        (a_key_that_is_inserted, "hashable"),
        (a_lookup_of_the_users, "hashable"),
    ],
    ids=lambda f: getattr(f, "__name__", None),
)
def test_refused(program, message):
    with pytest.raises(UnsupportedError, match=message):
        check(program, X)


def test_objects_of_a_result_by_data_or_by_decision():
    """`min` is computed by data, `sorted` decides: one object in eager is two values of the graph, and each result is its own anyway."""

    def f(x):
        parts = [x[0, 0], x[0, 1]]
        least = min(parts)
        return least, sorted(parts)[0]

    check(f, X, paths=2)


def test_a_power_with_a_complex_result_ends_the_call():
    def f(x):
        return x.sum().item() ** 0.5

    graph = check(f, [args for args in X if args[0].sum() >= 0])
    with pytest.raises(ValueError, match="complex"):
        graph.interpret()(torch.full((1, 3), -1.0))
