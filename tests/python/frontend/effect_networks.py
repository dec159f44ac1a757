# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What all programs of the hunt begin with, and the state that their networks may have."""

from __future__ import annotations

import re
import textwrap

HEADER = """\
import array, collections, contextlib, contextvars, copy, dataclasses, functools, itertools, math, operator, queue, re, types
import numpy as np
import torch
from torch import nn

N = 0
TABLE = {"n": 0, "t": torch.zeros(2, 3)}
VAR = contextvars.ContextVar("VAR", default=0)
MODULE = types.ModuleType("other")
MODULE.N = 0


class Slots:
    __slots__ = ("n", "t")

    def __init__(self):
        self.n, self.t = 0, torch.zeros(2, 3)


class Base:
    shared = [0]
    made = 0


class Counter(Base):
    def __init__(self):
        self.n = 0
        self._level = 0

    def __call__(self):
        self.n += 1
        return self.n

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value + 1

    def __iadd__(self, other):
        self.n += other
        return self

    def __enter__(self):
        self.n += 1
        return self

    def __exit__(self, *error):
        self.n += 10
        return False

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.n += 1
        return i

    def __eq__(self, other):
        self.n += 1
        return True

    def __hash__(self):
        return 7


@dataclasses.dataclass
class Data:
    n: int = 0
    items: list = dataclasses.field(default_factory=lambda: [0])


def bump():
    global N
    N += 1
    return N


def remember(value, seen=[0]):
    seen[0] += value
    return seen[0]


CALLS = [0]


@functools.lru_cache(None)
def cached(k):
    CALLS[0] += 1
    return k + CALLS[0]


@contextlib.contextmanager
def entered(log):
    log.append(1)
    try:
        yield log
    finally:
        log.append(2)


@functools.singledispatch
def dispatched(x, log):
    log.append("object")


@dispatched.register
def _(x: int, log):
    log.append("int")


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, z, act):
        if z.sum() > 1:
            self.calls += 1
            act()
            return z * 0.5
        return z
"""

#: What a network has if its forward names it: the state that is one memory stands together.
STATE = {
    "lin": "self.lin = nn.Linear(3, 3).requires_grad_(False)\nself.lin.weight.copy_(torch.eye(3) * 0.5)\nself.lin.bias.fill_(0.25)",
    "lins": "self.lins = nn.ModuleList([nn.Tanh(), nn.ReLU()])",
    "sub": "self.sub = Sub()",
    "buf rows _buffers": "self.register_buffer('buf', torch.zeros(2, 3))\nself.rows = list(self.buf.unbind(0))",
    "n __dict__ vars": "self.n = 0",
    "t": "self.t = torch.zeros(2, 3)",
    "items": "self.items = [0, torch.zeros(2, 3)]",
    "table": "self.table = {'n': 0}",
    "slots": "self.slots = Slots()",
    "counter": "self.counter = Counter()",
    "space": "self.space = types.SimpleNamespace(n=0)",
    "data": "self.data = Data()",
    "array": "self.array = np.zeros(2)",
    "window past": "self.window = []\nself.past = None",
    "cache marks": "self.cache = {}\nself.marks = set()",
    "frames": "self.frames = collections.deque(maxlen=2)",
    "ids": "self.ids = itertools.count(1)",
    "cycle": "self.cycle = itertools.cycle([1, 2, 3])",
    "queue": "self.queue = collections.deque([1, 2, 3], maxlen=3)",
    "partial": "self.partial = functools.partial(remember, seen=[0])",
}


def network(forward: list[str]) -> str:
    """Return a class ``Net`` with the lines of a forward, and the state that they name."""
    named = {word for line in forward for word in re.findall(r"\w+", line)}
    state = [line for names, text in STATE.items() if named & set(names.split()) for line in text.split("\n")]
    init = ["def __init__(self):", *textwrap.indent("\n".join(["super().__init__()", *state]), "    ").split("\n"), ""] if state else []
    lines = [*init, "def forward(self, x):", *textwrap.indent("\n".join(forward), "    ").split("\n")]
    return "\n\nclass Net(nn.Module):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
