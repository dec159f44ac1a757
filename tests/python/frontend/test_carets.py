# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The caret of an error stands under the code that is meant, whatever construct it is in."""

from __future__ import annotations

import linecache
import random
import sys
from pathlib import Path

import pytest
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.python.flow import parted_trips

#: Bodies of a forward that is refused, and what begins where the caret stands.
PROGRAMS = [
    ("y = x + torch.histogram(x, 3)", "torch.histogram(x, 3)"),
    ("return x + (x * 2)[x > 0].histogram(3)", "(x * 2)[x > 0].histogram(3)"),
    ("y = [1, torch.histogram(x, 3), 2]", "torch.histogram(x, 3)"),
    ("d = {'a': x, 'b': torch.histogram(x, 3)}", "torch.histogram(x, 3)"),
    ("y = helper(x, torch.binomial(x, x))", "torch.binomial"),
    ("y = x.abs().sum().item() + torch.histogram(x, 3)", "torch.histogram"),
    ("y = x.relu().histogram(3)", "x.relu().histogram(3)"),
    ("y = x.relu().exp(\n        ).histogram(3)", "x.relu().exp("),
    ("z = x[0] if torch.histogram(x, 3).sum() > 0 else x[1]", "torch.histogram"),
    ("z = x.sum() > 0 and torch.histogram(x, 3)", "torch.histogram"),
    ("z = x.sum() > 0 or helper(x, torch.histogram(x, 3))", "torch.histogram"),
    ("z = not torch.histogram(x, 3).any()", "torch.histogram"),
    ("z = (lambda t: torch.histogram(t, 3))(x)", "torch.histogram(t, 3)"),
    ("z = [torch.histogram(t, 3) for t in x]", "torch.histogram(t, 3)"),
    ("z = sum(torch.histogram(t, 3) for t in x)", "torch.histogram(t, 3)"),
    ("if torch.histogram(x, 3).sum() > 0: x = x + 1", "torch.histogram"),
    ("for i in torch.histogram(x, 3): x = x + 1", "torch.histogram"),
    ("while torch.histogram(x, 3).sum() > 0: x = x + 1", "torch.histogram"),
    ("for i in range(3): x = x + torch.histogram(x, 3)", "torch.histogram"),
    ("assert torch.histogram(x, 3).sum() > 0, 'no'", "torch.histogram"),
    ("assert x.sum() > 0, f'{torch.histogram(x, 3)}'", "torch.histogram"),
    ("with open('f') as f: x = x + 1", "open('f')"),
    ("x[torch.histogram(x, 3)] = 1", "torch.histogram"),
    ("x[0] = torch.histogram(x, 3)", "torch.histogram"),
    ("x += torch.histogram(x, 3)", "torch.histogram"),
    ("a, b = x[0], torch.histogram(x, 3)", "torch.histogram"),
    ("if x.sum() > 0: y = 1 + torch.histogram(x, 3)", "torch.histogram"),
    ("return x, torch.histogram(x, 3)", "torch.histogram"),
    ("return {'k': [x, torch.histogram(x, 3)]}", "torch.histogram"),
    ("n = int(x.sum()); y = torch.zeros(3, n)", "torch.zeros"),
    ("n = int(x.sum()); y = torch.linalg.det(x[n:, n:])", "torch.linalg.det"),
    ("n = int(x.sum()); y = x + 2 ** n", "2 ** n"),
    ("n = int(x.sum()); y = getattr(x, f'l{n}')", "f'l{n}'" if sys.version_info < (3, 12) else "{n}"),
    ("y = x.numpy().sum()", "x.numpy"),
    ("y = 1 + 2; print(x)", "print(x)"),
    ("y = x * random.random()", "random.random()"),
    ("raise ValueError(torch.histogram(x, 3))", "torch.histogram"),
    ("try: y = x + torch.histogram(x, 3)\n    except ValueError: pass", "torch.histogram"),
    (
        "h = None\n    while x.sum() < 10:\n        x = x if h is None else x + 1\n        h = object() if h is None else None",
        "while x.sum() < 10:",
    ),
    ("out = []\n    while x.sum() < 10:\n        out.append(x)\n        x = x + 1", "while x.sum() < 10:"),
    ("while x.sum() < 10:\n        y = x if x.max() > 3 else None\n        x = x + y", "x.max()"),
    ("while x.sum() < 10:\n        if x.max() > 3:\n            y = x\n        else:\n            y = None\n        x = x + y", "x.max()"),
    ("def g(t):\n        yield torch.histogram(t, 3)\n    for v in g(x): pass", "torch.histogram(t, 3)"),
    ("match torch.histogram(x, 3):\n        case 1: pass", "torch.histogram(x, 3)"),
    ("y = x if torch.is_tensor(torch.histogram(x, 3)) else x", "torch.histogram(x, 3)"),
    ("y = helper(\n        x,\n        torch.histogram(x, 3),\n    )", "torch.histogram(x, 3)"),
    ("y = (x +\n         torch.histogram(x, 3))", "torch.histogram(x, 3)"),
    ("é = 'é'; y = x + torch.histogram(x, 3)", "torch.histogram(x, 3)"),
    ("y = x.T @ torch.histogram(x, 3)", "torch.histogram"),
    ("import random as r; y = x * r.random()", "r.random()"),
    ("y = x.sum() in [torch.histogram(x, 3)]", "torch.histogram"),
    ("y = 0 < torch.histogram(x, 3) < 3", "torch.histogram"),
    ("y = torch.full((2,), 1.0).random_()", "torch.full((2,), 1.0).random_()"),
    ("y = -torch.histogram(x, 3)", "torch.histogram"),
    ("x.data = torch.histogram(x, 3)", "torch.histogram"),
    ("y = dict(a=torch.histogram(x, 3))", "torch.histogram"),
    ("y = helper(*[x, torch.histogram(x, 3)])", "torch.histogram"),
    ("y = len(f'{x}')", "len(f'{x}')"),
    ("y = len(str(x))", "len(str(x))"),
    ("y = hash(x.sum().item())", "hash("),
    ("y = (x.sum().item()) is 3", "(x.sum"),
    ("y = x.clone().resize_(9)", "x.clone().resize_"),
    ("return x + 1 if x.sum() > 2 else torch.histogram(x * 2, 3)", "torch.histogram"),
    ("ä = 1; return ä + len(str(x.sum()))", "len(str(x"),
    ("return list(map(lambda v: 1 + hash(float(v.sum())), x))", "hash"),
    ("return list(map(lambda v: 1 + float(v), x))", "float(v)"),
    ("return (x +\n        1 + torch.histogram(x, 3))", "torch.histogram"),
    ("x.resize_(7); return x", "x.resize_"),
    (
        "while x.sum() < 10:\n        if (\n            x.max() > 3\n        ):\n            y = x\n"
        "        else:\n            y = None\n        x = x + y",
        "x.max() > 3",
    ),
]


@pytest.fixture(autouse=True)
def _no_paths_part_in_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said where too many paths part in the trips of a loop: with a bound of none, of the first that does."""
    monkeypatch.setattr(parted_trips, "MOST_PATHS", 0)


def helper(*given):
    return given[0]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know columns")
@pytest.mark.parametrize(("body", "under"), PROGRAMS)
def test_the_caret_stands_under_the_code(tmp_path: Path, body: str, under: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"def f(x):\n    {body}\n    return x\n")
    linecache.checkcache(str(file))
    space = {"torch": torch, "random": random, "helper": helper}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(UnsupportedError) as error:
        stage(space["f"], (torch.ones(2, 3),))
    _, code, caret = str(error.value).split("\n")[:3]
    assert code[caret.index("^") :].startswith(under)
