# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that fuzzing found to be staged wrongly, made small."""

from __future__ import annotations

import torch
from differential import check

X = [(torch.tensor([[a, b, 0.3, -a]]), torch.tensor([[b, a, -0.1, 0.2]])) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


def test_in_place_change_before_paths_part_in_an_iteration():
    """A tensor made and changed in an iteration, before its paths part: what it holds was lost at their join."""

    def f(x, y):
        k = 0
        while True:
            k += 1
            if k > 3 or torch.any(x > 0.8):
                break
            for _ in range(1):
                x = x + 0
                x += y
                if x.mean() > 0:
                    continue
                k = k + 1
        return x, k

    check(f, X, paths=2)


def test_return_while_other_paths_wait_for_the_end_of_the_loop():
    """A plain return in a loop that others left by break: the others were forgotten."""

    def f(x, y):
        k = 0
        while True:
            k += 1
            if k > 3 or x[0, 0] < 0.1:
                break
            if k % 2 == 0:
                return x
            x = x - 0.5
        return y, k

    check(f, X, paths=3)


def test_raise_while_other_paths_wait():
    def f(x, y):
        for v in (0.1, 0.2):
            if x.sum() > v:
                break
        else:
            raise KeyError("none")
        return x * v

    check(f, X, paths=2)


def test_numbers_written_into_tensors_are_the_same_when_the_program_runs_again():
    def f(x, y):
        out = []
        for i in range(3):
            x = x.clone()
            x[:, 2] = i
            if x.sum() > i:
                out.append(x)
        return out

    check(f, X, paths=2)


def test_value_of_two_kinds_written_into_a_tensor():
    def f(x, y):
        n = 2
        pick = lambda v, k=n: v + k if v > 0 else k  # noqa: E731
        x = x.clone()
        x[:, 1] = pick(y[0, 0].item())
        return x

    check(f, X, paths=2)


def test_decision_in_a_comprehension_after_a_rolled_loop_of_a_helper():
    def shrink(a):
        k = 0
        while a.abs().mean() > 0.2 and k < 4:
            a = a * 0.6
            k += 1
        return a, k

    def f(x, y):
        a, k = shrink(x)
        parts = [v for v in (a, y, x) if v.sum() > 0]
        return len(parts), k, sum(parts)

    check(f, X, paths=4)
