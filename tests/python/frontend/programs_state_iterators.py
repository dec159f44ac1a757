# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that change state: iterators and other positions in branches (A), the same across calls (B), variables of outer functions (C).

Functions take a 2x3 float tensor; classes are models.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn


# -- A ------------------------------------------------------------------------------------------------------------------
def a_list_iterator_break(x):
    it = iter([x, x + 1, x + 2, x + 3])
    for v in it:
        if v.sum() > 3:
            break
    return len(list(it))


def a_zip_break(x):
    it = zip([x, x + 1, x + 2], [1, 2, 3])
    n = 0
    for v, k in it:
        if v.sum() > 3:
            break
        n += k
    return n, [k for _, k in it]


def a_enumerate_if(x):
    it = enumerate([x, x + 1, x + 2, x * 3])
    if x.sum() > 0:
        next(it)
    i, v = next(it)
    return i, v


def a_reversed_return(x):
    it = reversed([x, x + 1, x + 2])

    def take(z):
        if z.sum() > 0:
            return next(it)
        return next(it) * 2

    a = take(x)
    b = take(-a)
    return a, b, list(it)


def a_count_if(x):
    ids = itertools.count(5)
    if x.sum() > 0:
        x = x + next(ids)
    return x * next(ids)


def a_cycle_loop(x):
    it = itertools.cycle([1.0, 2.0, 3.0])
    for _ in range(4):
        if x.sum() > 0:
            x = x - next(it)
        else:
            x = x + 1
    return x, next(it)


def a_chain_break(x):
    it = itertools.chain([x], [x + 1, x + 2], (x + 3,))
    for v in it:
        if v.sum() > 3:
            break
    return [v for v in it]


def a_islice_continue(x):
    it = itertools.islice([1, 2, 3, 4, 5, 6], 1, 6, 2)
    got = []
    for k in range(2):
        if x.sum() > k:
            x = x + next(it)
            continue
        x = x * 2
    got.append(next(it, -1))
    return x, got


def a_range_iterator_else(x):
    it = iter(range(10))
    if x.sum() > 0:
        x = x + 1
    else:
        next(it)
        next(it)
    return x * next(it)


def a_dict_iterator(x):
    d = {"a": 1, "b": 2, "c": 3}
    it = iter(d.items())
    if x.sum() > 0:
        next(it)
    return next(it)


def a_map_break(x):
    it = map(lambda v: v + 1, [x, x * 2, x * 3])
    for v in it:
        if v.sum() > 2:
            break
    return list(it)


def a_generator_break(x):
    def gen():
        for k in range(4):
            yield x + k

    g = gen()
    for v in g:
        if v.sum() > 3:
            break
    return [v for v in g]


def a_generator_nonlocal(x):
    n = 0

    def gen():
        nonlocal n
        for _ in range(5):
            n += 1
            yield n

    g = gen()
    if x.sum() > 0:
        next(g)
    return x + n, next(g), n


def a_generator_send(x):
    def gen():
        total = 0.0
        while True:
            got = yield total
            total = total + (1.0 if got is None else got)

    g = gen()
    next(g)
    if x.sum() > 0:
        g.send(5.0)
    return g.send(1.0) + x


def a_star_unpack(x):
    it = iter([1, 2, 3, 4])
    a = b = 0
    if x.sum() > 0:
        a, *b = it
    return a, b, list(it)


def a_star_call(x):
    it = iter([1, 2, 3, 4])

    def f(*args):
        return len(args)

    n = 0
    if x.sum() > 0:
        n = f(*it)
    return n, list(it)


def a_in_iterator(x):
    it = iter([1.0, 2.0, 3.0])
    found = False
    if x.sum() > 0:
        found = 2.0 in it
    return found, list(it)


def a_comprehension(x):
    it = iter([1, 2, 3])
    got = []
    if x.sum() > 0:
        got = [v * 2 for v in it]
    return got, list(it)


def a_try_finally(x):
    it = iter([1, 2, 3, 4])
    try:
        if x.sum() > 0:
            next(it)
    finally:
        k = next(it)
    return x * k, list(it)


def a_early_return(x):
    it = iter([1, 2, 3, 4])

    def f(z):
        for k in it:
            if z.sum() > k:
                return k
        return -1

    a = f(x)
    return a, f(x + 1), len(list(it))


def a_numpy(x):
    a = np.zeros(3)
    if x.sum() > 0:
        a[0] = 5.0
    return float(a[0]), x


def a_numpy_return(x):
    a = np.arange(4.0)

    def f(z):
        if z.sum() > 0:
            a[1] += 10.0
            return z
        a[2] -= 1.0
        return -z

    f(x)
    f(-x)
    return x * float(a.sum()), a.tolist()


def a_numpy_break(x):
    a = np.zeros(3)
    for k in range(3):
        a[k] = 1.0
        if x.sum() > k:
            break
    return x, float(a.sum())


def a_bytearray(x):
    b = bytearray(b"abc")
    if x.sum() > 0:
        b.append(100)
    return x, len(b), b[0]


def a_bytearray_continue(x):
    b = bytearray(3)
    for k in range(3):
        if x.sum() > k:
            continue
        b[k] = 1
    return x, sum(b)


def a_unsqueeze_after_break(x):
    y = x + 1
    for k in range(3):
        if x.sum() > k:
            break
        y.unsqueeze_(0)
    return y


def a_iter_layers(x):
    layers = [torch.sin, torch.cos, torch.tanh]
    it = iter(layers)
    for f in it:
        x = f(x)
        if x.sum() > 1:
            break
    for f in it:
        x = f(x) + 1
    return x


def a_while_next(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    n = 0
    while x.sum() < 3 and n < 5:
        x = x + next(it)
        n += 1
    return x, n


def a_next_default_loop(x):
    it = iter([1.0, 2.0])
    for _ in range(4):
        if x.sum() < 3:
            x = x + next(it, 10.0)
    return x, list(it)


# -- B ------------------------------------------------------------------------------------------------------------------
class BCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = itertools.count(1)

    def forward(self, x):
        return x * next(self.ids)


class BCountIf(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = itertools.count(1)

    def forward(self, x):
        if x.sum() > 0:
            return x * next(self.ids)
        return x


class BCycle(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = itertools.cycle([1.0, 2.0, 3.0])

    def forward(self, x):
        return x * next(self.it)


class BList(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def forward(self, x):
        return x * next(self.it, 0.0)


class BEnumerate(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = enumerate(itertools.cycle([1.0, 2.0]))

    def forward(self, x):
        i, v = next(self.it)
        return x * v + i


class BNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = np.zeros(2)

    def forward(self, x):
        self.n[0] += 1
        return x * float(self.n[0])


class BNumpySet(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = np.zeros(2)

    def forward(self, x):
        self.n[:] = 0
        self.n[0] += 2
        return x * float(self.n[0])


class BBytearray(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = bytearray(4)

    def forward(self, x):
        self.b[1] += 1
        return x * self.b[1]


class BGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = (k for k in range(100))

    def forward(self, x):
        return x * next(self.g)


# -- C ------------------------------------------------------------------------------------------------------------------
def c_return_from_branch(x):
    k = 2.0

    def step(z):
        nonlocal k
        if z.sum() > 0:
            k = k + 1
            return z * k
        return z - k

    a = step(x)
    b = step(-a)
    return a, b, k


def c_two_cells(x):
    k, m = 2.0, 1

    def step(z):
        nonlocal k, m
        if z.sum() > 0:
            m += 1
            if z.max() > 1:
                k = k * 2
                return z
            return z + k
        return z - m

    return step(x), step(x + 1), step(-x), k, m


def c_closure_returned(x):
    def make(z):
        k = 1

        def get():
            return k

        if z.sum() > 0:
            k = 2
            return get
        return get

    return make(x)() + x


def c_tensor_cell(x):
    h = x

    def step(z):
        nonlocal h
        if z.sum() > 1:
            h = h + z
            return 1
        return 0

    n = step(x) + step(h)
    return h, n


def c_cell_in_loop(x):
    k = 0

    def step(z):
        nonlocal k
        for _ in range(3):
            if z.sum() > 2:
                k += 10
                return z
            k += 1
            z = z + 1
        return z

    return step(x), k, step(x * 2), k


def c_method(x):
    total = 0.0

    class Acc:
        def add(self, z):
            nonlocal total
            if z.sum() > 0:
                total = total + 1
                return self
            total = total - 1
            return self

    a = Acc()
    a.add(x).add(-x).add(x + 1)
    return x * total


def c_del(x):
    k = 1.0

    def f(z):
        nonlocal k
        if z.sum() > 0:
            k = 5.0
            return z
        return z * 2

    y = f(x)
    if k > 3:
        y = y + 100
    return y


def c_try(x):
    k = 0

    def f(z):
        nonlocal k
        try:
            if z.sum() > 0:
                k += 1
                return z
            return -z
        finally:
            k += 10

    return f(x), f(-x), k


def c_generator(x):
    k = 0

    def g(z):
        nonlocal k
        for i in range(3):
            if z.sum() > i:
                k += 1
            yield z + k

    return sum(g(x)), k


def c_lambda(x):
    k = [1.0]
    add = lambda v: k.append(v)

    def f(z):
        if z.sum() > 0:
            add(2.0)
            return z
        add(3.0)
        return z + 1

    y = f(x)
    return y * k[-1], len(k)
