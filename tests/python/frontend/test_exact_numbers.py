# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers at their limits: exactly as in Python, or refused; a number that leaves 64 bits is an error at run time."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.interpreter import interpret

LARGE = 2**53 + 1
INTS = [(torch.tensor(v),) for v in (3, 0, -7, LARGE, -LARGE, 2**62 + 1, 2**63 - 1, -(2**63))]
FLOATS = [(torch.tensor(v, dtype=torch.float64),) for v in (0.5, -2.5, 1.5, 2.0**53, math.inf, -math.inf, math.nan)]


def test_ints_beyond_the_precision_of_floats():
    def f(n):
        k = n.item()
        a = float(k)
        return k == a, k < a, k >= a, k > 2.0**53, k != 2.0**63, k / 3, k / (k + 1 if k < 5 else 7), k * 1.0, k + 0.5, k // 7.0, k % 7.0

    check(f, INTS, paths=2)


def test_a_branch_that_only_an_exact_comparison_takes():
    def f(n, x):
        if n.item() > x.item():
            return n + 1
        return n - 1

    check(f, [(torch.tensor(n), torch.tensor(x, dtype=torch.float64)) for n in (LARGE, LARGE - 1) for x in (2.0**53, 2.0**54)], paths=2)


def test_a_negative_power_of_an_int():
    def f(n):
        try:
            return n.item() ** -2
        except ZeroDivisionError:
            return "zero"

    check(f, INTS[:5], paths=2)


@pytest.mark.parametrize("convert", [int, round, math.floor, math.ceil, math.trunc])
def test_what_has_no_int(convert):
    def f(x):
        try:
            return convert(x.item())
        except OverflowError:
            return "infinite"
        except ValueError:
            return "not a number"

    check(f, FLOATS, paths=3)


def test_a_float_whose_int_has_more_than_64_bits_does_not_go_to_the_handler():
    def f(x):
        try:
            return int(x.item())
        except OverflowError:
            return "infinite"

    graph = stage(f, (torch.tensor(1e30),))
    with pytest.raises(OverflowError, match="int64"):
        interpret(graph, [torch.tensor(1e30)])
    assert interpret(graph, [torch.tensor(math.inf)])[0] == "infinite"


def test_sine_and_cosine_of_infinity():
    def f(x):
        try:
            return math.sin(x.item()) + math.cos(x.item())
        except ValueError:
            return None

    check(f, FLOATS, paths=2)


def test_an_int_that_leaves_64_bits_is_an_error():
    def f(n):
        return n.item() * n.item()

    check(f, INTS[:3])
    with pytest.raises(OverflowError, match="int64"):
        interpret(stage(f, INTS[0]), [torch.tensor(2**40)])


def test_attributes_of_numbers():
    def f(n):
        k, b = n.item(), (n > 0).item()
        return k.real, k.imag, k.numerator, k.denominator, k.conjugate(), +b, b.real, b + b, float(k).real, float(k).imag

    check(f, INTS)


@pytest.mark.parametrize("method", ["bit_length", "as_integer_ratio", "to_bytes"])
def test_methods_of_numbers_are_refused(method):
    def f(n):
        return getattr(n.item(), method)()

    with pytest.raises(UnsupportedError, match=method):
        stage(f, INTS[0])


MASKS = [0, 1, 5, 6, 0b110110, 255, 2**40 - 1, 2**62, -1, -2, -6, -256]


def test_bits_of_a_number_and_a_mask():
    def f(n):
        k = n.item()
        masked = [(k & m, m & k, k | m, m | k, k ^ m, m ^ k) for m in MASKS]
        return masked, ~k, [(k >> m) for m in (0, 1, 7, 62, 63, 200)], [(k << m) for m in (0, 1, 5)]

    check(f, [(torch.tensor(v),) for v in (0, 1, -1, 37, -38, 2**40 + 3, -(2**40) - 5, 2**57 - 1, -(2**57))])


def test_shifts_by_a_number():
    def f(n):
        k = n.item()
        return 1 << k, -37 << k, 1000 >> k, -1000 >> k, (0b1011001 >> k) & 1

    def caught(n):
        try:
            return 8 >> n.item()
        except ValueError as error:
            return str(error)

    places = [(torch.tensor(v),) for v in (0, 1, 3, 11, 50, -1)]
    check(f, places)
    check(caught, places)


def test_bits_of_truths():
    def f(n):
        b = (n > 0).item()
        return b & 1, 3 | b, b ^ 1, b << 2, 5 >> b, b & True, ~b

    check(f, INTS)


def test_whether_a_float_is_whole():
    check(lambda x: (x.item().is_integer(), (x * 2).item().is_integer()), [(torch.tensor(v),) for v in (0.5, 2.0, -3.5, 1e300, torch.inf)])


@pytest.mark.parametrize("op", [lambda k: k & (k + 2), lambda k: (k / 2) ^ 1], ids=["of two numbers", "of a float"])
def test_bit_operations_that_are_refused(op):
    def f(n):
        return op(n.item())

    with pytest.raises(UnsupportedError, match="bit operation"):
        stage(f, INTS[0])


def test_a_number_among_keys_and_values():
    names = {0: "a", 1: "b", 2: 2}

    def f(n):
        k = n.item()
        here = {"a": k, "b": 2, "c": n}
        return (
            k in names.keys(),
            k not in OrderedDict(names).keys(),
            2 in {"a": k, "b": 3}.values(),
            k in {"p": 1, "q": 3}.values(),
            2 in here.values(),
        )

    check(f, [(torch.tensor(v),) for v in (0, 1, 2, 3, -1)])
