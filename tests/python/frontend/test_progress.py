# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Progress bars of tqdm are left out, and the report says so. The package is not needed: a module of its shape stands for it."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

INPUTS = [torch.tensor(v) for v in ([0.3, 0.2, 0.4], [-1.0, 0.5, 0.1], [1.0, 3.0, 0.1])]
_SOURCE = """
class tqdm:
    def __init__(self, iterable=None, desc="", total=None, disable=False):
        self.iterable, self.n = iterable, 0
        self.total = len(iterable) if total is None and hasattr(iterable, "__len__") else total
    def __iter__(self):
        for item in self.iterable:
            print("bar")
            yield item
    def __len__(self):
        if self.iterable is None: return self.total
        return len(self.iterable) if hasattr(self.iterable, "__len__") else self.iterable.__length_hint__()
    def __bool__(self): return self.total > 0
    def __enter__(self): return self
    def __exit__(self, *error): return None
    def __del__(self): self.n = 0
    def update(self, n=1): print("bar")
    def set_postfix(self, **shown): print("bar", shown)
    @classmethod
    def write(cls, text): print(text)

def trange(*args, **kwargs): return tqdm(range(*args), **kwargs)
"""
PROGRAMS = {
    "a for loop": "for i in tqdm(range(3), desc='steps'):\n    x = x * 1.5 if x.sum() > 0 else x - 1\nreturn x",
    "an exit": "for i in trange(4):\n    if x.sum() > 3: break\n    x = x + i\nreturn x",
    "as many trips as the data say": "for i in tqdm(range(int((x > 0).sum()))):\n    x = x + i\nreturn x",
    "what it shows": "with tqdm(total=3) as bar:\n    while x.sum() < 10:\n        x = x * 2\n        bar.update(1)\n"
    "        bar.set_postfix(loss=x.sum().item())\n        if x.sum() < 0: break\ntqdm.write('done')\nreturn x",
    "an iterator": "it = iter(tqdm([1, 2, 3]))\nreturn x * next(it) + sum(it)",
    "whether there is anything to show": "n = len(tqdm(iter([1, 2]), total=7)), len(tqdm(total=3))\n"
    "return x * sum(n) if tqdm(total=0) or not tqdm([1]) else x - sum(n)",
    "rows": "return torch.stack([r * 2 for r in tqdm(x)]) * len(tqdm((1, 2)))",
}


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the globals of a program that imports tqdm."""
    module = types.ModuleType("tqdm.std")
    exec(compile(_SOURCE, "/site-packages/tqdm/std.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "tqdm.std", module)
    return {"torch": torch, "tqdm": module.tqdm, "trange": module.trange}


def program(space: dict[str, Any], body: str, tmp_path: Any) -> Any:
    """Return a function with a body, in a file of its own."""
    text = "def net(x):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    file = tmp_path / "net.py"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), space)
    return space["net"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_bars_are_left_out(name: str, space: dict[str, Any], tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net = program(space, PROGRAMS[name], tmp_path)
    graph = stage(net, (INPUTS[0],))
    assert any("a progress bar at " in text for text in graph.left_out)
    staged = graph.interpret()
    found = [staged(x) for x in INPUTS]
    assert capsys.readouterr().out == ""
    assert all(torch.equal(y, net(x)) for x, y in zip(INPUTS, found))


@pytest.mark.parametrize("body", ["bar = tqdm([1, 2])\nreturn x * bar.n", "return x * len(tqdm([1])) if hasattr(tqdm([1]), 'n') else x"])
def test_what_a_bar_knows_is_refused(body: str, space: dict[str, Any], tmp_path: Any) -> None:
    with pytest.raises(UnsupportedError, match="`n` of a progress bar is asked for"):
        stage(program(space, body, tmp_path), (INPUTS[0],))
