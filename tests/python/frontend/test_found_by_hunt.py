# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the hunt has found, made small: right in every call of every session, or refused."""

from __future__ import annotations

import textwrap

import pytest
from judge import judge

HEADER = """\
import collections, dataclasses, itertools, types
import torch

MODULE = types.ModuleType("other")
MODULE.N = 0


class Kept:
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.t = torch.zeros(2, 3)
        self.u = torch.zeros(2, 3)
        self.register_buffer("buf", torch.zeros(2, 3))
        self.row = self.buf[0]

    def forward(self, x):
"""

RIGHT = {
    "a module without a file keeps its state": """
        if x.sum() > 2:
            MODULE.N += 1
        return MODULE.N
    """,
    "a list grows in a range with a bound": """
        a = []
        for i in range(int(x.abs().sum()) % 3):
            a.append(x + i)
        return a
    """,
    "a list grows in a loop that a counter ends": """
        a, i = [], 0
        while i < 3 and x.sum() > i:
            a.append(x + i)
            i += 1
        return len(a), sum(a)
    """,
    "an iterator is advanced in a range with a bound": """
        a = iter([1, 2, 3, 4, 5])
        for _ in range(min(int(x.abs().sum()), 4)):
            next(a)
        return list(a), len(list(a))
    """,
    "the smallest by a key": """
        log = []
        def size(v):
            log.append(1)
            return abs(v)
        a, b = x[0, 0], x.sum()
        best = min(a, b, key=size)
        last = max([a, b, a + 1], key=lambda v: v * v)
        return best, best is a, last is b, len(log), max([x.sum().item(), 1], key=lambda v: -v), max((3, -2), key=abs, default=4)
    """,
    "an attribute that one call sets, and the next asks for": """
        if x.mean() > 0.5:
            self.fresh = x
        return hasattr(self, "fresh")
    """,
    "an attribute that a loop sets, and the next call asks for": """
        for _ in range(int(x.abs().sum()) % 3):
            self.fresh = x
        return hasattr(self, "fresh")
    """,
    "an attribute that two branches set, and the next call asks for": """
        if x.mean() > 0.5:
            if x[0, 1] > 0:
                self.fresh = x
        return hasattr(self, "fresh")
    """,
    "an attribute is deleted in a loop": """
        o = Kept()
        o.a = 1
        while x.sum() < 8:
            delattr(o, "a") if hasattr(o, "a") else None
            x = x + 1
        return x
    """,
    "what is augmented is read before the right side changes it": """
        log = []

        class Box:
            def __init__(self):
                self.n_, self.items = 0, [0, 0]

            @property
            def n(self):
                log.append("read")
                return self.n_

            @n.setter
            def n(self, n):
                log.append("written")
                self.n_ = n

            def step(self, v):
                log.append("step")
                self.n_ += 10
                self.items[0] += 5
                return 1 if v > 0 else 2

        o = Box()
        o.n += o.step(x[0, 0])
        o.items[0] += o.step(x[1, 0])
        return o.n, o.items, log
    """,
    "a list of nodes is turned around: targets are stored into from left to right": """
        first = None
        for v in x[:, 0]:
            if v > 0:
                node = Kept()
                node.v, node.next = v, first
                first = node
        last = None
        while first is not None:
            first.next, last, first = last, first, first.next
        found, n = [0, 0, 0], 1
        while last:
            found[n], n = last.v, n + 1
            last = last.next
        (found[0], [n, found[n - 1]], *rest) = n, [2, 9], 4
        return found, n, rest
    """,
    "deleted in brackets": """
        o, d = Kept(), {"a": 1, "b": 2}
        o.h, o.g = 3, 4
        if x[0, 0] > 0:
            del (d["a"], [o.h])
        if x[1, 0] > 0:
            del [d["b"]], o.g
        return sorted(d), sorted(vars(o))
    """,
    "an item was chosen when a list had others": """
        fs, n = [torch.sin, torch.cos, torch.abs], x[0].argmax().item()
        f = fs[n]
        fs.insert(0, fs.pop())
        q = collections.deque([torch.sin, None, torch.abs])
        g = q[n]
        q.rotate(1)
        return f(x), g is None, fs[n](x), q[n] is None
    """,
    "items of lists with methods of their own": """
        class Own(list):
            def __len__(self):
                return 2

            def __getitem__(self, i):
                return "none" if i == 0 else super().__getitem__(i - 1)

            def __setitem__(self, i, v):
                super().__setitem__(i, v * 2)

        class Counted(list):
            def __len__(self):
                return 1

            def __iter__(self):
                return iter([7])

        class Layers(torch.nn.ModuleList):
            def __getitem__(self, i):
                return super().__getitem__(2 - i)

        n, own, counted = x[0].argmax().item(), Own([1, 2, 3]), Counted([1, 2, 3])
        own[n], counted[n] = 5, 9
        layers = Layers([torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.Identity()])
        there = [list.__getitem__(h, i) for h in (own, counted) for i in range(3)]
        return own[n], counted[n], there, layers[n](x)
    """,
    "characters of texts": """
        try:
            found = "xyz"[int(x[0, 1] * 2)]
        except IndexError:
            found = "none"
        return found + "ab"[(x[0, 0] > 0).item()] + "ab"[x[1, 0] > 0] + "abc"[x[0].argmax().item()]
    """,
}
REFUSED = {
    "a change under another name of what a branch replaces": """
        if x.sum() > 1:
            self.buf = x
        self.row.add_(1)
        return self.buf
    """,
    "a change of what two names may be": """
        self.t.add_(1)
        y = self.u + 0
        if x.sum() > 1:
            self.t = self.buf
        if x[0, 0] > 0:
            self.u = self.buf
        return y
    """,
    "a list grows in a loop without a bound": """
        a = []
        while x.sum() < 8:
            a.append(x)
            x = x + 1
        return a
    """,
    "a tensor that the model has kept under another name": """
        if x.sum() > 2:
            self.t = self.buf
        return self.t is self.buf
    """,
    "an attribute of a namespace is deleted in a loop": """
        o = types.SimpleNamespace(a=1)
        while x.sum() < 8:
            delattr(o, "a") if hasattr(o, "a") else None
            x = x + 1
        return hasattr(o, "a")
    """,
}


def program(body: str) -> str:
    """Return a program with the body of a forward."""
    return HEADER + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n"


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    verdict = judge(program(RIGHT[name]), max_loop_trips=None)
    assert verdict.kind == "right", verdict.reason


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    verdict = judge(program(REFUSED[name]), max_loop_trips=None)
    assert verdict.kind == "refused", verdict.reason
