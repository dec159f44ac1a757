# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs whose recursion is as deep as the data say."""

from __future__ import annotations

import collections
from typing import Any

import torch

#: The sums are below and above the bounds that the programs compare with.
VECTORS = [(torch.tensor(v),) for v in ([0.1, 0.2, 0.3], [5.0, 2.0, 3.0], [0.01, 0.02, 0.3], [-1.0, 0.92, 0.3], [1.5, 2.0, 0.1])]
_WORDS = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
_LEAVES = torch.full((7,), -1)
#: Rows, and the numbers of the left and right child of each: balanced, a comb, and one leaf.
TREES = [
    (_WORDS, torch.tensor([1, 3, 5, -1, -1, -1, -1]), torch.tensor([2, 4, 6, -1, -1, -1, -1])),
    (_WORDS + 1, torch.tensor([1, -1, 3, -1, 5, -1, -1]), torch.tensor([2, -1, 4, -1, 6, -1, -1])),
    (_WORDS, _LEAVES, _LEAVES),
]


class RAE(torch.nn.Module):
    """A recursive autoencoder over a tree that is an input, as in Cocktailer's evaluation."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(2 * width, width)

    def encode(self, words, left, right, node):
        if left[node] < 0:
            return words[node]
        pair = torch.cat([self.encode(words, left, right, left[node]), self.encode(words, left, right, right[node])])
        return torch.tanh(self.encoder(pair))

    def forward(self, words, left, right):
        return self.encode(words, left, right, torch.tensor(0))


class TreeLSTM(torch.nn.Module):
    """A binary Tree-LSTM whose forward calls itself; what it returns is a tuple."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(2 * width, 5 * width)
        self.visited = 0

    def forward(self, words, left, right, node: Any = 0):
        self.visited += 1
        if left[node] < 0:
            return torch.tanh(words[node]), words[node]
        a, c = self(words, left, right, left[node])
        b, d = self(words, left, right, right[node])
        i, f, g, o, u = self.cell(torch.cat([a, b])).chunk(5)
        memory = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * c + torch.sigmoid(g) * d
        return torch.sigmoid(o) * torch.tanh(memory), memory


class Visits(torch.nn.Module):
    """What it counts and keeps is state of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("seen", torch.zeros(3))

    def walk(self, x):
        self.count += 1
        if x.sum() > 4:
            return x
        self.seen = self.seen + x
        y = self.walk(x * 2 + 0.5)
        self.seen = self.seen * 0.5
        return y + self.walk(x * 3 + 1) + self.count

    def forward(self, x):
        return self.walk(x), self.seen, self.count


def direct(x):
    def again(x):
        if x.sum() > 4:
            return x
        y = again(x * 2 + 1)
        return y + again(x + 1)

    return again(x)


def last_call(x):
    def again(x, n):
        if x.sum() > 4:
            return x, n
        return again(x * 2 + 1, n + 1)

    return again(x, 0)


def mutual(words, left, right):
    def even(i):
        if left[i] < 0:
            return words[i]
        return odd(left[i]) * 2 + odd(right[i])

    def odd(i):
        if right[i] < 0:
            return words[i] + 1
        return even(right[i]) - even(left[i])

    return even(0)


def both_of_two(words, left, right):
    """Each calls itself and the other, and has values of its own to keep."""

    def f(i, depth):
        if left[i] < 0:
            return words[i]
        a = f(int(left[i]), depth + 1)
        b = g(int(right[i]), depth + 1)
        return a - 2 * b + depth

    def g(i, depth):
        h = words[i] * 3
        if right[i] < 0:
            return h
        a = g(int(left[i]), depth + 1)
        b = f(int(right[i]), depth + 1)
        return a * 2 + b * h + depth

    return f(0, 0), g(0, 0)


def three(words, left, right):
    def f(i):
        if left[i] < 0:
            return words[i]
        return g(int(left[i])) + f(int(right[i]))

    def g(i):
        if left[i] < 0:
            return words[i] * 2
        x = h(int(right[i]))
        return x * f(int(left[i])) - x

    def h(i):
        if left[i] < 0:
            return words[i] - 1
        return h(int(left[i])) + g(int(right[i])) * f(int(right[i]))

    return f(0)


def ackermann(x):
    def a(m, n):
        if m == 0:
            return n + 1
        if n == 0:
            return a(m - 1, 1)
        return a(m - 1, a(m, n - 1))

    return a(int(x[0] > 1) + 1, 2)


def loop_within(words, left, right):
    def f(i):
        h = words[i]
        j = int(left[i])
        while j >= 0:
            h = h * 0.5 + f(j)
            j = int(right[j]) - 1
        return torch.tanh(h)

    return f(0)


def within_loop(words, left, right):
    def f(i):
        if left[i] < 0:
            return words[i]
        return torch.tanh(f(left[i]) - f(right[i]))

    total, k = torch.zeros(4), 0
    while total.sum() < 3 and k < 5:
        total = total + f(k) + 1
        k += 1
    return total, k


def children_in_a_list(words, left, right):
    def f(i, parents):
        children = (parents == i).nonzero().flatten()
        h = words[i]
        for j in children.tolist():
            children += 1  # the list has the numbers that were there
            h = h + 0.5 * f(j, parents)
        return torch.tanh(h)

    parents = torch.full((7,), -1)
    parents[left[left >= 0]] = torch.arange(7)[left >= 0]
    parents[right[right >= 0]] = torch.arange(7)[right >= 0]
    return f(0, parents)


def conditional_expression(x):
    again = lambda y, n: y if y.sum() > 4 else again(y * 2 + 1, n + 1) - again(y + 2, n) * n  # noqa: E731
    return again(x, 1)


def early_returns(x):
    def f(y):
        for k in range(3):
            if y[k] > 1:
                return y + k
        r = f(y + 1)
        for k in range(3):
            if r[k] > 2:
                return r - k
        return r

    return f(x)


def two_outside(x):
    def f(y, n, flag):
        if y.sum() > 4:
            return y * n if flag else -y
        return f(y * 2 + 1, n + 1, not flag)

    a = f(x, 0, True)
    return a + f(a * 0.1, 5, False), a if x[0] > 1 else f(x + 2, 1, True)


def list_passed_down(x):
    kept = [x, x + 1]

    def f(y, kept):
        kept[0] = kept[0] + y
        if y.sum() > 4:
            return y
        r = f(y * 2 + 1, kept)
        kept[1] = kept[1] * 2
        return r

    return f(x, kept), kept


def list_of_each_call(x):
    def f(h, n):
        if h[0].sum() > 4:
            return h
        r = f([h[0] * 2 + 1, h[1] + 1], n + 1)
        return [r[0], r[1] + h[1] * n]

    return f([x, x], 0)


def shared_memory(x):
    total = torch.zeros(3)

    def f(y):
        total.add_(y)
        if y.sum() > 4:
            return y
        r = f(y * 2 + 1)
        total.mul_(0.5)
        return r + f(y + 3)

    return f(x), total


def nothing_returned(x):
    seen = {"t": x}

    def f(y):
        seen["t"] = seen["t"] + y
        if y.sum() > 4:
            return
        f(y * 2 + 1)
        f(y + 2)
        seen["t"] = seen["t"] * 0.5

    f(x)
    return seen["t"]


def variables_of_the_function_around(x):
    n, last = 0, x

    def f(y):
        nonlocal n, last
        n += 1
        if y.sum() > 4:
            last = y
            return y
        r = f(y * 2 + 1)
        n *= 2
        return r + last

    return f(x), n, last


def none_at_first(x):
    def f(y, h=None):
        if h is None:
            h = torch.zeros(3)
        if y.sum() > 4:
            return y + h
        return f(y * 2 + 1, h + y)

    return f(x)


def attribute_not_there_at_first(x):
    class Walk:
        n = 0

        def __call__(self, y):
            self.n += 1
            return y if y.sum() > 4 else self(y * 2 + 1) + self.n

    walk = Walk()
    return walk(x), walk.n


def defined_within(x):
    def outer(y):
        def inner(z):
            if z.sum() > 4:
                return z
            return outer(z * 2 + 1) + y

        return inner(y)

    return outer(x)


Pair = collections.namedtuple("Pair", "a b")


def named_tuple(x):
    def f(y, n):
        if y.sum() > 4:
            return Pair(y, {"n": n})
        p = f(y * 2 + 1, n + 1)
        return Pair(p.a + 1, {"n": p.b["n"] * 2})

    return f(x, 0)


def error_on_one_path(x):
    def f(y, n):
        if y.sum() > 9:
            raise ValueError("too big")
        if y.sum() > 4:
            return y
        return f(y * 3 + 1, n + 1) * n

    return f(x, 0)


def by_map(x):
    def f(y):
        if y.sum() > 4:
            return y
        return sum([f(v) for v in (y * 2 + 1, y + 3)])

    return f(x)


def draws(x):
    def f(y):
        if y.sum() > 4:
            return y + torch.rand(3)
        return f(y + torch.rand(3)) - torch.rand(3)

    torch.manual_seed(3)
    return f(x), torch.rand(2)


def deep_counter(x):
    """Python knows the depth, but it is great: the counter becomes a number of the graph."""

    def f(y, n):
        if n == 0 or y.sum() > 4:
            return y
        return f(y * 1.1, n - 1) + n

    return f(x, 20)


def result_changed_in_place(x):
    def f(y):
        if y.sum() > 4:
            return y * 1
        r = f(y * 2 + 1)
        r.add_(y)
        return r

    return f(x)


#: By the inputs that they take.
RIGHT = {
    "vectors": (
        direct, last_call, ackermann, conditional_expression, early_returns, two_outside, list_passed_down, list_of_each_call,
        shared_memory, nothing_returned, variables_of_the_function_around, none_at_first, attribute_not_there_at_first, defined_within,
        named_tuple, error_on_one_path, by_map, draws, deep_counter, result_changed_in_place, Visits(),
    ),
    "trees": (RAE(), TreeLSTM(), mutual, both_of_two, three, loop_within, within_loop, children_in_a_list),
}  # fmt: skip
