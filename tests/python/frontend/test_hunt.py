# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The hunt's own tools: its programs run, what is planted is found, and programs become small."""

from __future__ import annotations

import ast
import os
import random

import judge as judging
import pytest
import torch
from effects import EFFECTS, Program
from hunt import UNBOUNDED, grid, growing_programs, hunt, hunt_builds, random_programs
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
    refused = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x[x > 0].histogram(3)\n"
    kinds, reasons = hunt(iter([("a", refused), ("b", refused), ("c", refused.replace("[x > 0].histogram(3)", ""))]))
    assert kinds == {"refused": 2, "right": 1} and list(reasons.values()) == [2]


def _programs_of(first, last, left_out=()):
    """Return a share of the grid from one effect to another, both named by their beginnings."""
    changes = [e.change for e in EFFECTS]
    begin, end = (next(i for i, c in enumerate(changes) if c.startswith(text)) for text in (first, last))
    kept = [i for i in range(begin, end + 1) if not changes[i].startswith(left_out)]
    for i in kept:
        yield from (p for n, p in enumerate(grid(i, i + 1)) if n % 5 == i % 5)


@pytest.mark.parametrize(
    ("first", "last", "left_out"),
    [("y = y if", "try: i -=", ("a = ", "d = ", "y.t_")), ("big = ", "b = not", ())],
    ids=["identity and aliases", "numbers"],
)
def test_a_share_of_the_grid(first, last, left_out, tmp_path):
    kinds, reasons = hunt(_programs_of(first, last, left_out), tmp_path)
    print(kinds, reasons)
    assert kinds["right"] + kinds.get("refused", 0) == sum(kinds.values()), [p.read_text()[-1500:] for p in tmp_path.iterdir()]
    assert kinds.get("refused", 0) <= 0.2 * sum(kinds.values())


#: `make fuzz` sets how many programs there are.
PROGRAMS = int(os.environ.get("DYCL_FUZZ_PROGRAMS", "160"))


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part, tmp_path):
    kinds, reasons = hunt(random_programs(part * PROGRAMS // 4, (part + 1) * PROGRAMS // 4), tmp_path, every=200)
    print(kinds, reasons)
    assert not kinds.get("wrong", 0) and not kinds.get("crashed", 0), [p.read_text()[-1500:] for p in tmp_path.iterdir()]
    assert kinds.get("refused", 0) <= 0.1 * sum(kinds.values()), reasons


def test_random_programs_as_a_library(tmp_path):
    kinds = hunt_builds(random_programs(0, 5 + PROGRAMS // 100), tmp_path)
    assert set(kinds) == {"right"}, [p.read_text()[-1500:] for p in tmp_path.iterdir()]


def test_programs_whose_tensors_grow(tmp_path):
    kinds, reasons = hunt(growing_programs(0, 10 + PROGRAMS // 20), tmp_path, **UNBOUNDED)
    print(kinds, reasons)
    assert not kinds.get("wrong", 0) and not kinds.get("crashed", 0), [p.read_text()[-1500:] for p in tmp_path.iterdir()]
    assert kinds.get("refused", 0) <= 0.3 * sum(kinds.values()), reasons
