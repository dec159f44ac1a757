# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's functions, called by Python and by libraries in every way: what they change is seen on every path, over several calls.

Each kind is a few statements that set ``y`` from ``x`` and count in ``log``. It is tried on one side of an ``if``, in a loop, in a helper
that is called twice, before an early return, in ``try`` and in a generator, with a log of the call and one of the model.
"""

from __future__ import annotations

import copy
import linecache
import sys
import textwrap
import types

import pytest
import torch
from differential import same
from users_classes import CLASSES
from users_functions import FUNCTIONS

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret

IMPORTS = """
import collections, contextlib, copy, dataclasses, functools, heapq, itertools, operator, queue, re
import torch
from torch import nn
from torch.utils import _pytree as pytree
"""
PLACES = {
    "if": """
if x.sum() > 0:
    USE
else:
    y = x - 1
""",
    "loop": """
y = x
for _ in range(2):
    if x.sum() > 0:
        USE
    x = x - 0.7
""",
    "helper": """
def helper(x):
    if x.sum() > 0:
        USE
        return y
    return x - 1
a = helper(x)
y = a, helper(a - 1)
""",
    "return": """
if x.sum() > 0:
    USE
    return y * 2, log, self.log, LAST
y = x
""",
    "try": """
y = x
try:
    if x.sum() > 0:
        USE
finally:
    log[0] += 100
""",
    "generator": """
def steps(x):
    yield x
    if x.sum() > 0:
        USE
        yield y
    yield x + 1
y = list(steps(x))
""",
}
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        for p in self.parameters():
            p.data.fill_(0.5)
        self.flag = False
        self.log = [0]

    def forward(self, x):
        log = LOG
        BEFORE
        PLACE
        return y, log, self.log, LAST
"""
VALUES = ((0.5, 1.0), (-1.0, 0.2), (0.1, 0.05), (2.0, 1.0), (-0.2, 0.1))
CALLS = [torch.tensor([[a, 2 * a, 0.3], [a, -0.1, b]]) for a, b in VALUES]


def fill(text, **parts):
    """Put statements in the place of their names, as far in as these stand."""
    for name, part in parts.items():
        lines = [line for line in text.splitlines() if line.strip() == name]
        if lines:
            indent = lines[0][: len(lines[0]) - len(name)]
            text = text.replace(lines[0], textwrap.indent(part.strip(), indent))
        text = text.replace(name, part)
    return text


def module_of(text, name):
    """Run a program as if it stood in a file."""
    file = f"<written by a test>/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def check(text, name):
    """Compare a sequence of calls of one session with eager."""
    graph = stage(module_of(text, name).Model().eval(), (CALLS[0],))
    eager = module_of(text, name).Model().eval()
    state = [graph_initial(v.initial) for v in graph.state]
    for x in CALLS:
        with torch.no_grad():
            want = copy.deepcopy(eager(x.clone()))
        got = interpret(graph, [x.clone()], state)[0]
        assert same(want, got), f"{text}\neager {want}\nstaged {got}"


@pytest.mark.parametrize("kind", [*FUNCTIONS, *CLASSES])
def test_what_the_users_functions_do_is_seen(kind):
    head, before, use, last = {**FUNCTIONS, **CLASSES}[kind]
    refused = 0
    for number, place in enumerate(PLACES):
        body = fill(PLACES[place], USE=use)
        log = "self.log" if number % 2 else "[0]"
        text = IMPORTS + head + fill(MODEL, LOG=log, BEFORE=before or "pass", PLACE=body, LAST=last)
        try:
            check(text, f"{kind}_{place}")
        except UnsupportedError:
            refused += 1
    assert not refused
