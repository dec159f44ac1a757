# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The hunt's own tools: its programs run, what is planted is found, and programs become small."""

from __future__ import annotations

import ast
import random

import judge as judging
import pytest
import torch
from effects import EFFECTS, Program
from hunt import grid, hunt
from judge import SESSIONS, judge, net_of, shrink


def test_every_effect_runs_in_eager():
    for _, source in (p for p in grid(0, len(EFFECTS)) if p[0].endswith("_1")):
        net = net_of(source)
        with torch.no_grad():
            assert isinstance(net(SESSIONS[0][0].clone()), tuple)


def test_a_program_is_decided_by_its_seed():
    for seed in range(20):
        programs = {Program(random.Random(seed).randrange).source() for _ in range(2)}
        assert len(programs) == 1
        ast.parse(programs.pop())


def planted(graph, inputs, state):
    """Interpret a graph wrongly: the first number of the result is one too large."""
    values, path = judging.real_interpret(graph, inputs, state)
    return [values[0] + 1 if isinstance(values[0], (int, float)) else values[0], *values[1:]], path


def test_what_is_planted_is_found_and_made_small(monkeypatch):
    source = next(s for n, s in grid(0, 1) if n.endswith("_2"))
    assert judge(source).kind == "right"
    monkeypatch.setattr(judging, "real_interpret", judging.interpret, raising=False)
    monkeypatch.setattr(judging, "interpret", lambda *args: (tuple(planted(*args)[0]), None))
    assert judge(source).kind == "wrong"
    small = shrink(source, lambda s: judge(s).kind == "wrong")
    assert len(small.splitlines()) < 12


@pytest.mark.parametrize(
    ("body", "kind"),
    [("return x[0, 0].item() + 1", "right"), ("return torch.rand(2) + x", "refused"), ("return {}[x.sum().item() > 0]", "right")],
)
def test_verdicts(body, kind):
    assert judge(f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        {body}\n").kind == kind


def test_counts_and_reasons():
    refused = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x[x > 0]\n"
    kinds, reasons = hunt(iter([("a", refused), ("b", refused), ("c", refused.replace("[x > 0]", ""))]))
    assert kinds == {"refused": 2, "right": 1} and list(reasons.values()) == [2]
