# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops with a bound, loops whose state grows, and loops whose first iteration differs."""

from __future__ import annotations

import pytest
import torch
from differential import check, same
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


def shrink(x):
    n = 0
    while x.abs().sum() > 0.5:
        x = x * 0.6
        n += 1
    return x, n


def test_bound_on_trips():
    graph = check(shrink, X, paths=4, max_loop_trips=6)
    assert len(graph.blocks) <= 7
    tight = stage(shrink, X[0], max_loop_trips=2)
    assert same(shrink(X[4][0]), interpret(tight, [X[4][0]])[0])
    with pytest.raises(RuntimeError, match="max_loop_trips = 2"):
        interpret(tight, [X[-1][0]])


def test_first_iteration_that_differs_is_peeled():
    def f(x):
        h = None
        while x.sum() < 3:
            h = x * 0.5 if h is None else h + x
            x = x.abs() + 0.3
        return x, h

    graph = check(f, X, paths=4)
    assert len(graph.blocks) < 16


def test_variable_first_set_in_the_loop():
    def f(x):
        k = 0
        while k < 4 and x.sum() < 3:
            y = x * 2
            x = x.abs() + 0.4
            k += 1
        return y + k

    check(f, X, paths=3)


def test_attribute_first_set_in_the_loop():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = None

        def forward(self, x):
            self.cache = None
            for _ in range(int(x.abs().sum())):
                self.cache = x if self.cache is None else self.cache + x
                x = x * 0.5
            return self.cache

    check(M().eval(), X, paths=3)


def test_results_appended_to_a_list():
    def f(x):
        out = []
        while x.abs().sum() > 0.5:
            x = x * 0.5
            out.append(x)
        return out, (torch.cat(out) if out else None), len(out)

    check(f, X, paths=4, max_loop_trips=6)
    with pytest.raises(UnsupportedError, match="max_loop_trips=N"):
        stage(f, X[0])


def test_endless_decoder_that_collects_words():
    torch.manual_seed(0)
    emb, cell, head = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7)

    def f(x):
        h = torch.cat([x, x], 1)
        word = torch.zeros(1, dtype=torch.long)
        words = []
        while True:
            h = cell(emb(word), h)
            word = head(h * 4).argmax(1)
            words.append(word)
            if word == 3 or len(words) == 5:
                break
        return torch.stack(words), h

    check(f, X, paths=2, max_loop_trips=8)


def test_list_that_grows_in_a_counted_loop():
    def f(x):
        out = [x]
        for i in range(int(x.abs().sum())):
            out.append(out[-1] * 0.5 + i)
        return out

    check(f, X, paths=3, max_loop_trips=8)


def test_a_difference_between_paths_within_a_rolled_loop():
    def f(x):
        k = 0
        while x.sum() < 4:
            last = None
            while x.sum() < k:
                last = x if last is None else last * 0.5 + x
                x = x + 0.7
            if last is not None:
                x = x + last.abs()
            x = x + 0.5
            k += 1
        return x, k

    check(f, X, paths=2)
