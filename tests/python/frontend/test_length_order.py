# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Order, repetition and measures of tensors whose length is known only at run time: nothing behind the end counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage
from test_length_writes import INPUTS, counts

import dycl_tvm
from dycl_tvm.errors import UnsupportedError

#: NaN and infinities, which are sorted last or first, among what is picked and what is not.
SPECIAL = torch.tensor([[1.0, float("inf"), float("nan"), -float("inf"), 2.0], [float("nan"), 1.0, float("inf"), 1.0, 0.5]])


def turned(x):
    y, m = x[x > 0], x[:, x[0] > 0]
    return y.flip(0), m.flip(1), m.flip(0), torch.flip(m, [0, 1]), y.flip(0)[:1]


def sorted_along(x):
    y, k = x[: x.shape[0], x[0] != -2], x[x != -2]
    n = (x > 0).sum()
    return (
        *(torch.sort(y, 1), torch.sort(y, 0), y.sort(descending=True), torch.argsort(y, 1), k.sort()[0], k.argsort(descending=True)),
        *((y > 0).sort(1)[0], torch.nan_to_num(k).long().sort(descending=True), k[:n].sort(), y.topk(2, 0)[0], y.topk(1, 0, largest=False)),
    )


def different(x):
    y, k = (x * 2).long(), x[x > 0]
    parts = torch.unique(k, return_inverse=True, return_counts=True)
    whole = y.unique(return_inverse=True, return_counts=True)
    return torch.unique(x > 0), y.unique(), *whole, *parts, k.unique().shape[0], parts[0][parts[1]], whole[2].sum()


def repeated(x):
    y, m = x[x > 0], x[:, x[0] > 0]
    return y.repeat(2), y.repeat(3, 1), m.repeat(2, 1), m.repeat_interleave(2, 1), m.repeat_interleave(3, 0), y.repeat_interleave(2)


def measured(x):
    y, m = x[x > 0], x[:, x[0] > 0]
    return (
        *(torch.linalg.vector_norm(y), y.norm(), torch.norm(m, dim=1), m.norm(1, 0), torch.linalg.vector_norm(m, 3, 1, True)),
        *(F.normalize(m, dim=1), F.normalize(m, dim=0), y.logsumexp(0), m.logsumexp(0), y.prod(), m.prod(1), torch.count_nonzero(y > 1)),
        *(torch.count_nonzero(m - 1, dim=0), (m - 1).count_nonzero(1), (m - 1).count_nonzero((0, 1))),
        *(m.var(1, unbiased=False), m.std(0), torch.var(m, 0, correction=0), torch.linalg.norm(y)),
    )


def spread_of_few(x):
    return x[x > 0].std(), x[:, x[0] > 0].var(1)


def looked_up(x):
    i, j = (x > 0).nonzero(as_tuple=True)
    table, places = torch.outer(x[0], x[1])[j], torch.stack([i, j], 1)
    return table.gather(1, places), table.gather(-1, places[:, :1])[..., 0]


def runs_of_equal_ones(x):
    k = (x > 0).reshape(-1)
    parts = torch.unique_consecutive(x[x > -1].long(), return_inverse=True, return_counts=True)
    return k.unique_consecutive(), *torch.unique_consecutive(k, return_counts=True), *parts, parts[0][parts[1]]


def counted(x):
    y, at = x[x > 0].long().clamp(0, 6), x.argmax(1)
    return (
        *(y.bincount(), torch.bincount(y, minlength=4), torch.bincount(at, minlength=5), torch.bincount(at, x[:, 0], 5)),
        *(at.bincount(), torch.bincount(at.int(), weights=x[:, 1].double())),
        *(torch.histc(x.float(), 7), torch.histc(x.float() * 0 + 2, 3)),
    )


PROGRAMS = [turned, sorted_along, different, runs_of_equal_ones, counted, repeated, measured, spread_of_few, looked_up]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS)


@pytest.mark.parametrize("program", [sorted_along, turned, different], ids=lambda f: f.__name__)
def test_what_is_no_number_is_sorted_last(program):
    graph = stage(program, INPUTS[0])
    for x in (SPECIAL, SPECIAL.flip(0), -SPECIAL):
        for got, want in zip(_leaves(graph.interpret()(x)), _leaves(program(x))):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), equal_nan=True)


def _leaves(x):
    return torch.utils._pytree.tree_leaves(x)


REFUSED = {
    "which of equal ones is most frequent": (lambda x: x[x > 0].mode(), "mode"),
    "weights of numbers of which there may be none": (lambda x: torch.bincount((x[x > 0] > 1).long(), x[x > 0]), "bincount"),
    "different rows": (lambda x: torch.unique(x[:, x[0] > 0], dim=1), "unique"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        stage(program, INPUTS[0])


def test_counts_of_numbers_of_any_size():
    graph = stage(lambda x: torch.bincount(x), (torch.tensor([1, 2]),), max_length=9)
    for x in ([1, 2], [8, 0], [0, 0]):
        assert torch.equal(graph.interpret()(torch.tensor(x)), torch.bincount(torch.tensor(x)))
    for x, error in (([9, 1], "max_length"), ([-1, 1], "non-negative")):
        with pytest.raises(Exception, match=error):
            graph.interpret()(torch.tensor(x))
    with pytest.raises(UnsupportedError, match="nothing bounds it"):
        stage(lambda x: torch.bincount(x), (torch.tensor([1, 2]),))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_numbers_of_one_byte_have_bounds(dtype):
    """A histogram of an image needs no bound from the user."""

    def program(x):
        return torch.bincount(x), torch.bincount(x, minlength=256), torch.zeros(int(x[0])), torch.bincount(x // 2 + 1)

    most = torch.iinfo(dtype).max
    call = stage(program, (torch.tensor([1, 2], dtype=dtype),)).interpret()
    for numbers in ([1, 2], [0, 0], [most, 0], [0, most], [7, most - 1]):
        x = torch.tensor(numbers, dtype=dtype)
        want, got = program(x), call(x)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_built(tmp_path: Path) -> None:
    def program(x):
        y = x[x > 0]
        return torch.sort(y), y.flip(0), torch.unique((y * 2).long(), return_counts=True), x[:, : counts(x)[0]].norm(dim=1)

    artifact = dycl_tvm.build(program, INPUTS[0])
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    loaded = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for (x,) in INPUTS:
        for got, want in zip(_leaves(loaded(x)), _leaves(program(x))):
            torch.testing.assert_close(got, want)
