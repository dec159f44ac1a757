# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists and dicts that a path, a trip or a call puts in the place of others, while the others are changed too."""

from __future__ import annotations

import pytest
import torch
from test_hunted import check_refused, check_right, model_of

from dycl_tvm.frontend.python import stage


def kept(forward: str, attributes: str = "self.h = [0, 1]") -> str:
    """Return a network with a state and a forward, both as statements."""
    init = "\n".join(f"        {line}" for line in attributes.split("\n"))
    body = "\n".join(f"        {line}" for line in forward.strip().split("\n"))
    return f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}\n    def forward(self, x):\n{body}\n"


RIGHT = {
    "changed, then replaced": kept("snap = list(self.h)\nself.h[0] += 1\nif x.sum() > 0:\n    self.h = snap\nreturn x, self.h[0], snap[0]"),
    "changed, then replaced in every call": kept("new = [self.h[0] + 2, 5]\nself.h[1] += 1\nself.h = new\nreturn x, self.h[1]"),
    "replaced by an equal one": kept("self.h[0] += 1\nn = self.h[0]\nself.h = [0, 1]\nreturn x, n, self.h[0]"),
    "a dict rolled back": kept(
        "old = {**self.d, 'xs': list(self.d['xs'])}\nself.d['xs'][0] *= 2\nself.d['n'] += 1\nif x.sum() > 0:\n    self.d = old\n"
        "return x * self.d['xs'][0], self.d['n']",
        "self.d = {'n': 0, 'xs': [1.0, 2.0]}",
    ),
    "two that change places": kept(
        "self.h[0] += self.k[0] + 1\nif x.sum() > 0:\n    self.h, self.k = self.k, self.h\nreturn x, self.h[0], self.k[0]",
        "self.h = [0]\nself.k = [5]",
    ),
    "in a tuple that is replaced": kept(
        "a, b = self.t\n(a if x.sum() > 0 else b)[0] += 1\nif a[0] > b[0]:\n    self.t = (b, a)\nreturn x, self.t[0][0], a[0]",
        "self.t = ([0], [0])",
    ),
    "the first of a queue gets another key on one path, and goes to its end": kept(
        "v = self.q.pop(0)\nif x.sum() > 0:\n    v['m'] = 1\nself.q.append(v)\nreturn x, v['n'], len(v)", "self.q = [{'n': 1}, {'n': 2}]"
    ),
    "the first of a queue gets longer on one path, and goes to its end": kept(
        "v = self.q.pop(0)\nif x.sum() > 0 and len(v) < 2:\n    v.append(4)\nself.q.append(v)\nreturn x, sum(v)", "self.q = [[1], [2]]"
    ),
    "replaced on one path, changed on the other": """
def net(x):
    items = [0, x]
    held = [items]
    if x.sum() > 0:
        held[0] = [5, x + 1]
    else:
        items[0] = 7
    return x, held[0][0], held[0][1], items[0]
""",
    "within another that is replaced on one path": """
def net(x):
    inner = [1]
    held = {"t": (inner, 2)}
    if x.sum() > 0:
        held["t"] = ([3], 2)
    else:
        inner[0] = 6
    return x, held["t"][0][0], inner[0]
""",
    "changed and replaced in each trip": """
class Box: pass
def net(x):
    box = Box()
    box.h = [0, 1]
    while x.sum() < 5:
        box.h[1] = box.h[1] * 2
        box.h = [box.h[0] + box.h[1], box.h[1]]
        x = x + 1
    return x, box.h[0], box.h[1]
""",
    "an attribute's dict that has another name": kept(
        "if x.sum() > 0:\n    self.b.n += 1\nelse:\n    self.d['n'] += 5\nreturn x, self.b.n, self.d['n']",
        "self.b = type('Box', (), {})()\nself.b.n = 0\nself.d = self.b.__dict__",
    ),
}
_TWO_NAMES = "that two variables share on one path only is changed: an earlier call may have left it so"
_WHICH = "that an earlier call has kept is another of the model's is not known"
_ALIAS = "self.h = [0, 1]\nself.k = self.h"
REFUSED = {
    "one of two names goes to a third place": (
        kept(
            "if x.sum() > 0:\n    self.m[0] += 1\nself.m = self.k\nself.k = self.u\nreturn x, self.u[0]",
            "self.k = [5]\nself.m = [5]\nself.u = [1]",
        ),
        _TWO_NAMES,
    ),
    "memory with two names goes to a third place": (
        kept(
            "if x.sum() > 0:\n    self.m.add_(1)\nself.m = self.k\nself.k = self.u\nreturn self.u",
            "self.k = torch.zeros(3)\nself.m = torch.zeros(3)\nself.u = torch.ones(3)",
        ),
        "what one call leaves behind is read by the next",
    ),
    "an input that was kept goes to a third place": (
        kept(
            "if x.sum() > 0:\n    self.m.add_(1)\nself.m = self.k\nself.k = x\nreturn x * 2",
            "self.k = torch.zeros(2, 3)\nself.m = torch.zeros(2, 3)",
        ),
        "may be an input of an earlier call",
    ),
    "nested deeper in every call": (
        kept(
            "if x.sum() > 0:\n    self.h = (self.h, 1)\nself.a = self.h\nn, v = 0, self.a\nwhile isinstance(v, (list, tuple)):\n"
            "    n, v = n + 1, v[0]\nreturn x * n",
            "self.h = [1]\nself.a = True",
        ),
        "the state that one call leaves for the next was not complete after 32 rounds",
    ),
    "one of two names is replaced": (
        kept("self.h[0] += 1\nif x.sum() > 0:\n    self.h = [3, 4]\nreturn x, self.h[0], self.k[0]", _ALIAS),
        _TWO_NAMES,
    ),
    "the other of two names is changed": (
        kept("self.k[0] += 1\nif x.sum() > 0:\n    self.h = [3, 4]\nreturn x, self.h[0], self.k[0]", _ALIAS),
        _TWO_NAMES,
    ),
    "two names come to be one": (
        kept("self.h[0] += 1\nif x.sum() > 0:\n    self.h = self.k\nreturn x, self.h[0], self.k[0]", "self.h = [0]\nself.k = [0]"),
        _TWO_NAMES,
    ),
    "one in two new containers": (
        kept("self.a[0][0] += 1\nn = [3]\nself.a = (n,)\nself.b[0] = n\nreturn x, self.b[0][0]", "self.a = ([0],)\nself.b = [[0]]"),
        _TWO_NAMES,
    ),
    "in a tuple with two names": (
        kept("self.a[0][0] += 1\nif x.sum() > 0:\n    self.a = ([5],)\nreturn x, self.b[0][0]", "self.a = self.b = ([0],)"),
        _TWO_NAMES,
    ),
    "held by a closure": (
        kept("self.h[0] += 1\nif x.sum() > 0:\n    self.h = [5]\nreturn x, self.f()", "self.h = h = [0]\nself.f = lambda: h[0]"),
        _TWO_NAMES,
    ),
    "are two names one": (kept("same = self.h is self.k\nif x.sum() > 0:\n    self.h = [0, 1]\nreturn x, same", _ALIAS), _WHICH),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    check_refused(*REFUSED[name])


def test_no_variable_for_what_stays() -> None:
    """A list with one name that every call makes anew is no more state than its items."""
    graph = stage(model_of(kept("self.h = [self.h[0] + 1, 1]\nreturn x, self.h[0]")), (torch.zeros(2, 3),))
    assert [v.name for v in graph.state] == ["h[0]"]
