# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exceptions that leave the network from within a ``try`` or ``with``: neither runs nor trips of their own for the paths that they end."""

from __future__ import annotations

import contextlib

import pytest
import torch
from differential import check
from test_print import check as check_prints

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

TABLE = torch.arange(12.0).reshape(4, 3)
#: Rows of positions, of which some lie outside of the table; a row of three is a path of its own through each of them.
X = [
    (torch.tensor(rows),)
    for rows in ([0.0, 1.0, 3.0], [2.0, 2.0, 2.0], [1.0, 4.0, 0.0], [-4.0, -5.0, 1.0], [9.0, 0.0, 0.0], [0.0, 0.0, -9.0])
]


def rows(x):
    """Sum rows of the table in a loop that is rolled."""
    y, k = torch.zeros(3), x * 1
    while k.max() > -1:
        at = int(k.argmax())
        y = y + TABLE[x[at].long()] * (at + 1)
        k = torch.where(torch.arange(3) == at, torch.full((3,), -7.0), k)
    return y


class Model(torch.nn.Module):
    def __init__(self, around):
        super().__init__()
        self.flag, self.around = 0, around

    def forward(self, x):
        return self.around(self, x)


def restored(self, x):
    before, self.flag = self.flag, 1
    try:
        return rows(x) + self.flag
    finally:
        self.flag = before


def restored_if_set(self, x):
    flag = None if x.dim() else 0
    if flag is not None:
        before = self.flag
    try:
        return rows(x)
    finally:
        if flag is not None:
            self.flag = before


def twice(self, x):
    try:
        try:
            self.flag = 2
            return rows(x) * self.flag
        finally:
            self.flag -= 1
    finally:
        self.flag -= 1


def of_another_class(self, x):
    try:
        return rows(x)
    except (KeyError, ZeroDivisionError):
        return x


class Restore:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.before, self.model.flag = self.model.flag, 3

    def __exit__(self, kind, error, trace):
        self.model.flag = self.before


def with_a_manager(self, x):
    with Restore(self):
        return rows(x) + self.flag


def with_a_mode(self, x):
    try:
        with torch.no_grad():
            return rows(x)
    finally:
        self.flag = int(torch.is_grad_enabled())


@contextlib.contextmanager
def restoring(self, flag):
    before, self.flag = self.flag, flag
    try:
        yield self
    finally:
        self.flag = before


@contextlib.contextmanager
def restoring_twice(self):
    with restoring(self, 2) as same:
        try:
            with Restore(same):
                yield
        except KeyError:
            self.flag = 9


def with_a_generator(self, x):
    with restoring(self, 3):
        return rows(x) + self.flag


def with_a_generator_in_a_generator(self, x):
    with restoring_twice(self), restoring(self, 5):
        return rows(x) + self.flag


@pytest.mark.parametrize(
    "around",
    [
        *(restored, restored_if_set, twice, of_another_class, with_a_manager, with_a_mode),
        *(with_a_generator, with_a_generator_in_a_generator),
    ],
)
def test_a_check_in_a_loop_is_part_of_the_loop(around):
    graph = check(Model(around), X, paths=3, max_paths=1)
    assert len(graph.blocks) == len(stage(rows, X[0]).blocks)


class Other(Exception):
    pass


def variable_that_is_not_set(x):
    try:
        y = rows(x)
    finally:
        y.sum()
    return y


def another_error(x):
    done = False
    try:
        y = rows(x)
        done = True
    finally:
        if not done:
            raise Other("stopped")
    return y


def another_error_on_one_path(x):
    done = [False]
    try:
        y = rows(x)
        done[0] = True
    finally:
        if not done[0] and x[0] > 5:
            raise Other("stopped")
    return y


class Translate:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            raise Other(kind.__name__)


def translated(x):
    with Translate():
        return rows(x)


def translated_by_a_generator(x):
    @contextlib.contextmanager
    def translating():
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                raise Other("stopped")

    with translating():
        return rows(x)


def remainder(x):
    n, total = 5, 0
    try:
        while n > 0:
            total = total + 12 % int(x[n % 3])
            n = n - 1 - int(x[0] > 5)
    finally:
        TABLE.sum()
    return total


def raised_in_a_loop(x):
    y = x
    try:
        while y.sum() < 50:
            if y.min() < -3:
                raise ValueError("too small")
            y = y * 2 + 1
    finally:
        y.clone()
    return y


def raised_where_a_function_returns(x):
    def first(v):
        for k in range(3):
            if v[k] > 3:
                raise KeyError("large")
            if v[k] > 1:
                return k
        return -1

    try:
        return first(x) + first(x + 1)
    finally:
        x.sum()


def sides_of_a_choice(x):
    def refuse(v):
        raise Other("no")

    try:
        return [torch.neg, torch.abs, refuse, torch.exp][int(x[0].clamp(0, 3))](x)
    finally:
        x.sum()


@pytest.mark.parametrize(
    "f",
    [
        *(variable_that_is_not_set, another_error, another_error_on_one_path, translated, remainder, raised_in_a_loop),
        translated_by_a_generator,
        *(raised_where_a_function_returns, sides_of_a_choice),
    ],
)
def test_what_comes_out_is_what_comes_out_of_eager(f):
    check(f, X, paths=2, max_paths=1)


def test_a_finally_that_sets_a_variable():
    def f(x):
        try:
            y = TABLE[int(x[0])]
        finally:
            x = x + 1
        return x, y

    check(f, X, paths=2)


def test_a_handler_that_ends_it_sees_it():
    def f(x):
        try:
            try:
                y = TABLE[int(x[0])]
            finally:
                x = x + 1
        except IndexError:
            return x
        return y

    check(f, X, paths=2)


def test_a_generator_that_waits():
    @contextlib.contextmanager
    def around(log):
        try:
            yield
        finally:
            log.append(1)

    def f(x):
        log = []
        with around(log):
            y = TABLE[int(x[0])]
            if x.sum() > 8:
                raise Other("large")
        return y, log

    check(f, X, paths=2)


def test_a_generator_that_waits_elsewhere():
    """What is around the place where it waits sees no exception, though a manager within it was entered by a ``with``."""
    log = []

    @contextlib.contextmanager
    def around():
        try:
            yield
        finally:
            log.append(1)

    def numbers(x):
        with around():
            yield x
            yield x + 1

    def f(x):
        waiting = numbers(x)
        try:
            y = TABLE[next(waiting)[0].long()]
        except IndexError:
            y = TABLE[len(log)]
        return y, list(waiting), len(log)

    def g(x):
        log.clear()
        return f(x)

    check(g, X, paths=2)


def test_a_manager_that_ends_it():
    @contextlib.contextmanager
    def suppressing():
        with contextlib.nullcontext():
            try:
                yield
            except IndexError:
                pass

    def f(x):
        y = x
        with suppressing():
            y = TABLE[int(x[0])]
        return y

    check(f, X, paths=2)


def test_what_is_printed_on_the_way(capsys):
    def f(x):
        try:
            if x[0] > 1:
                raise Other("large")
            print("within")
        finally:
            print("on the way", x[1].item())
        return x

    def g(x):
        try:
            return f(x)
        except Other:
            print("caught")
            return x * 2

    assert len(check_prints(g, capsys)) > 2


class Mask:
    """Raises an exception of its own for any that passes."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            raise Other("translated")


def a_list_that_grows_on_one_side(x):
    try:
        with Mask():
            found = [x]
            if x.sum() > 4:
                found.append(x)
            if x.sum() > 8:
                return found[-1]
    except Other:
        return x * 100
    return found[-1] * len(found)


def test_a_manager_that_raises_meets_no_exception_of_staging():
    check(a_list_that_grows_on_one_side, X, paths=3)


def an_index_that_is_translated(x):
    try:
        with Mask():
            y = TABLE[int(x[0])]
    except Other:
        return x
    return y


def test_an_error_that_a_manager_translates_is_refused():
    with pytest.raises(UnsupportedError, match="passes a `finally` or `with` that raises Other"):
        stage(an_index_that_is_translated, X[0])


def test_an_error_on_the_way_that_may_be_caught_is_refused():
    def f(x):
        done = False
        try:
            try:
                y = rows(x)
                done = True
            finally:
                if not done:
                    raise Other("stopped")
        except Other:
            return x
        return y

    with pytest.raises(UnsupportedError, match="passes a `finally` or `with` that raises Other"):
        stage(f, X[0])
