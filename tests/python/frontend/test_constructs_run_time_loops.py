# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops whose trip count is decided at run time, long loops, recursion: staged graphs against eager."""

from __future__ import annotations

import torch
from differential import check
from torch import nn

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


# -- loops whose trip count is decided at run time ------------------------------------------------------------------------
def test_while_true_with_return_only():
    def f(x):
        n = 0
        while True:
            x = x * 0.5
            n += 1
            if x.abs().sum() < 0.4:
                return x, n

    check(f, X, paths=3, blocks=6)


def test_while_state_in_tuples_and_lists_of_fixed_length():
    def f(x):
        state = (x, [x * 0, 0], {"k": x})
        while state[1][1] < 9 and state[1][0].sum() < 3:
            a, (b, n), d = state
            d = {"k": d["k"] * 0.5 + a}
            state = (a, [b + d["k"].abs(), n + 1], d)
        return state

    check(f, X, paths=3)


def test_fixed_buffer_written_at_a_counter():
    def f(x):
        buf = torch.zeros(1, 6, 2)
        t = 0
        h = x
        while t < 6 and h.abs().sum() > 0.3:
            buf[:, t] = h
            buf[0, t, 0] += 1
            h = h * 0.5
            t += 1
        return buf, t, buf[:, t - 1]

    check(f, X, paths=3)


def test_table_index_by_host_scalar():
    table = torch.arange(12.0).reshape(6, 2)
    steps = [0.5, 1.0, 2.0]

    def f(x):
        i = 0
        while x.sum() < 4 and i < 5:
            x = x + table[i] * 0.3
            i += 1
        k = min(i, 2)
        return x, table[i], table[i, 1], table[-1 - i], steps[k], i

    check(f, X, paths=3)


def test_loop_in_a_branch_and_branch_in_a_loop():
    def f(x):
        if x[0, 0] > 0:
            n = 0
            while x.sum() > 0.3:
                x = x * 0.5 - 0.1 if x[0, 1] > 0 else x - 0.4
                n += 1
        else:
            n = 100
        return x, n

    check(f, X, paths=4)


def test_loop_in_a_loop_in_a_loop():
    def f(x):
        a = b = c = 0
        while a < 2 and x.abs().sum() > 0.1:
            a += 1
            while x.abs().max() > 0.5:
                b += 1
                x = x * 0.7
                while x.sum() < -0.5:
                    c += 1
                    x = x + 0.25
            x = x * 2.5
        return x, a, b, c

    check(f, X, paths=4)


def test_call_with_control_flow_inside_a_symbolic_loop():
    def clip(v, limit):
        if v.abs().max() > limit:
            if v.sum() > 0:
                return v * 0.5
            return v * 0.25
        return v

    def f(x):
        n = 0
        while x.abs().sum() < 8 and n < 6:
            x = clip(x * 2, 3.0)
            n += 1
        return x, n

    check(f, X, paths=3)


def test_loop_variables_that_swap():
    def f(x):
        a, b = x, x * 2
        n = 0
        while n < 5 and a.sum() > -3:
            a, b = b, a - 1
            n += 1
        return a, b, n

    check(f, X, paths=2)


def test_do_while_and_countdown():
    def f(x):
        n = int(x.abs().sum() * 2)
        while n:
            x = x * 0.9 + 0.01 * n
            n -= 1
        first = True
        while first or x.sum() > 1:
            first = False
            x = x - 0.3
        return x, n

    check(f, X, paths=4)


def test_bool_flag_as_loop_condition():
    def f(x):
        done = False
        n = 0
        while not done:
            x = x * 0.7
            n += 1
            done = bool(x.abs().sum() < 0.5) or n >= 4
        return x, n

    check(f, X, paths=3)


def test_long_static_loop_with_a_symbolic_exit():
    cell = nn.GRUCell(2, 2)

    def f(x):
        h = x
        for t in range(200):
            h = cell(x, h)
            if (h - x).abs().sum() < 0.02 * t + 0.1:
                break
        return h, t

    graph = check(f, X, paths=4)
    assert len(graph.blocks) <= 1000


def test_token_feedback_with_end_of_sequence():
    emb, cell, head = nn.Embedding(9, 4), nn.GRUCell(4, 4), nn.Linear(4, 9)

    def f(x):
        h = torch.cat([x, -x], 1)
        word = torch.zeros(1, dtype=torch.long)
        n = 0
        out = torch.full((1, 8), -1, dtype=torch.long)
        while n < 8:
            h = cell(emb(word), h)
            word = head(h * 5).argmax(-1)
            out[:, n] = word
            n += 1
            if word.item() in (3, 5):
                break
        return out, n, h

    check(f, X, paths=2)


def test_tokens_collected_in_a_list_of_a_static_loop():
    torch.manual_seed(1)
    emb, cell, head = nn.Embedding(9, 4), nn.GRUCell(4, 4), nn.Linear(4, 9)

    def f(x):
        h = torch.cat([x, -x], 1)
        word = torch.zeros(1, dtype=torch.long)
        words, states = [], []
        for _ in range(5):
            h = cell(emb(word), h)
            word = head(h * 5).argmax(-1)
            words.append(int(word))
            states.append(h)
            if word in (1, 3, 5, 7):
                break
        return words, torch.stack(states), torch.cat(states, dim=1)

    check(f, X, paths=2)


def test_recursion_of_static_depth():
    def tree(x, depth):
        if depth == 0:
            return x
        if x.sum() > 0:
            return tree(x * 0.5 - 0.2, depth - 1) + 1
        return tree(x + 0.3, depth - 1) - tree(x * 2, depth - 1)

    def f(x):
        return tree(x, 3)

    check(f, X, paths=4)


def test_loop_that_never_runs():
    def f(x):
        n = int(x.sum() * 0)
        for i in range(n):
            x = x * i
        while x.sum() > 1000:
            x = x - 1
        for v in []:
            x = v
        return x, n

    check(f, X, paths=1)


def test_loop_variable_after_the_loop():
    def f(x):
        for i in range(5):  # noqa: B007
            if x.sum() > 2 - i:
                break
        for j, v in enumerate((x, x * 2)):  # noqa: B007
            pass
        return i, j, v

    check(f, X, paths=3)


def test_iterators_taken_by_hand():
    def f(x):
        it = iter([x, x * 2, x * 3])
        first = next(it)
        out = first
        if first.sum() > 0:
            out = out + next(it)
        rest = next(it, None)
        return out, rest

    check(f, X, paths=2)
