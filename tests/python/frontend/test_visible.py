# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is seen of compiled objects: it is equal as long as they do not change, and it never says so of one that has changed."""

from __future__ import annotations

import collections
import copyreg
import itertools
import random
from typing import Generic, TypeVar

import numpy as np
import pytest
import torch
from differential import check

from dycl_tvm.frontend.trace.heap.visible import INVISIBLE, Seen, has_hidden

T = TypeVar("T")


def _counting():
    n = 10.5
    while True:
        n = n + 1
        yield n


def _twice(generator):
    next(generator), next(generator)


#: How an object is made, and changed.
OBJECTS = {
    "torch.Generator": (torch.Generator, lambda x: torch.rand(1, generator=x)),
    "random.Random": (lambda: random.Random(0), lambda x: x.random()),
    "RandomState": (lambda: np.random.RandomState(0), lambda x: x.rand()),
    "numpy.Generator": (lambda: np.random.default_rng(0), lambda x: x.random()),
    "iterator": (lambda: iter([torch.ones(2)]), next),
    "changed item": (lambda: itertools.cycle([torch.ones(2)]), lambda x: x.__reduce__()[1][0].__reduce__()[1][0][0].zero_()),
    "zip of nested": (lambda: zip([[[[[[[1]]]]]]], [2]), next),
    "generator whose numbers take each other's addresses": (_counting, _twice),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_state_is_equal_until_it_changes(name):
    make, change = OBJECTS[name]
    x = make()
    if name.startswith("generator"):
        next(x)
    before = Seen(x)
    assert Seen(x) == before
    change(x)
    assert Seen(x) != before


class Anew(itertools.count):
    """Gives an object that is made by the question."""

    def __reduce__(self):
        return (Anew, (collections.UserList(),))


class Cyclic(itertools.count):
    """Gives lists that hold each other."""

    def __reduce__(self):
        found = [[] for _ in range(20)]
        for one in found:
            one += found
        return (Cyclic, (found,))


def test_a_state_that_differs_from_itself_says_nothing():
    assert Seen(Anew()).fingerprint is INVISIBLE
    assert Seen(copyreg).fingerprint is INVISIBLE
    assert Seen(Cyclic()) == Seen(Cyclic())  # in time that does not grow with the ways through them


GENERATOR, LARGE = torch.Generator(), torch.zeros(1 << 17)


class Holder(itertools.count):
    def __reduce__(self):
        return (Holder, (LARGE,))


def test_a_large_tensor_says_nothing():
    assert Seen(Holder()).fingerprint is INVISIBLE


def test_a_generator_that_nobody_touches_has_not_changed():
    def f(x):
        y = sorted([3, 1], key=lambda n: -n if isinstance(GENERATOR, torch.Generator) else n)
        return x * y[0] if x.sum() > 0 else x

    check(f, [(torch.ones(2),), (-torch.ones(2),)], paths=2)


def test_a_class_that_is_compiled_in_some_versions_of_python_hides_nothing() -> None:
    """``typing.Generic`` is, since Python 3.12; what has state of its own beside it hides that."""

    class Box(Generic[T]):
        pass

    class Dice(Generic[T], random.Random):
        pass

    assert not has_hidden(Box) and has_hidden(Dice)
