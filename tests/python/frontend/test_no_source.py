# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions without source: their bytecode says whether they can run as they are; what would have to be seen is refused."""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path
from typing import Any

import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([[1.0, 2.0], [-0.5, 0.5]]) * k,) for k in (1.0, -1.0, 0.0, 5.0)]
KEPT: list[Any] = []


def helper(z):
    return z * 2 if z.sum() > 0 else z - 1


def made(text: str) -> Any:
    return eval(text, {"torch": torch, "F": nn.functional, "helper": helper, "KEPT": KEPT, "__name__": __name__})


def made_by(text: str) -> Any:
    space = {"torch": torch, "helper": helper, "__name__": __name__}
    exec(text, space)
    return space["f"]


RIGHT = {
    "chooses": made("lambda x: x + 1 if x.sum() > 0 else x * 2"),
    "chooses a number": made("lambda x: x * (3 if x.max() > 1 and not x.min() < -4 else 4)"),
    "calls PyTorch": made("lambda x: F.relu(torch.stack((x, -x)).mean(0, keepdim=True)).sum(dim=-1)"),
    "calls the user's": made("lambda x: helper(x) + helper(-x)"),
    "compares": made("lambda x: x + 1 if x.sum() == 3 else x"),
    "changes a tensor": made("lambda x: x.clone().add_(1)"),
    "defaults": made("lambda x, k=2, *, m=3: x * k + m"),
    "two at once": made("lambda x, k=2: torch.stack((k * x, x * k)).sum(0) + x[0:1] * +k + x[:, 1]"),
    "variables": made_by("def f(x, k=2):\n    y = x * k\n    z = y + k\n    u, v = z - y, z\n    return u * v"),
    "many": made("lambda *xs: xs[0] + len(xs)"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_known_runs_as_it_is(name: str) -> None:
    function = RIGHT[name]
    check(lambda x: function(x) - 1, X)


def test_native_code_calls_it() -> None:
    function = RIGHT["chooses"]
    check(lambda x: list(map(function, [x, -x])), X)


def test_a_handler_around_it() -> None:
    function = made("lambda x: x[7] if x.sum() > 0 else x")

    def caught(x):
        try:
            return function(x)
        except IndexError:
            return x - 1

    check(caught, X)


def test_a_module_that_is_compiled_only(tmp_path: Path) -> None:
    source = tmp_path / "compiled.py"
    source.write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        y = x * 2\n        if y.sum() > 0:\n            return y\n        return -y\n"
    )
    compiled = py_compile.compile(str(source), cfile=str(tmp_path / "compiled.pyc"))
    source.unlink()
    spec = importlib.util.spec_from_file_location("compiled", str(compiled))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check(module.Net().eval(), X)


REFUSED = {
    "stores": "lambda x: [x for x in [x]]",
    "is": "lambda x: x + 1 if x is not helper(x) else x",
    "None": "lambda x: x + 1 if x is None else x",
    "in": "lambda x: x in [1.0]",
    "isinstance": "lambda x: isinstance(x, float)",
    "type": "lambda x: type(x)",
    "mutates": "lambda x: KEPT.append(x)",
    "calls what it is given": "lambda x, f=abs: f(x)",
    "a name that is nowhere": "lambda x: nowhere(x)",
    "settings": "lambda x: torch.set_default_dtype(torch.float64)",
    "text": "lambda x: f'{x}'",
    "an attribute": "lambda x: x.__class__",
    "of another's result": "lambda x: helper(x).sum()",
    "what others' results make": "lambda x: max(helper(x), helper(x)).sum()",
    "equality of others": "lambda x: [helper(x)] == [x]",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_to_be_seen_is_refused(name: str) -> None:
    function = made(REFUSED[name])
    with pytest.raises(UnsupportedError, match="the source of <lambda>.. cannot be found, and it "):
        stage(lambda x: (function(x), x)[1], X[0])
    assert not KEPT


def test_a_container_or_function_as_argument_is_not_seen_through() -> None:
    sums, calls = made("lambda xs: xs.copy()"), made("lambda f, x: f(x)")
    with pytest.raises(UnsupportedError, match=r"reads `\.copy`"):
        stage(lambda x: sums([x]), X[0])
    with pytest.raises(UnsupportedError, match="calls what it is given"):
        stage(lambda x: calls(type, x), X[0])
