# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Every form of loop that docs/python-support.md names: staged graphs against eager."""

from __future__ import annotations

from collections import OrderedDict

import torch
from differential import check
from torch import nn

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


# -- what a for loop runs over -----------------------------------------------------------------------------------------
def test_range_with_start_and_step():
    def f(x):
        out = x * 0
        for i in range(2, 11, 3):
            if x.sum() > i - 5:
                out = out + x * i
        for i in range(5, 0, -2):
            if out.sum() > i:
                out = out - i
        return out

    check(f, X, paths=4)


def test_range_with_symbolic_start_and_negative_step():
    def f(x):
        n = int(x.abs().sum())
        total = 0
        out = x
        for i in range(n, 0, -1):
            total += i
            out = out * 0.5 + i
        for i in range(n, 7, 2):
            total -= i
        return out, total

    check(f, X, paths=4)


class OverModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        self.chain = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Tanh(), c=nn.Linear(2, 2)))
        self.table = nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2) * i) for i in range(1, 4)])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(1.5)), "shift": nn.Parameter(torch.tensor(-0.5))})

    def forward(self, x):
        for layer in self.items:
            if x.sum() > 0:
                x = layer(x)
        for layer in self.chain:
            x = layer(x)
            if x.max() > 0.9:
                break
        for name, layer in self.table.items():
            if name == "left" and x.min() < 0:
                continue
            x = x + layer(x)
        for key in self.table:
            x = self.table[key](x)
        for w in self.weights:
            if (x * w).sum() > 1:
                x = x * w
        for name, p in self.named.items():
            x = x * p if name == "scale" else x + p
        for i in reversed(range(len(self.items))):
            if x[0, 0] > 0.1 * i:
                x = self.items[i](x)
        for layer in self.items[1:]:
            x = layer(x)
        return x


def test_module_list_sequential_module_dict_parameter_list():
    check(OverModules().eval(), [(x * 2,) for (x,) in X], paths=4)


def test_enumerate_zip_reversed_with_start_and_unpacking():
    def f(x):
        out = x
        for i, (a, (b, c)) in enumerate(zip([1, 2, 3], [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]), start=1):
            if out.sum() > b:
                out = out * a - i * c
        for k, *rest in reversed([(1, 2, 3), (4, 5), (6,)]):
            if out.sum() < k:
                out = out + len(rest)
        return out

    check(f, X, paths=4)


def test_dict_keys_values_items():
    def f(x):
        table = {"a": x, "b": x * 2, "c": -x}
        out = []
        for key, value in table.items():
            if value.sum() > 0:
                table[key] = value + 1
        for value in table.values():
            out.append(value.sum())
        for i, key in enumerate(sorted(table.keys(), reverse=True)):
            if out[i] > 1:
                out[i] = out[i] * table[key].max()
        return out, table

    check(f, X, paths=3)


def test_list_changed_while_iterated():
    def f(x):
        items = [x, x * 2]
        for v in items:
            if len(items) < 4:
                items.append(v + 1)
        out = x * 0
        for v in items:
            out = out + v if v.sum() > 0 else out
        return out, len(items)

    check(f, X, paths=2)


def test_generators_with_state_and_generator_expressions():
    def running(x):
        total = x * 0
        for i in range(4):
            total = total + x * i
            yield i, total

    def f(x):
        out = []
        for i, t in running(x):
            if t.sum() > 3:
                out.append(t)
                break
            out.append(-t)
        squares = (v * v for v in [x, x + 1])
        return out, sum(squares), next(iter(out))

    check(f, X, paths=3)


def test_tensor_first_dimension():
    def f(x):
        rows = torch.stack([x[0], x[0] * 2, -x[0]])
        out = torch.zeros(2)
        for i, row in enumerate(rows):
            if row.sum() > 0:
                out = out + row * (i + 1)
        for a, b in rows:
            out = out + a * b
        first, *_ = rows
        a, b = x[0]
        return out, first, a - b

    check(f, X, paths=2)


def test_nested_list_and_set_and_string():
    def f(x):
        out = x
        for row in [[1, 2], [3, 4]]:
            for v in row:
                if out.sum() > v:
                    out = out - v
        for c in "ab":
            out = out + (1 if c == "a" else 2)
        for v in {7}:
            out = out * v
        for v in (0.5, 0.25):
            out = out * v
        return out

    check(f, X, paths=2)


# -- else, break, continue ----------------------------------------------------------------------------------------------
def test_for_else_and_while_else():
    def f(x):
        for i in range(4):
            if x.sum() > 3 - i:
                y = x * i
                break
        else:
            y = x - 10
        n = 0
        while n < 3:
            n += 1
            if y.sum() > 2:
                break
            y = y + 1
        else:
            n = -n
        return y, n

    check(f, X, paths=4)


def test_symbolic_while_with_else():
    def f(x):
        n = 0
        while x.abs().sum() > 0.5:
            x = x * 0.6
            n += 1
            if n == 3:
                break
        else:
            n += 100
        return x, n

    check(f, X, paths=3)


def test_nested_loops_with_symbolic_break_in_the_inner():
    def f(x):
        hits = []
        out = x
        for i in range(3):
            for j in range(4):
                out = out * 0.8 + 0.1 * j
                if out.sum() > 1.5 - 0.3 * i:
                    break
            else:
                out = out - 1
            hits.append(j)
        return out, hits

    check(f, [(x * s,) for (x,) in X for s in (0.3, 1.0, 2.0)], paths=3)


def test_break_out_of_two_loops_by_flag():
    def f(x):
        found = False
        where = (-1, -1)
        for i in range(3):
            for j in range(3):
                if (x * (i + 1)).sum() > j + 1.5:
                    found = True
                    where = (i, j)
                    break
            if found:
                break
        return x * where[0] + where[1], found

    check(f, X, paths=3)


def test_continue_and_break_in_a_symbolic_while():
    def f(x):
        n, odd = 0, 0
        while n < 12:
            n += 1
            x = x * 0.9
            if x.sum() > 2:
                continue
            odd += 1
            if x.abs().sum() < 0.5:
                break
            if odd > 5:
                return x, odd, "many"
        return x, n, odd

    check(f, X, paths=4)
