# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Faults of a front end: programs, and what a front end that has the fault makes of them, as the same file with one line changed.

The classes are those in which programs were once compiled to something else without a word.
"""

from __future__ import annotations

import torch
from fault_harness import Fault, Variants

VARIANTS = Variants()
X = torch.tensor([[0.5, -1.0, 0.25], [0.125, 0.75, -0.5]])
#: Inputs whose sums lie on both sides of the thresholds of the programs.
CALLS = [(X,), (X + 1,), (-X - 1,), (X + 3,), (X * 0.1,), (X + 0.2,), (torch.tensor([[1.0, -1.0, 1.5], [1.0, -1.0, -1.0]]),)]


def _fault(name: str, text: str, old: str, new: str, calls: object = CALLS, **options: object) -> Fault:
    return Fault(name, "front end", VARIANTS.program(name, text, old, new, calls, **options))  # type: ignore[arg-type]


def _forward(body: str, init: str = "pass") -> str:
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    head = f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        torch.manual_seed(3)\n        {init}\n"
    return f"{head}    def forward(self, x):\n{lines}\n"


FAULTS = [
    _fault(
        "A: an iterator's position at a break is forgotten",
        _forward("it = iter([x, x + 1, x + 2, x + 3])\nfor v in it:\n    if v.sum() > 3: break\nleft = len(list(it))\nreturn x * left"),
        "left = len(list(it))",
        "left = 0",
    ),
    _fault(
        "A: an in-place view after a break",
        _forward("y = x + 0\nfor k in range(3):\n    y = y + k\n    if y.sum() > 2: break\nreturn y * k"),
        "return y * k",
        "return y * 2",
    ),
    _fault(
        "B: a counter of the model stands still between calls",
        _forward("self.n = self.n + 1\nreturn x * self.n", "self.n = 0"),
        "return x * self.n",
        "return x * 1",
    ),
    _fault(
        "C: a cell that a branch rebinds keeps its first value",
        _forward(
            "k = 2.0\ndef step(z):\n    nonlocal k\n    if z.sum() > 0:\n        k = k + 1\n        return z * k\n    return z - k\n"
            "a = step(x)\nb = step(-a)\nreturn a, b, k"
        ),
        "return a, b, k",
        "return a, b, 2.0",
    ),
    _fault(
        "D: a buffer that a branch changes is not written back",
        _forward("if x.sum() > 0:\n    self.h = self.h + x\nreturn self.h * 1", "self.register_buffer('h', torch.zeros(2, 3))"),
        "    self.h = self.h + x",
        "    pass",
    ),
    _fault(
        "D: a module's flag is set on both sides",
        _forward("self.on = False\nif x.sum() > 0:\n    self.on = True\nreturn x + 1 if self.on else x - 1", "self.on = False"),
        "(self, x):\n        self.on = False",
        "(self, x):\n        self.on = True",
    ),
    _fault(
        "E: a callback's effect on a list is lost",
        _forward(
            "seen = []\ndef f(z):\n    seen.append(z * 2)\n    return z\n"
            "if x.sum() > 0:\n    y = list(map(f, [x]))[0]\nelse:\n    y = x - 1\n"
            "return y + len(seen)"
        ),
        "    seen.append(z * 2)",
        "    pass",
    ),
    _fault(
        "F: a joined value is never the tensor that it was",
        _forward("def clip(z):\n    if z.sum() > 2: return z * .5\n    return z\ny = clip(x)\nreturn y + 10 if y is not x else y"),
        "return y + 10 if y is not x else y",
        "return y + 10",
    ),
    _fault(
        "G: a loop's header parts two names of one list",
        _forward("a = [x]\nb = a\nk = 0\nwhile a[0].sum() < 10 and k < 5:\n    a[0] = a[0] + 1\n    k = k + 1\nreturn b[0] * 1"),
        "b = a",
        "b = [x]",
    ),
    _fault(
        "H: a deque loses its length",
        "import collections\n"
        + _forward("q = collections.deque([x, x + 1], 2)\nif x.sum() > 0:\n    q.append(x * 3)\nreturn q[0], len(q)"),
        "collections.deque([x, x + 1], 2)",
        "collections.deque([x, x + 1])",
    ),
    _fault(
        "I: one memory by two names",
        _forward(
            "o = torch.nn.Identity()\nif x.sum() > 0:\n    o.h = x + 1\nelse:\n    o.__dict__['h'] = x * 5\nreturn o.h * 1",
        ),
        "x * 5",
        "x + 1",
    ),
    _fault(
        "J: a list of a base class is not state",
        "class Base(nn.Module):\n    seen = [0]\n"
        + _forward("self.seen[0] = self.seen[0] + 1\nreturn x * self.seen[0]", "pass").replace("(nn.Module)", "(Base)"),
        "return x * self.seen[0]",
        "return x * 1",
    ),
    _fault(
        "K: a view of a buffer does not write to it",
        _forward("self.k[0] += x[0]\nreturn self.k * 1", "self.register_buffer('k', torch.zeros(2, 3))"),
        "self.k[0] += x[0]",
        "y = self.k + x   ",
    ),
    _fault(
        "L: what eager raises is computed",
        _forward("n = (x > 0).sum()\nif n > 2:\n    raise ValueError('many')\nreturn x * n"),
        "    raise ValueError('many')",
        "    n = n * 2",
    ),
    _fault(
        "M: an integer becomes a float",
        _forward("n = int((x > 0).sum())\nreturn n * 2"),
        "return n * 2",
        "return n * 2.0",
    ),
    _fault(
        "O: an error of the compiler becomes one of the program",
        _forward("if x.sum() > 1:\n    y = x.reshape(3, 2).t()\nelse:\n    y = x * 1\nreturn y * 1"),
        "    y = x.reshape(3, 2).t()",
        "    raise RuntimeError('shape')",
    ),
    _fault("a branch is inverted", _forward("if x.mean() > 0.5:\n    return x * 2\nreturn x - 1"), "x.mean() > 0.5", "x.mean() <= 0.5"),
    _fault(
        "a join takes one side",
        _forward("y = x\nif x.sum() > 1:\n    y = x * 2\nelse:\n    y = x - 1\nreturn y + 1"),
        "    y = x - 1",
        "    y = x * 2",
    ),
    _fault(
        "a stale constant",
        _forward("t = 0.5\nif x.sum() > 0:\n    t = 0.75\nreturn x * t"),
        "    t = 0.75",
        "    t = 0.5",
    ),
    _fault(
        "a loop makes one trip too few",
        _forward("k = 0\nwhile x.sum() < 3 and k < 4:\n    x = x + 0.5\n    k += 1\nreturn x, k"),
        "k < 4",
        "k < 3",
    ),
    _fault(
        "a loop makes one trip too many",
        _forward("n = int((x > 0).sum())\ny = x * 1\nfor k in range(n):\n    y = y * 1.5 + k\nreturn y"),
        "range(n)",
        "range(n + 1)",
    ),
    _fault(
        "a state variable is set too early",
        _forward("old = self.h\nself.h = self.h * 0.5 + x\nreturn old + 1", "self.register_buffer('h', torch.zeros(2, 3))"),
        "return old + 1",
        "return self.h + 1",
    ),
    _fault("two results change places", _forward("if x.sum() > 0:\n    return x * 2, x - 1\nreturn x, x"), "x * 2, x - 1", "x - 1, x * 2"),
    _fault(
        "a comparison is not strict",
        _forward("n = int((x > 0).sum())\nif n > 3:\n    return x * 2\nreturn x - 1"),
        "n > 3",
        "n >= 3",
    ),
    _fault("the other operand of `or`", _forward("if x.sum() > 2 or x[0, 0] < 0:\n    return x * 2\nreturn x - 1"), " or x[0, 0] < 0", ""),
    _fault(
        "a switch's last case is lost",
        _forward("k = int((x > 0).sum()) % 3\nreturn [x + 1, x * 2, x - 3][k]"),
        "x - 3",
        "x * 2",
    ),
    _fault(
        "finally runs on one way out only",
        _forward(
            "n = 0\n"
            "for k in range(2):\n    try:\n        if x.sum() > 1: continue\n        n = n + 1\n"
            "    finally:\n        n = n + 10\nreturn x * n"
        ),
        "n = n + 10",
        "n = n + 10 if x.sum() <= 1 else n",
    ),
    _fault(
        "a weight of another layer",
        _forward("if x.sum() > 1:\n    return self.a(x)\nreturn self.b(x)", "self.a = nn.Linear(3, 3); self.b = nn.Linear(3, 3)"),
        "return self.b(x)",
        "return self.a(x)",
    ),
]
