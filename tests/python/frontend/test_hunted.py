# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that were once silently wrong, in the way people write them: each is right on every path over three calls, or refused."""

from __future__ import annotations

import copy
import re
import textwrap
from typing import Any

import pytest
import torch
from differential import same
from judge import load, outcome

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.passes import run_passes

HEADER = "import dataclasses\nfrom collections import Counter, defaultdict\nfrom typing import Any\nimport torch\nfrom torch import nn\n"
X = torch.tensor([[1.0, 0.5, 2.0], [-0.5, 1.0, 0.25]])
CALLS = [[X, -X, X * 2], [-X, X, -X], [X - 0.5, X.flip(1), X.flip(1) - 2]]
RIGHT = {
    "a missing key is made": "def net(x):\n    counts = Counter()\n    counts[int(x.argmax())] += 1\n    return len(counts), counts\n",
    "flags of an enum that stand for several": """
import enum
class Mode(enum.Flag):
    FAST = 1
    WARM = 2
def net(x):
    mode = Mode.FAST
    if x.sum() > 0:
        mode = mode | Mode.WARM
    if x[0, 0] > 0:
        mode ^= Mode.FAST
    return x + (2 if Mode.WARM in mode else 1), mode is Mode.FAST | Mode.WARM, bool(mode), mode.value
""",
    "the inverse of a flag": """
import enum
class Alarm(enum.Flag):
    HOT = 1
    FAST = 2
    LOW = 4
BOTH = Alarm.HOT | Alarm.LOW
def net(x):
    alarm = BOTH
    if x[0, 0] > 0: alarm &= ~Alarm.HOT
    if x.sum() > 0: alarm = alarm ^ Alarm.FAST & ~BOTH
    return x, alarm.value, ~alarm == Alarm.HOT
""",
    "a dataclass that looks at its fields": """
@dataclasses.dataclass
class Box:
    at: Any
    score: float
    tags: list = dataclasses.field(default_factory=list)
    def __post_init__(self):
        if self.score > 1:
            self.score = 1.0
            self.tags.append("clipped")
def net(x):
    box = Box(x[0], x.max().item())
    other = dataclasses.replace(box, at=x[1]) if x[0, 0] > 0 else box
    return box.score, box.tags, other.at, other is box, other.tags is box.tags
""",
    "the largest of one": """
def net(x):
    y = max([x])
    if x.sum() > 0: y += 1
    try:
        z = max(x)
    except RuntimeError:
        z = None
    return x, y is x, min((x,), default=3), max(x[:1]), z, max([x.sum().item()])
""",
    "an array at a run-time place": """
import numpy as np
TABLE = np.array([1.5, 2.5, 3.5])
def net(x):
    row = TABLE.copy()
    i = int(x.abs().sum()) % 3
    if x.sum() > 0:
        row[0] += 4
    kept = row[i]
    row[1] = 9
    return x * float(TABLE[i]), kept, TABLE[i - 3], float(row[1])
""",
    "batch norm in training": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
    def forward(self, x):
        if x.sum() > 0:
            self.norm.eval()
        y = self.norm(x)
        self.norm.train()
        return y, self.norm.running_mean.clone(), self.norm.running_var.clone(), self.norm.num_batches_tracked.clone()
""",
    "batch norm of halves in training": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3).half()
    def forward(self, x):
        y = self.norm((x + 40).half())
        return (y - 1 if x.sum() > 0 else y).float(), self.norm.running_mean.float(), self.norm.running_var.clone().float()
""",
    "a mapping pattern on what was joined": """
def step(command, x):
    match command:
        case {"op": "add", "by": by, **rest}:
            return x + by, len(rest)
        case {"op": "mul", "by": float(by)}:
            return x * by, -1
        case {"op": "mul", "by": int() as by}:
            return x * by * 10, -2
        case str(text):
            return x, len(text)
def net(x):
    command = {"op": "add" if x.sum() > 0 else "mul", "by": 2 if x[0, 0] > 0 else 2.0}
    if x.mean() < -0.5:
        command = "none"
    return step(command, x)
""",
    "True as a pattern": """
def net(x):
    match (x.sum() > 0).item():
        case True: y = x
        case False: y = -x
    match (bool(x[0, 0] > 0), bool(x[0, 1] > 0)):
        case (True, True): return y
        case (True, False) | (False, True): return y + 1
        case (False, _): return y + 2
""",
    "None in a pattern": """
@dataclasses.dataclass
class Best:
    of: Any
    at: Any = None
def net(x):
    best = Best(x, None if x.sum() > 0 else 2)
    match [1, best.at]:
        case [_, None]: y = x
        case [*_, int(k)]: y = x * k
    match best:
        case Best(at=None): return y
        case Best(of, at): return y * of * at
""",
    "keys that are equal": """
def net(x):
    table = {0.5: x, 1: -x, 2: x * 3, 0.0: x * 4}
    return table[x[0].argmax().item() / 2], {x: 2}[x]
""",
    "a tensor is no key": """
def net(x):
    try:
        return {0: x, 1: -x, 2: x}[x[0].argmax()]
    except KeyError:
        return x * 7
""",
    "an attribute on one path": """
class Box:
    __slots__ = ("n", "__dict__")
def net(x):
    box = Box()
    if x.sum() > 0:
        box.n = 1
        box.m = 2
    if x[0, 0] > 0.5:
        box.m = 3
    return hasattr(box, "n"), hasattr(box, "m"), "m" in vars(box), x
""",
    "a generator that is left early": """
def by_break(x):
    for i in range(3):
        if x.sum() * i > 2: break
        yield x * i
def by_return(x):
    for i in range(3):
        if x.sum() < -i: return
        yield x * i
def by_continue(x):
    for i in range(3):
        if x[0, i] > 0: continue
        yield x * i
def net(x):
    return [len(list(steps(x))) for steps in (by_break, by_return, by_continue)], x
""",
    "an operator that changes its object": """
class Sum:
    def __init__(self):
        self.total = 0
    def __iadd__(self, other):
        self.total = self.total + other
        return self
def net(x):
    a = b = Sum()
    if x.sum() > 0:
        a += x
    a += 1
    return b.total, a is b
""",
    "a list is changed and then replaced in one call": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s, self.t = [0], {"h": torch.zeros(2, 3)}
    def forward(self, x):
        self.s[0] += 1
        self.t["h"] = self.t["h"] + x
        if x.sum() > 0:
            self.s = [self.s[0] + 10]
            self.t = {"h": self.t["h"] * 2}
        return self.s[0], self.t["h"] * 1
""",
    "a list of an object is replaced on one side and changed on the other": """
class Box:
    pass
def net(x):
    box = Box()
    box.q, box.t = [1.0, [x, 2.0]], ([x.clone()], 2)
    old = box.q
    if x.sum() > 0:
        box.q, box.t = [5.0, [x + 1, 3.0]], ([x + 1], 3)
    elif x[0, 0] > 0:
        box.q[0] += 1
        box.t[0][0] = x * 2
    else:
        box.q[1][0].add_(1)
        box.q[1][1] = -1.0
        box.t[0][0].mul_(3)
    return box.q[0], box.q[1][0] * 1, box.q[1][1], old[0], box.t[0][0] * 1, box.t[1]
""",
    "a state is replaced on one side and changed on the other": """
from collections import deque
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = deque([0.0, 1.0, 2.0], maxlen=3)
    def forward(self, x):
        self.q.append(x.sum().item())
        if x[0, 0] > 0:
            self.q = deque(reversed(self.q), maxlen=3)
        elif x[0, 1] > 0:
            self.q.rotate(1)
        return list(self.q)
""",
    "a container is replaced on one side and changed on the other, in a loop": """
class Box:
    pass
def net(x):
    box = Box()
    box.q = {"k": [1.0, 0.0]}
    n = 0
    while x.sum() > n and n < 4:
        n += 1
        if x[0, 0] > n / 2:
            box.q = {"k": [box.q["k"][0] * 2, float(n)]}
        else:
            box.q["k"][1] += 1
    return box.q["k"][0], box.q["k"][1], n
""",
    "nested lists are changed and then replaced in one call": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = [[0, 1], 2]
    def forward(self, x):
        self.s[0][0] += 1
        if x.sum() > 0:
            self.s = [[self.s[0][0] + 1, 3], self.s[1] + 1]
        return self.s[0][0], self.s[0][1], self.s[1]
""",
    "a list with two names is replaced under one": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = [torch.zeros(2, 3)]
        self.all = {"s": self.s}
    def forward(self, x):
        self.s = [self.s[0] + x]
        return self.s[0] * 1, self.all["s"][0] * 1
""",
    "a range of a run-time length is what Python takes it for": """
def net(x):
    n = min(int(x.sum()), 4)
    r = range(n) if x[0, 0] > 0 else range(n, -3, -2)
    left = iter(r)
    first = next(left, None) if x[0, 1] > 0.6 else None
    pairs = [(i, float(v)) for i, v in zip(r, x[0])]
    return len(r), list(r), sum(i * i for i in r), 1 if r else 0, 1 in r, isinstance(r, range), type(r) is range, pairs, first, list(left)
""",
    "math asks whether a number is finite": """
import math
def net(x):
    v = (x / (x[0, 1] - 1)).sum().item()
    return math.isfinite(v), math.isinf(v), math.isnan(v), math.fabs(v)
""",
}
REFUSED = {
    "a row of a buffer that may be kept, by several runs": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('buf', torch.zeros(2, 3))
        self.t = torch.ones(2, 3)
        self.rows = list(self.buf.unbind(0))
    def forward(self, x):
        n = 0
        while n < 3 and 0 < x.sum() < 9:
            self.rows[0].add_(1)
            n += 1
        if int(x[0, 2]) % 2:
            self.t = self.buf
        return self.t is self.buf
""",
        "whether a tensor that an earlier call has kept",
    ),
    "the items of a range without a bound": (
        "def net(x):\n    return list(range(int(x.sum())))\n",
        "of which there may be any number",
    ),
    "ranges of run-time lengths are compared": (
        "def net(x):\n    return range(int(x.sum())) == range(3)\n",
        "a comparison of a range with a bound known only at run time",
    ),
    "a list with two names is replaced under one, and changed": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = [0, 5]
        self.all = [self.s]
    def forward(self, x):
        if x.sum() > 0:
            self.s = [self.s[0] + 10, self.s[1]]
        else:
            self.s[0] += 1
        return self.s[0], self.all[0][0]
""",
        "a list that two variables share on one path only is changed",
    ),
    "a generator yields in a loop": (
        """
def steps(x):
    n = 0
    while x.sum() < 2 and n < 3:
        x = x + 0.7
        n += 1
        yield x
    return n
def net(x):
    return len(list(steps(x)))
""",
        "a generator yields in a loop whose trip count is known only at run time",
    ),
    "a class pattern in a pattern": (
        "def net(x):\n    match [int(x.sum()), 1]:\n        case [int(k), _]: return k\n    return None\n",
        "a class pattern matches a number that is known only at run time",
    ),
}


def model_of(source: str) -> Any:
    """Return the model of a program, in a module of its own."""
    module = load(HEADER + source)
    return module.Net() if hasattr(module, "Net") else module.net


def check_right(source: str) -> None:
    """Compare a program with eager on every path, over several calls."""
    graph = stage(model_of(source), (X.clone(),))
    run_passes(graph)
    for calls in CALLS:
        model = model_of(source)
        state = [copy.deepcopy(graph_initial(v.initial)) for v in graph.state]
        for x in calls:
            want = outcome(lambda m=model, x=x: m(x.clone()))
            got = outcome(lambda x=x, state=state: interpret(graph, [x.clone()], state)[0])
            if any(isinstance(r, Exception) for r in (want, got)):
                assert type(want) is type(got), f"eager {want!r}, staged {got!r}"
            else:
                assert same(want, got), f"eager {want}, staged {got}"


def check_refused(source: str, why: str) -> None:
    """Check that a program is refused, and why."""
    with pytest.raises(UnsupportedError, match=re.escape(why)):
        stage(model_of(source), (X.clone(),))


@pytest.mark.parametrize("name", RIGHT)
def test_the_program_is_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_program_is_refused(name: str) -> None:
    check_refused(*REFUSED[name])


NOTHING_CHANGES = {
    "a module's own type": "self.l = self.l.to(x.dtype)\nreturn self.l(x)",
    "data": "self.l.weight.data = self.l.weight.data.contiguous()\nself.l.bias.data = self.l.bias.data.to(x.dtype)\nreturn self.l(x)",
    "data on one path": "if x.sum() > 0:\n    self.l.weight.data = self.l.weight.data\nreturn self.l(x)",
    "a buffer": "self.b = self.b.float()\nreturn self.l(x) + self.b",
    "a parameter": "self.l.weight.requires_grad_(True)\nself.eval()\nself.l.float()\nreturn self.l(x)",
}


@pytest.mark.parametrize("name", NOTHING_CHANGES)
def test_assignments_that_change_nothing(name: str) -> None:
    check_right(
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n        self.l = nn.Linear(3, 3)\n"
        "        self.register_buffer('b', torch.ones(3))\n    def forward(self, x):\n" + textwrap.indent(NOTHING_CHANGES[name], "        ")
    )
