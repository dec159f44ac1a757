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


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.t = torch.zeros(2, 3)
        self.register_buffer("buf", torch.zeros(2, 3))

    def forward(self, x):
"""

RIGHT = {
    "a module without a file keeps its state": """
        if x.sum() > 2:
            MODULE.N += 1
        return MODULE.N
    """,
    "an attribute is deleted in a loop": """
        o = types.SimpleNamespace(a=1)
        while x.sum() < 8:
            delattr(o, "a") if hasattr(o, "a") else None
            x = x + 1
        return hasattr(o, "a")
    """,
}
REFUSED = {
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
    "a tensor that the model has kept under another name": """
        if x.sum() > 2:
            self.t = self.buf
        return self.t is self.buf
    """,
}


def program(body: str) -> str:
    """Return a program with the body of a forward."""
    return HEADER + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n"


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    verdict = judge(program(RIGHT[name]))
    assert verdict.kind == "right", verdict.reason


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    verdict = judge(program(REFUSED[name]))
    assert verdict.kind == "refused", verdict.reason
