# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors that share memory, where an index or a loop is known only at run time: staged graphs against eager."""

from __future__ import annotations

import pytest
import torch
from differential import check

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

BASE = torch.tensor([[1.0, 5.0, 2.0], [3.0, -1.0, 9.0], [0.0, 0.0, 4.0]])
X = [(BASE.roll(k, 0).roll(k // 3, 1) * s,) for k, s in enumerate((1, 0.5, 0.1, 2, -1))]


def test_a_row_at_a_run_time_index_is_a_view():
    def f(x):
        x = x.clone()
        i = int(x[:, 0].argmax())
        row, column = x[i], x[:, x[0].argmin()]
        row.mul_(2)
        x[i][1] = 7.0
        column[1:] += 100
        seen = row.clone()
        x += 1
        x[i, i].fill_(-3.0)
        return x, row, column, seen

    check(f, X)


def test_a_view_at_a_run_time_index_in_branches_and_loops():
    def f(x):
        x = x.clone()
        row = x[x[:, 0].argmax()]
        n = 0
        if row.sum() > 4:
            row += 1
        else:
            x[0] -= 1
        while x.max() > 1 and n < 8:
            best = x[int(x.max(1).values.argmax())]
            best *= 0.5
            n += 1
        return x, row, n

    check(f, X, paths=3)


def test_indices_that_are_tensors_of_rank_0():
    def f(x):
        x = x.clone()
        i, j = x[:, 0].argmax(), x[:, 0].argmin()
        k = int(x[0].argmax())
        y = x[i, k], x[..., j], x[None, i], x[i - 1, :2], x[1:, j.int()]
        x[i], x[j] = x[j], x[i]
        x[i, :2] = torch.ones(1, 2)
        x[j] += 1
        return x, y

    check(f, X)


def test_an_index_out_of_range_in_a_tensor_of_rank_0():
    check(lambda x: x[x[0, 0].long()], X, paths=2)


@pytest.mark.parametrize("at", [[0, 2], torch.tensor([0, 2]), True])
def test_an_index_that_mixes_lists_and_run_time_numbers_is_refused(at):
    def f(x):
        x = x.clone()
        x[at, x[0].argmax()] = 8.0
        return x

    with pytest.raises(UnsupportedError, match="mixes"):
        stage(f, X[0])


def test_in_place_changes_in_a_loop_show_in_all_aliases():
    def f(x):
        x = x.clone()
        same, row, turned = x, x[0], x.t()
        while row.sum() < 20 and x.max() < 90:
            same += 1
            turned[0, 1] -= 0.5
        return x, same, row, turned

    check(f, X, paths=3)


def test_in_place_changes_after_a_peeled_iteration():
    def f(x):
        y, last = x.clone(), None
        while y.sum() < 40:
            if last is None:
                y = y * 1.5
                last = y
            y += 1
        return y, last

    check(f, X, paths=2)
