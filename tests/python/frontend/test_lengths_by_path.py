# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors whose fixed length depends on the path: few paths part, many meet with a length of the run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.types import INT

MANY = 24


def _inputs(count=10, length=MANY):
    g = torch.Generator().manual_seed(0)
    made = [(torch.rand(length, 3, generator=g) + 0.1, torch.randn(length, generator=g)) for _ in range(count)]
    return [*made, (made[0][0], torch.ones(length)), (made[0][0], -torch.ones(length))]


INPUTS = _inputs()


def made_longer_on_some(x, s):
    kept = x[:0]
    for i in range(MANY):
        if s[i] > 0:
            kept = torch.cat([kept, x[i : i + 1]])
    return kept, kept.shape[0]


def one_of_two_parts(x, s):
    a = b = x[:1]
    for i in range(MANY):
        if s[i] > 0:
            a = torch.cat([a, x[i : i + 1]])
        else:
            b = torch.cat([b, x[i : i + 1]])
    return a @ b.T


def kept_if_it_fits(x, s):
    kept = x[:1]
    for i in range(MANY):
        new = torch.cat([kept, x[i : i + 1]])
        if new.sum() < 5:
            kept = new
    return kept.mean(0)


def until_there_are_three(x, s):
    kept, n = x[:1], 0
    for i in range(MANY):
        if s[i] > 0:
            kept = torch.cat([kept, x[i : i + 1]])
            n += 1
        if n >= 3:
            break
    return kept, n


def along_another_dimension(x, s):
    kept = x.T[:, :2]
    for i in range(MANY):
        if s[i] > 0.3:
            kept = torch.cat([kept, kept[:, -1:] + x[i, :, None]], 1)
        elif s[i] < -0.3 and kept.shape[1] > 1:
            kept = kept[:, :-1]
    return kept.softmax(1), kept


def computed_with(x, s):
    part = x[:2]
    for i in range(MANY):
        if s[i] > 1:
            part = x[: i + 1]
        part = part + i
        if s[i] < -1 and part.shape[0] > 3:
            part = part[1:]
    return part


def in_an_attribute(x, s):
    held = SimpleNamespace(rows=x[:1])
    for i in range(MANY):
        if s[i] > 0:
            held.rows = torch.cat([held.rows, x[i : i + 1]])
        if held.rows.shape[0] > 7:
            held.rows = held.rows[4:]
    return held.rows


@pytest.mark.parametrize(
    "program",
    [
        made_longer_on_some,
        one_of_two_parts,
        kept_if_it_fits,
        until_there_are_three,
        along_another_dimension,
        computed_with,
        in_an_attribute,
    ],
    ids=lambda f: f.__name__,
)
def test_in_many_trips(program):
    check(program, INPUTS, paths=3, blocks=400)


def in_a_list(x, s):
    kept = []
    for i in range(MANY):
        if s[i] > 0:
            kept.append(x[i])
    return torch.stack(kept) if kept else x[:0]


def rows_and_their_numbers(x, s):
    kept, numbers = x[:1], []
    for i in range(MANY):
        if s[i] > 0:
            kept = torch.cat([kept, x[i : i + 1]])
            numbers.append(i)
    return kept, torch.tensor(numbers) if numbers else torch.zeros(0, dtype=torch.long), len(numbers)


@pytest.mark.parametrize("program", [in_a_list, rows_and_their_numbers], ids=lambda f: f.__name__)
def test_lists_that_are_longer_on_some_paths(program):
    """Paths cannot meet at the end of such a trip, so the trips of a long loop are one, and the list is the rows of a tensor."""
    check(program, INPUTS, paths=3, blocks=40)


def in_a_loop_of_the_run(x, s):
    kept, i = x[:1], 0
    while i < int((s > -2).sum()):
        if s[i] > 0:
            kept = torch.cat([kept, x[i : i + 1]])
        i += 1
    return kept


def by_a_test_of_its_own(x, s):
    kept = x[:1]
    while bool(kept.sum() < 9):
        if s[kept.shape[0] - 1] > 0:
            kept = torch.cat([kept, x[:1]])
        else:
            kept = torch.cat([kept, x[:2]])
    return kept


@pytest.mark.parametrize("given", [{"max_length": 48}, {"max_loop_trips": 32}], ids=lambda given: next(iter(given)))
@pytest.mark.parametrize("program", [in_a_loop_of_the_run, by_a_test_of_its_own], ids=lambda f: f.__name__)
def test_in_loops_of_the_run(program, given):
    check(program, INPUTS, paths=3, blocks=40, **given)


class Window(nn.Module):
    """Keeps the rows of the last calls, as many as the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.zeros(0, 3)

    def forward(self, x, s):
        for i in range(MANY):
            if s[i] > 0:
                self.rows = torch.cat([self.rows, x[i : i + 1]])
            if self.rows.shape[0] > 4:
                self.rows = self.rows[1:]
        return self.rows.sum(0), self.rows.shape[0]


def test_in_what_a_model_keeps():
    model = Window()
    graph, eager = stage(model, INPUTS[0], max_length=8).interpret(), Window()
    for args in INPUTS:
        got, want = graph(*args), eager(*args)
        assert torch.allclose(got[0], want[0]) and got[1] == want[1]


def test_parts_of_one_tensor_that_are_changed():
    def program(x, s):
        x = x.clone()
        part = x[:2]
        for i in range(3):
            if s[i] > 0:
                part = x[: i + 3]
            part[0] += 1
            if s[i] < -1:
                part = part[1:].clone()
        return x, part

    check(program, INPUTS, paths=3)


def test_few_paths_part_for_fixed_shapes():
    def program(x, s):
        kept = x[:1]
        for i in range(3):
            if s[i] > 0:
                kept = torch.cat([kept, x[i : i + 1]])
        return kept * 2

    graph = check(program, INPUTS, paths=4)
    assert not [v for b in graph.blocks for v in b.params if v.type == INT]


def test_a_refusal_is_that_of_the_program_as_it_stands():
    def program(x, s):
        kept = x[:1]
        while bool(kept.sum() < 25):
            kept = torch.cat([kept, x[: 1 if s[0] > 0 else 2]])
        return kept

    with pytest.raises(UnsupportedError, match="max_loop_trips"):
        stage(program, INPUTS[0])
