# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops whose condition Python knows, rolled all the same: their trips grow something, or paths part in each of them."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage
from test_counted_loops import X, size_of


class Program:
    """A program that makes so many trips."""

    def __init__(self, most):
        self.most = most

    def __call__(self, x):
        raise NotImplementedError


class Grows(Program):
    def __call__(self, x):
        while x.shape[1] < self.most:
            x = torch.cat([x, x[:, -1:] * 1.1 + 0.1], 1)
        return x, x.shape[1]


class GrowsByANumber(Program):
    def __call__(self, x):
        i = 0
        while i < self.most and x.shape[1] < 500:
            x, i = torch.cat([x, x[:, -1:] * 0.9 + i], 1), i + 1
        return x, i


class GrowsInAList(Program):
    """The first trip fills it."""

    def __call__(self, x):
        kept, ids = [], x
        while ids.shape[1] < self.most + 3:
            for i in range(3):
                if len(kept) <= i:
                    kept.append(ids * i)
                else:
                    kept[i] = torch.cat([kept[i], ids[:, -1:] * i], 1)
            ids = torch.cat([ids, torch.tanh(sum(kept))[:, -1:]], 1)
        return ids


class FixedSize(Program):
    """Behind the loop a size is needed."""

    def __call__(self, x):
        while x.shape[1] < self.most + self.most % 2:
            x = torch.cat([x, x[:, -1:] * 0.5 + 1], 1)
        return x.unflatten(1, (-1, 2)).sum(1) if x.shape[1] % 2 == 0 else x


def part_of(x):
    if x.sum() > 0:
        return None
    return x[:1]


class Parts(Program):
    def __call__(self, x):
        i = 0
        while i < self.most:
            found = part_of(x)
            x = x + 1 if found is None else x - found.abs() * 0.2 - 0.1
            i += 1
        return x, i


class PartsInAFor(Program):
    def __call__(self, x):
        for _ in range(self.most):
            found = part_of(x)
            x = x * 0.9 if found is None else x + found.abs() * 0.2
        return x


class PartsAndLeaves(Program):
    def __call__(self, x):
        total, going = x.sum(), True
        while going:
            found = part_of(x)
            x = x - 0.5 if found is None else x + found.abs() + 0.3
            total = total + x.abs().sum()
            if total > self.most:
                break
        return x, total


class PartsWhereOthersGrow(Program):
    def __call__(self, x):
        mask = x > 0
        while x.shape[1] < self.most + 3:
            seen = None if mask.all() else mask[:, -1:]
            new = x[:, -1:] * 0.9
            if seen is not None:
                new = torch.where(seen, new, -new + 0.01)
            x, mask = torch.cat([x, new], 1), torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        return x


ROLLED = [Grows, GrowsByANumber, GrowsInAList, Parts, PartsInAFor, PartsAndLeaves, PartsWhereOthersGrow, FixedSize]


@pytest.mark.parametrize("program", ROLLED, ids=lambda p: p.__name__)
def test_code_does_not_grow_with_the_number_of_trips(program):
    graph = check(program(18), X)
    assert any(b.name.startswith("loop") for b in graph.blocks)
    assert size_of(graph) == size_of(stage(program(60), X[0]))


class ChoosesLayers(Program):
    def __call__(self, x):
        layers, i = [torch.full((2, 1), float(k)) for k in range(self.most)], 0
        while i < self.most:
            x, i = torch.cat([x, layers[i]], 1), i + 1
        return x


class AsksForTheTrip(Program):
    def __call__(self, x):
        i = 0
        while i < self.most:
            x, i = torch.cat([x, x[:, -1:] * 2 if i % 3 == 1 else x[:, :1] + 1], 1), i + 1
        return x


class ListGrows(Program):
    def __call__(self, x):
        parts = []
        while len(parts) < self.most:
            x = torch.cat([x[:, 1:], x[:, :1] + 1], 1)
            parts.append(x)
        return torch.stack(parts)


class ShapesChange(Program):
    def __call__(self, x):
        i = 0
        while i < self.most:
            x, i = torch.cat([x, x[:, -1:]], 1) if i < 5 else torch.cat([x, x[:, -2:]], 1), i + 1
        return x


class ExceedsAnInt64(Program):
    def __call__(self, x):
        n, i = 1, 0
        while i < 60:
            x, n, i = torch.cat([x, x[:, -1:] + n % 7], 1), n * 3, i + 1
        return x, n % 1000


class PartsOnce(Program):
    """The sixth trip differs, and a text holds its number."""

    def __call__(self, x):
        names = []
        for i in range(self.most):
            found = part_of(x)
            x = x * 0.9 if found is None else x + found.abs() * 0.2
            names.append(f"trip {i}")
        return x, names[-1]


@pytest.mark.parametrize("program", [ChoosesLayers, AsksForTheTrip, ListGrows, ShapesChange, ExceedsAnInt64], ids=lambda p: p.__name__)
def test_unrolled(program):
    graph = check(program(11), X)
    assert not any(b.name.startswith("loop") for b in graph.blocks)


def test_few_trips_are_unrolled():
    assert not any(b.name.startswith("loop") for b in check(Grows(6), X).blocks)


def test_a_for_whose_trips_differ_is_as_it_was():
    check(PartsOnce(8), X[:4])


def test_a_mask_that_is_an_input():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, eos_token_id=None, pad_token_id=0)).eval()

    def generate(ids, mask):
        return model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)

    prompts = [torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(k)) for k in range(3)]
    prompts[1][0, :2], prompts[2][1, :5] = 0, 0
    graph = stage(generate, (prompts[0], (prompts[0] > 0).long()))
    assert len(graph.return_sites()) < 4, "their number does not grow with that of the tokens"
    for ids in prompts:
        with torch.no_grad():
            assert torch.equal(generate(ids, (ids > 0).long()), graph.interpret()(ids, (ids > 0).long()))
