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
    ("y = x + torch.geqrf(x)", "torch.geqrf(x)"),
    ("return x + (x * 2)[x > 0].geqrf()", "(x * 2)[x > 0].geqrf()"),
    ("y = [1, torch.geqrf(x), 2]", "torch.geqrf(x)"),
    ("d = {'a': x, 'b': torch.geqrf(x)}", "torch.geqrf(x)"),
    ("y = helper(x, torch.poisson(x))", "torch.poisson"),
    ("y = x.abs().sum().item() + torch.geqrf(x)", "torch.geqrf"),
    ("y = x.relu().geqrf()", "x.relu().geqrf()"),
    ("y = x.relu().exp(\n        ).geqrf()", "x.relu().exp("),
    ("z = x[0] if torch.geqrf(x).sum() > 0 else x[1]", "torch.geqrf"),
    ("z = x.sum() > 0 and torch.geqrf(x)", "torch.geqrf"),
    ("z = x.sum() > 0 or helper(x, torch.geqrf(x))", "torch.geqrf"),
    ("z = not torch.geqrf(x).any()", "torch.geqrf"),
    ("z = (lambda t: torch.geqrf(t))(x)", "torch.geqrf(t)"),
    ("z = [torch.geqrf(t) for t in x]", "torch.geqrf(t)"),
    ("z = sum(torch.geqrf(t) for t in x)", "torch.geqrf(t)"),
    ("if torch.geqrf(x).sum() > 0: x = x + 1", "torch.geqrf"),
    ("for i in torch.geqrf(x): x = x + 1", "torch.geqrf"),
    ("while torch.geqrf(x).sum() > 0: x = x + 1", "torch.geqrf"),
    ("for i in range(3): x = x + torch.geqrf(x)", "torch.geqrf"),
    ("assert torch.geqrf(x).sum() > 0, 'no'", "torch.geqrf"),
    ("assert x.sum() > 0, f'{torch.geqrf(x)}'", "torch.geqrf"),
    ("with open('f') as f: x = x + 1", "open('f')"),
    ("x[torch.geqrf(x)] = 1", "torch.geqrf"),
    ("x[0] = torch.geqrf(x)", "torch.geqrf"),
    ("x += torch.geqrf(x)", "torch.geqrf"),
    ("a, b = x[0], torch.geqrf(x)", "torch.geqrf"),
    ("if x.sum() > 0: y = 1 + torch.geqrf(x)", "torch.geqrf"),
    ("return x, torch.geqrf(x)", "torch.geqrf"),
    ("return {'k': [x, torch.geqrf(x)]}", "torch.geqrf"),
    ("n = int(x.sum()); y = torch.zeros(3, n)", "torch.zeros"),
    ("n = int(x.sum()); y = x[n:, n:]", "x[n:, n:]"),
    ("n = int(x.sum()); y = x + 2 ** n", "2 ** n"),
    ("n = int(x.sum()); y = getattr(x, f'l{n}')", "f'l{n}'"),
    ("y = x.numpy().sum()", "x.numpy"),
    ("y = 1 + 2; print(x)", "print(x)"),
    ("y = x * random.random()", "random.random()"),
    ("raise ValueError(torch.geqrf(x))", "torch.geqrf"),
    ("try: y = x + torch.geqrf(x)\n    except ValueError: pass", "torch.geqrf"),
    (
        "h = None\n    while x.sum() < 10:\n        y = x if h is None else x + h\n        h = 1 if h is None else None\n        x = y + 1",
        "h is None",
    ),
    ("h = x\n    while x.sum() < 10:\n        h = h[:1] if h.shape[0] > 1 else torch.cat([h, h])\n        x = x + h", "h.shape"),
    ("out = []\n    while x.sum() < 10:\n        out.append(x)\n        x = x + 1", "while x.sum() < 10:"),
    ("while x.sum() < 10:\n        y = x if x.max() > 3 else None\n        x = x + y", "x.max()"),
    ("while x.sum() < 10:\n        if x.max() > 3:\n            y = x\n        else:\n            y = None\n        x = x + y", "x.max()"),
    ("def g(t):\n        yield torch.geqrf(t)\n    for v in g(x): pass", "torch.geqrf(t)"),
    ("match torch.geqrf(x):\n        case 1: pass", "torch.geqrf(x)"),
    ("y = x if torch.is_tensor(torch.geqrf(x)) else x", "torch.geqrf(x)"),
    ("y = helper(\n        x,\n        torch.geqrf(x),\n    )", "torch.geqrf(x)"),
    ("y = (x +\n         torch.geqrf(x))", "torch.geqrf(x)"),
    ("é = 'é'; y = x + torch.geqrf(x)", "torch.geqrf(x)"),
    ("y = x.T @ torch.geqrf(x)", "torch.geqrf"),
    ("import random as r; y = x * r.random()", "r.random()"),
    ("y = x.sum() in [torch.geqrf(x)]", "torch.geqrf"),
    ("y = 0 < torch.geqrf(x) < 3", "torch.geqrf"),
    ("y = torch.full((2,), 1.0).random_()", "torch.full((2,), 1.0).random_()"),
    ("y = -torch.geqrf(x)", "torch.geqrf"),
    ("x.data = torch.geqrf(x)", "torch.geqrf"),
    ("y = dict(a=torch.geqrf(x))", "torch.geqrf"),
    ("y = helper(*[x, torch.geqrf(x)])", "torch.geqrf"),
    ("y = len(f'{x}')", "len(f'{x}')"),
    ("y = len(str(x))", "len(str(x))"),
    ("y = hash(x.sum().item())", "hash("),
    ("y = (x.sum().item()) is 3", "(x.sum"),
    ("y = x.clone().resize_(9)", "x.clone().resize_"),
    ("return x + 1 if x.sum() > 2 else torch.geqrf(x * 2)", "torch.geqrf"),
    ("ä = 1; return ä + len(str(x.sum()))", "len(str(x"),
    ("return list(map(lambda v: 1 + hash(float(v.sum())), x))", "hash"),
    ("return list(map(lambda v: 1 + float(v), x))", "float(v)"),
    ("return (x +\n        1 + torch.geqrf(x))", "torch.geqrf"),
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
