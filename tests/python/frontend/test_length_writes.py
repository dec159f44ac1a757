# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Changes of tensors whose length is known only at run time, positions and masks in several dimensions, and lengths that are tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from differential import check, stage
from mask_rows import ROWS

import dycl_tvm
from dycl_tvm.errors import UnsupportedError

#: Two rows that differ, and two that do not.
INPUTS = [(torch.tensor([a, b]),) for a, b in zip(ROWS, ROWS[1:] + ROWS[:1])] + [(torch.tensor([r, r]),) for r in ROWS[1:3]]


def counts(x):
    return (x > 0).long().sum(1)


def changed_in_place(x):
    y = x[x > 0]
    y += 1
    z = y[1:]
    y.mul_(2)
    y[:1] = 7.0
    w = y.clone()
    w.zero_()
    m = x[:, x[0] > 0] * 1
    m[0] = m[1]
    m[1, :] = 3
    m[:, 0:2] -= 1
    return y, z, w, m, y.sum()


def changed_where_a_mask_is(x):
    y, m = x[x > 0], x[:, x[0] > 0] * 1
    y[y > 1] = 0.0
    y[y == 0] = y[y == 0] + 5
    m[m > 1] = -1.0
    m[m < 0] = m[m < 0] * 2
    k, one, rows = x.clone(), x.clone(), torch.zeros(5, 2)
    k[k > 1] = k[k > 1] - 100
    one[x > 1] = x[0, x[0] == 1] * 3
    rows[x[0] > 0] = torch.tensor([[1.0, 2.0]])
    return y, m, k, one, rows


def as_many_as_a_mask_has(x):
    y = torch.zeros(5)
    y[x[0] > 0] = x[1, : counts(x)[1]]
    return y


def as_many_rows_as_a_mask_may_have(x):
    y = torch.zeros(5)
    y[x[0] > 0] = torch.tensor([1.0, 2.0, 3.0])
    return y


def masks_of_another_length(x):
    y, there = x[:, : counts(x)[0]] * 1, x[:, : counts(x)[1]] > 0
    return y[there]


def rows_in_two_dimensions(x):
    i, j = (x > 0).nonzero(as_tuple=True)
    t, out = torch.arange(30.0).reshape(2, 5, 3) * x[0, 0], torch.zeros(2, 5, 3)
    out[i, j] = t[i, j]
    first, turned = torch.zeros(5, 2), torch.zeros(2, 3, 5)
    first[j, i] = x[i, j]
    turned[i, :, j] = t[i, j] * 2
    once = torch.zeros(2, 5, 3)
    once[i, j] = torch.tensor([1.0, 2.0, 3.0])
    once[i, j, 1] = -1.0
    return out, first, turned, once, t[i, j], t[i, :, 1], turned[i, :, j], t[i, 1], t[-1 - i, j - 5]


def rows_in_what_has_such_a_length(x):
    n = counts(x).max()
    there = torch.arange(n) < counts(x).unsqueeze(-1)
    i, j = there.nonzero(as_tuple=True)
    k, l = (x > 0).nonzero(as_tuple=True)
    y = x.new_zeros(2, n, 2)
    y[i, j] = torch.stack([x, -x], 2)[k, l]
    z = y.transpose(1, 2)
    z[i, :, j] += 1
    a, b = (there == 0).nonzero(as_tuple=True)
    y[a, b, :] = -9.0
    y[i, j, 0] = 4
    return there, y, y[i, j], z[i, :, j], y[:, :, 1].sum()


def positions_that_may_be_outside(x):
    y, (i,) = x[0, : counts(x)[0]] * 2, (x[1] > 0).nonzero(as_tuple=True)
    return y[i]


def positions_that_may_be_outside_and_are_assigned(x):
    y, (i,) = x[0, : counts(x)[0]] * 2, (x[1] > 0).nonzero(as_tuple=True)
    y[i - 1] = 5.0
    return y


def as_many_as_there_are_positions(x):
    y, (i,) = torch.zeros(5), (x[0] > 0).nonzero(as_tuple=True)
    y[i] = x[1, : counts(x)[1]]
    return y


def sizes_that_are_tensors(x):
    n = counts(x).max()
    y = torch.cat([x[0, :n], x[1]])
    whole = y.narrow(0, n, y.size(0) - n)
    assert [y.size(0) - 5, 5] == [n, 5], f"{(y.size(0), n)} {y.shape}"
    return (
        *(torch.arange(n), x.new_ones(n, 2), torch.full((n,), 2.0), torch.zeros(2, n)),
        *(y.narrow(0, 0, n), whole, whole.reshape(5, 1), x[:, :n].contiguous().view(2, n, 1), x.narrow(1, 0, n)),
    )


def scattered(x):
    mask, source = x > 0, x[x != 3] * 10
    return x.masked_scatter(mask, source), x.clone().masked_scatter_(mask[:, :1], torch.cat([source, source])), x[x > 0].sum()


def scattered_of_too_few(x):
    return x.masked_scatter(x > -2, x[x > 0])


def summed_by_letters(x):
    n = counts(x).max()
    y, m = x[:, :n], torch.outer(x[0], x[1])
    return (
        *(torch.einsum("bn,bn->b", y, y), torch.einsum("bn,cn->bcn", y, y), torch.einsum("bn,bk->nk", y, x)),
        *(torch.einsum("nk,bn->bk", m[:n], y), torch.einsum("bn->nb", (y / 0,)), torch.einsum("bn,bn->", y, y)),
    )


def what_a_test_tells(x):
    y = x[0, : counts(x)[0]]
    assert y.shape[0] == 5 or x[0, 0] < 1
    if y.shape[0] != 3:
        return y, y.sum()
    return y.reshape(3, 1).expand(3, 2), y.sum()


def a_test_tells_nothing_elsewhere(x):
    y = x[0, : counts(x)[0]]
    z = y.sum()
    if x.sum() > 1:
        if y.shape[0] != 3:
            raise ValueError("three")
        z = z + y.reshape(3, 1).sum()
    for _ in range(2):
        if x[1, 0] > 0:
            assert y.shape[0] == 5
            z = z + y.view(5, 1)[0, 0]
    return y, z, y.shape[0]


def one_number_is_tested_twice(x):
    some = bool((x > 0).any())
    if some:
        n = x[0, 0]
    total = x.sum()
    for _ in range(12):
        if some:
            total = total * 2 + n
    return total


def a_copy_or_the_tensor_itself(x):
    n = int(counts(x)[0])
    y = torch.cat([x, x[:, :n]], 1)
    part = y.narrow(1, n, 5).contiguous()
    flat = y.narrow(1, n, 5).reshape(10)
    return part, flat, part.view(5, 2)


def of_another_length_on_each_path(x):
    y = x[0, : counts(x)[0]]
    if y.shape[0] > 4:
        y = y.topk(4).values
    z = y - 1
    z /= 2
    part = z[:2]
    z.mul_(3)
    part.add_(1)
    z.view(1, -1)[0, :1] = 7
    return z, part, y


def one_of_two_on_each_path(x):
    y, z = x[0, : counts(x)[0]], torch.zeros(3)
    w = y
    if x.sum() > 1:
        y = z[:2]
    y += 1
    return y, z, w, x


def the_shape_in_place(x):
    at = (x > 0).nonzero()
    at.t_()
    m = x[:, x[0] > 0] * 1
    same, part = [m], m[:1]
    m.unsqueeze_(0).transpose_(1, 2)
    m += 1
    part.squeeze_(0)
    part[:1] = 5
    if x.sum() > 1:
        part.unsqueeze_(1)
    return at, m, same, part, m.shape[1]


def the_shape_in_place_in_a_loop(x):
    m, all_ = x[:, x[0] > 0] * 1, x.sum() * 0
    for i in range(int(counts(x)[0])):
        new = x[:, x[1] > 0] * i
        new.t_()
        m.t_()
        all_ = all_ + new.sum()
    return m, all_


PROGRAMS = [
    *(the_shape_in_place, the_shape_in_place_in_a_loop),
    *(of_another_length_on_each_path, one_of_two_on_each_path),
    *(changed_in_place, changed_where_a_mask_is, rows_in_two_dimensions, rows_in_what_has_such_a_length, positions_that_may_be_outside),
    *(as_many_as_a_mask_has, as_many_rows_as_a_mask_may_have, masks_of_another_length),
    *(positions_that_may_be_outside_and_are_assigned, as_many_as_there_are_positions, sizes_that_are_tensors, scattered),
    *(scattered_of_too_few, summed_by_letters, what_a_test_tells, a_test_tells_nothing_elsewhere, one_number_is_tested_twice),
    a_copy_or_the_tensor_itself,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS)


def test_a_number_that_was_tested_parts_the_paths_once():
    assert len(stage(one_number_is_tested_twice, INPUTS[0]).blocks) < 6


def changed_behind_a_copy(x):
    n = int(counts(x)[0])
    y = torch.cat([x, x[:, :n]], 1)
    part = y.narrow(1, n, 5).contiguous()
    y[:, 0] = 0.0
    return part


REFUSED = {
    "a copy, or the tensor itself, is read after a change": (changed_behind_a_copy, "changed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        stage(program, INPUTS[0])


def test_built(tmp_path: Path) -> None:
    artifact = dycl_tvm.build(rows_in_what_has_such_a_length, INPUTS[0])
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    loaded = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for (x,) in INPUTS:
        for got, want in zip(loaded(x), rows_in_what_has_such_a_length(x)):
            torch.testing.assert_close(got, want)


def count(x):
    return int((x > 0).sum())


def _by_its_first(x):
    m = x[x > 0]
    m += m[:1]
    return m


def _shifted(x):
    m = x[x > 0]
    m[1:] += m[:-1]
    return m


def _moved(x):
    y, n = x.clone(), count(x)
    y[1 : n + 1] = y[:n]
    return y


def _moved_by_its_length(x):
    y, n, k = x.clone(), count(x), int((x > 1).sum())
    y[:k] = y[n - k : n]
    return y


def _by_an_item(x):
    y, n = x.clone(), count(x)
    y[:n] += y[0]
    return y


def _elsewhere(x):
    y, m, n = torch.outer(x, x), torch.outer(x, x)[x > 0], count(x)
    y[1, :n] = y[2, :n]
    y[:n] *= y[:n]
    y[n:, 0] += y[n:, 1]
    m[:, :2] += m[:, 2:4]
    m.mul_(m)
    return y, m


@pytest.mark.parametrize("change", [_by_its_first, _shifted, _moved, _moved_by_its_length, _by_an_item, _elsewhere])
def test_what_is_read_overlaps_with_what_is_written(change):
    rows = ([-1.0, -2, -3, -4, -5], [1.0, -2, -3, -4, -5], [2.0, 3, -1, -1, 0.5], [2.0, 3, 4, 5, -1], [0.5, 2, 3, 4, 6])
    check(change, [(torch.tensor(row),) for row in rows])


def _columns(x):
    m = torch.outer(x, x)[x > 0]
    m -= m[:, :1]
    return m


def _picked(x):
    y = x.clone()
    y[y > 0] = y[: count(x)]
    return y


def _rows(x):
    y = x.clone()
    places = (y > 0).nonzero()[:, 0]
    y[places] = y[: len(places)]
    return y


@pytest.mark.parametrize("change", [_columns, _picked, _rows])
def test_an_overlap_that_is_not_known_is_refused(change):
    with pytest.raises(UnsupportedError, match="through another that may overlap"):
        stage(change, (torch.ones(5),))


def nearest_pairs(cost):
    cost, pairs = cost.clone(), []
    for _ in range(3):
        best = cost.argmin()
        i, j = best // cost.shape[1], best % cost.shape[1]
        pairs.append((i, j, cost[i, j]))
        cost[i] = 9.0
        cost[:, j] = 9.0
    return pairs, cost


def all_in_one_row(x):
    y = x.clone()
    made = y.unique(), y.median(), y.quantile(0.5), y.roll(1), y.repeat_interleave(2), torch.take(y, torch.tensor([0]))
    y[0] = 9.0
    return made, y


@pytest.mark.parametrize("program", [nearest_pairs, all_in_one_row])
def test_a_function_of_all_elements_leaves_no_view(program) -> None:
    inputs = [(torch.randn(n, m, generator=torch.Generator().manual_seed(n)),) for n, m in [(2, 3), (1, 1), (4, 1), (1, 4), (4, 4)]]
    check(program, inputs, dynamic_shapes=({0: dycl_tvm.Dim("N", max=4), 1: dycl_tvm.Dim("M", max=4)},))
