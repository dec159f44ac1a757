# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Forward hooks, and errors of Python itself that the user's program handles: staged graphs against eager."""

from __future__ import annotations

import contextlib

import torch
from differential import check
from torch import nn

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


class Gate(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 0.5


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.gate = Gate()
        self.gate.seen = 0

        def before(module, args):
            return (args[0] * 0.5 if args[0].sum() > 0 else args[0],)

        def after(module, args, output):
            if output.max() > 0.3:
                return output + 1
            return None

        def count(module, args, output):
            module.seen = module.seen + 1

        self.lin.register_forward_pre_hook(before)
        self.lin.register_forward_hook(after)
        self.gate.register_forward_hook(count)

    def forward(self, x):
        self.gate.seen = 0
        x = self.lin(x)
        if x.sum() > 0:
            x = self.gate(x)
        return self.gate(x), self.gate.seen


def test_forward_hooks():
    check(Hooked().eval(), X, paths=3)


def test_exceptions_of_python_itself_caught():
    def f(x):
        table = {0: "zero", 2: "two"}
        k = int(x[0, 1])
        try:
            word = table[k]
        except KeyError:
            word = "none"
        try:
            y = [x, x * 2][k]
        except IndexError:
            y = -x
        try:
            z = 1 / k
        except ZeroDivisionError:
            z = 0.0
        with contextlib.suppress(ValueError):
            if x.sum() > 0:
                raise ValueError
            y = y * 5
        return word, y, z

    check(f, X, paths=3)


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is KeyError


@contextlib.contextmanager
def noting(log):
    try:
        yield log
    except ValueError:
        log.append("caught")


def test_contexts_that_swallow_exceptions():
    def f(x):
        log = []
        with Swallow():
            if x.sum() > 1:
                raise KeyError("k")
            x = x * 5
        with noting(log):
            if x[0, 0] > 0:
                raise ValueError("v")
            log.append("fine")
        return x, log

    check(f, X, paths=4)
