# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops whose trip count is decided at run time: staged graphs against eager."""

from __future__ import annotations

import torch
from differential import check
from torch import nn

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


def test_while_on_a_tensor():
    def f(x):
        n = 0
        while x.abs().sum() > 0.5:
            x = x * 0.6
            n += 1
        return x, n

    check(f, X, paths=4, blocks=5)


def test_endless_loop_with_break_and_return():
    def f(x):
        n = 0
        while True:
            x = x * 0.7
            n += 1
            if x.abs().max() < 0.2:
                break
            if n > 9:
                return x, "long"
        return x, n

    check(f, X, paths=3)


def test_branch_in_a_loop_in_a_branch():
    def f(x):
        y = x * 0
        if x.sum() > -2:
            while y.sum() < 2:
                if y.sum() > 1:
                    y = y + 0.7
                else:
                    y = y + x.abs() + 0.1
        return y

    check(f, X, paths=4)


def test_loop_in_a_loop_and_a_call_with_control_flow():
    def shrink(v):
        while v.abs().max() > 1:
            v = v / 2
        return v

    def f(x):
        k = 0
        while k < 3 and x.abs().sum() > 0.3:
            x = shrink(x * 3) * 0.4
            k += 1
        return x, k

    check(f, X, paths=3)


def test_range_with_a_bound_known_at_run_time():
    def f(x):
        n = int(x.abs().sum())
        total = x * 0
        for i in range(n):
            total = total + x * i
            if total.sum() > 3:
                break
        for j in range(1, n, 2):
            total = total - j
        return total, n

    check(f, X, paths=4)


def test_state_in_tuples_attributes_and_buffers():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = None
            self.count = 0
            self.cell = nn.LSTMCell(2, 2)

        def forward(self, x):
            self.h = (torch.zeros(1, 2), torch.zeros(1, 2))
            self.count = 0
            buf = torch.zeros(1, 8)
            while self.h[0].sum().abs() < 0.15 + 0.02 * x.sum() and self.count < 8:
                self.h = self.cell(x, self.h)
                buf[:, self.count] = self.h[0][0, 0]
                self.count += 1
            return self.h, buf, self.count

    torch.manual_seed(3)
    check(M().eval(), X, paths=2)


def test_in_place_changes_in_a_loop():
    def f(x):
        y = torch.zeros(2)
        n = 0
        while n < 5 and y.sum() < 3:
            y += x[0].abs()
            y[0] += 0.5
            n = n + 1
        return y, n

    check(f, X, paths=3)


def test_greedy_decoder():
    torch.manual_seed(0)
    emb, cell, head = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7)

    def f(x):
        h = torch.cat([x, x], 1)
        word = torch.zeros(1, dtype=torch.long)
        words = []
        for _ in range(6):
            h = cell(emb(word), h)
            word = head(h * 4).argmax(1)
            words.append(word.item())
            if word == 3:
                return words, h
        return words, h

    check(f, X, paths=2)


def test_table_lookup_by_a_counter():
    table = torch.arange(10.0)

    def f(x):
        i = 0
        s = x.sum() * 0
        while s < 6 and i < 10:
            s = s + table[i]
            i += 1
        return s, i, table[-1]

    check(f, X[:2], paths=1)
