# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Paths that cannot share their continuation, staged in as few runs of the program as that takes."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import PathExplosionError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]
#: Texts, each of which leaves a decoder after another number of steps.
STEPS = [(torch.tensor([[0.1, k + 0.5]]),) for k in range(9)]


def sites(model, inputs, **options):
    """Check a model that has to be staged in one run; return the number of its return sites."""
    return len(check(model, inputs, max_paths=1, **options).return_sites())


def test_each_length_of_a_decoder_is_a_return_site_found_in_one_run():
    def f(x):
        for _ in range(6):
            y = x[:, -1:] - 1
            if y.item() < 0:
                break
            x = torch.cat((x, y), dim=1)
        return x

    assert sites(f, STEPS, paths=7) == 7


def test_a_generator_expression_is_made_with_the_iterator_that_it_goes_over():
    def f(x):
        y = x
        for _ in range(3):
            a, b = (v * 2 for v in (y, y + 1))
            y = a + b
            if y.sum() > 3:
                break
        return y

    check(f, X, max_paths=1)


def test_the_last_lengths_stay_together_if_they_are_equal():
    def f(x):
        length = None
        for k in range(6):
            x = torch.cat((x, x[:, -1:] - 1), dim=1)
            length = k
            if x[0, -1] < 0:
                break
        return {"x": x, "length": [length]}

    graph = check(f, STEPS, paths=7, max_paths=1)
    assert len(graph.return_sites()) == 6


def test_numbers_and_containers_are_what_they_are_on_each_path():
    class Net(nn.Module):
        def forward(self, x):
            best, found, note = None, (), "none"
            for k in range(4):
                x = torch.tanh(x * 2)
                if x.max() > 0.9:
                    best, found, note = k, (x, [k, x[:, : k % 2 + 1]]), f"at {k}"
                    break
            return best, found, {"x": x, "note": note}

    assert sites(Net(), X, paths=2) == 5


def test_both_kinds_of_an_if_are_returned_in_one_run():
    def f(x):
        half = x * 0.5
        if x.sum() > 0:
            y, n = x.reshape(-1), x[0, 0].item()
        else:
            y, n = half, half[0, 1].item()
        return y, n, half

    assert sites(f, X, paths=2) == 2


def test_the_function_that_joins_may_be_called_by_the_one_that_returns():
    def head(x):
        if x.sum() > 0:
            return x.reshape(-1), 1
        return x, 2

    class Net(nn.Module):
        def forward(self, x):
            y = head(x)
            return {"y": y[0] if isinstance(y, int) else y}

    check(Net(), X, paths=2)


def test_an_operation_behind_the_join_belongs_to_each_path():
    def f(x):
        y = x
        if x.sum() > 0:
            y = x.reshape(-1)
        z = x * 2
        return y, z

    assert len(check(f, X, paths=2).return_sites()) == 2


def test_a_change_behind_the_join_shows_in_what_is_returned():
    def f(x):
        log, other = [x], [x]
        if x.sum() > 0:
            y = log
        else:
            y = (x,)
        log.append("behind")
        return y, log, other

    def g(x):
        a, b = torch.zeros(1, 2), x * 2
        if x.sum() > 0:
            y = a
        else:
            y = b.reshape(-1)
        a.copy_(b)  # no operation is recorded: a holds what b holds
        return y

    check(f, X, paths=2)
    check(g, X, paths=2)


def test_a_view_of_what_both_sides_changed_is_read_on_each_path():
    def f(x):
        base = x * 1.0
        row = base[0]
        if x.sum() > 0:
            base[0, 0] = 7.0
            y = None
        else:
            base[0, 1] = 5.0
            y = x
        return y, row

    def g(x):
        base = x * 1.0
        if x.sum() > 0:
            base += 1
            y = None
        else:
            base -= 1
            y = x
        return y, base, [base]

    check(f, X, paths=2)
    assert sites(g, X, paths=2) == 2


def test_a_variable_that_one_path_does_not_set_is_still_an_error_there():
    def f(x):
        if x.sum() > 0:
            y = x
        return y

    check(f, X, paths=2)


def test_what_is_left_behind_on_the_model_is_that_of_the_path():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.last = torch.zeros(1, 2)

        def forward(self, x):
            if x.sum() > 0:
                y, self.calls, self.last = x.reshape(-1), self.calls + 2, x
            else:
                y, self.calls = x, self.calls + 1
            return y, self.calls

    graph = check(Net(), X, paths=2)
    assert [v.name for v in graph.state] == ["calls", "last"]


def test_paths_of_one_structure_still_return_together():
    def f(x):
        y = None
        if x.sum() > 0:
            y = x * 2
        elif x[0, 0] > 0:
            y = x * 3
        return y

    assert len(check(f, X, paths=3).return_sites()) <= 3


class Sure(Exception):
    def __init__(self, answer, layer):
        self.answer, self.layer = answer, layer


def leave_by_exception(x):
    """An exit of an early-exit network whose encoder raises."""
    layer = 6
    try:
        for k in range(5):
            x = torch.tanh(x * 1.5)
            if x.max() > 0.95 - 0.1 * k:
                raise Sure((x, [k]), k)
        answer = (x, [layer, "last"])
    except Sure as sure:
        answer, layer = sure.answer, sure.layer
    return answer, layer


def test_an_exception_that_the_program_catches_takes_one_run_each():
    graph = check(leave_by_exception, X, paths=3, max_paths=6)
    assert len(graph.return_sites()) == 6
    with pytest.raises(PathExplosionError, match="forks 5 times"):
        stage(leave_by_exception, X[0], max_paths=5)


def test_an_exception_behind_a_join_or_a_loop_of_its_side():
    def f(x):
        try:
            if x.sum() > 0:
                if x[0, 0] > 0.5:
                    y = x * 2
                else:
                    y = x.reshape(-1)
                for k in range(2):
                    y = y + k
                raise Sure(y, 1)
            y = x - 1
        except Sure as sure:
            y = sure.answer
        return y

    def g(x):
        try:
            if x.sum() > 0:
                z = x * 2
                if x[0, 0] > 0.5:
                    z = z + 1
                raise Sure(z, 1)
            raise ValueError(x)
        except Sure as sure:
            return sure.answer
        except ValueError:
            return -x

    check(f, X, paths=3)
    check(g, X, paths=3)


def test_the_heap_is_that_of_the_side_that_raises():
    class Net(nn.Module):
        def forward(self, x):
            seen = []
            self.note = None
            try:
                for k in range(3):
                    seen.append(k)
                    if x.max() > 2.5 - k:
                        seen.append("left")
                        self.note = k
                        raise KeyError(k)
            except KeyError:
                x = x + len(seen)
            if x.sum() > 1:
                x = x * 2
            return x, seen, self.note

    check(Net(), X, paths=3)


def test_what_a_side_joined_before_it_raised_is_forked_by_its_handler():
    def f(x):
        try:
            if x.sum() > 0:
                if x[0, 0] > 0.5:
                    y = x * 2
                else:
                    y = x.reshape(-1)
                raise Sure(y, 1)
            y = x - 1
        except Sure as sure:
            y = sure.answer + 1
        return y * 2

    check(f, X, paths=3)


def test_each_side_may_raise_and_more_than_once():
    def f(x):
        try:
            if x.sum() > 0:
                y = x * 2
            else:
                raise Sure(x - 1, 1)
        except Sure as sure:
            y = sure.answer
        try:
            if y.max() > 2.5:
                raise Sure(y.reshape(-1), 2)
            y = y + 1
        except Sure as sure:
            y = sure.answer * 3
        return y + 1

    check(f, X, paths=3)


def test_a_side_that_raises_while_another_waits():
    def f(x):
        try:
            if x.sum() > 0:
                if x[0, 0] > 0.5:
                    raise Sure(x, 1)
                y = x * 2
            else:
                y = x - 1
        except Sure as sure:
            y = sure.answer * 3
        return y + 1

    check(f, X, paths=3, max_paths=4)


def test_one_call_after_the_other_may_raise():
    def attempt(x, bound):
        try:
            if x.max() > bound:
                raise Sure(x * 0.5, bound)
        except Sure as sure:
            return sure.answer
        return x + 1

    def f(x):
        x = attempt(x, 0.3)
        if x[0, 0] > 0:
            x = x * 2
        x = attempt(x, 1.0)
        x = attempt(x, 0.5)
        return x + 1

    check(f, X, paths=4, max_paths=8)


def test_lengths_that_cannot_be_joined_behind_an_unrolled_loop_part_at_once():
    """After two that could not, no run goes on to the end of the program to find out that one more cannot."""

    def f(x):
        n = 0
        while x[0, -1] > 0 and n < 12:
            n += 1
            x = torch.cat((x, x[:, -1:] - 1), dim=1)
            x = torch.cat((x, x[-1:]), dim=0)  # along two dimensions: no tensor at the header can stand for it
        return x.mT @ x

    inputs = [(torch.tensor([[0.1, k + 0.5]]),) for k in range(13)]
    graph = check(f, inputs, paths=13, max_paths=20)
    assert len(graph.return_sites()) == 13


def test_nobody_catches_what_pytorch_checks_of_a_run_time_length():
    def f(x):
        rows = x.T[x[0] > 0]
        return rows.reshape(-1, 1, rows.shape[1] * rows.shape[0]).sum()

    with pytest.raises(RuntimeError, match="size to be found|0 elements"):
        f(torch.full((1, 2), -1.0))
    check(f, X, max_paths=1)


def test_a_tensor_of_another_length_on_each_path_is_changed_in_place_in_one_run():
    def f(x):
        y = x[x > 0]
        if x.sum() > 1:
            y = y[:1]
        z = y - 1
        z /= 2
        return z, y

    check(f, X, max_paths=1)


def test_a_side_that_raises_alone_tells_what_its_test_tells():
    def f(x):
        n, k = int(x[0, 0] * 2), x[0, 1].item()
        try:
            if n < 1:
                raise KeyError(n)
            x = x * 3
        except KeyError:
            x = x + 1
        try:
            x = x * 2 if n < 1 else x - 1
            n = round(k)  # raises for what is no number
        except ValueError:
            x = x * 0
        return n, x

    inputs = [(torch.tensor([[a, b]]),) for a in (-2.0, 0.2, 1.7) for b in (-1.2, 0.4, float("nan"))]
    check(f, inputs, paths=4)
