# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's control flow operators, checks, scripted functions and operators with a body in Python, within eager code."""

from __future__ import annotations

import contextlib
import functools
import operator
import textwrap
from typing import Any

import pytest
import torch
from differential import same
from test_hunted import X, check_refused, check_right
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.verify.control import check_control

CHECKS = {
    "numbers": "n = int(x.sum().item())\ntorch._check(n >= 0, lambda: f'too {1}')\ntorch._check_value(n < 100)\nreturn x * n",
    "sizes": "n = int(x.sum().item())\ntorch._check_is_size(n, max=7)\ntorch._check(n < 3)\nreturn x * n",
    "an error that is caught": "try:\n    torch._check(x.sum().item() > 0)\nexcept RuntimeError:\n    return x - 1\nreturn x * 2",
    "all elements": "torch._check_tensor_all(x > -1)\nreturn x * 2",
    "names": "torch._check(message=lambda: 'few', cond=x.sum().item() > 0)\nreturn x * 2",
    "an assertion": "torch._assert(x.sum() > 0, 'no')\nreturn x * 2",
    "an assertion of a tensor": "torch._assert_async(x.sum() > 0)\nreturn x * 2",
    "one with a message": "torch._assert_async((x > 0).any(), 'no')\nreturn x * 2",
    "an index": "i = int(x.argmax())\ntorch._check_index(i < 5, lambda: 'bad')\ntorch._check_type(i != 2)\nreturn x * i",
}


def net(body: str) -> str:
    """Return the text of a function with a body."""
    return "def net(x):\n" + textwrap.indent(body, "    ") + "\n"


@pytest.mark.parametrize("name", CHECKS)
def test_checks_raise_when_the_network_runs(name: str) -> None:
    check_right(net(CHECKS[name]))


VARIABLES = {
    "a tensor made in the forward": "h = torch.autograd.Variable(torch.zeros(2, 3))\nif x.sum() > 0:\n    h = h + x\nreturn h",
    "memory of its own it has none": "y = x.clone()\nh = torch.autograd.Variable(y)\nif x.sum() > 0:\n    h.add_(1)\nreturn y, h, h is y",
    "a class to ask for": "h = torch.autograd.Variable(x)\nreturn h * isinstance(h, torch.autograd.Variable), type(h) is torch.Tensor",
    "with a gradient": "return x * torch.autograd.Variable(torch.ones(3), requires_grad=True).detach()",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_old_programs(name: str) -> None:
    check_right(net(VARIABLES[name]))


@torch.library.custom_op("dycl_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * 2 + k if x.sum() > 0 else x.clone()


@torch.library.custom_op("dycl_tests::grown", mutates_args={"x"})
def grown(x: torch.Tensor) -> None:
    raise NotImplementedError


@grown.register_kernel("cpu")
def _(x: torch.Tensor) -> None:
    x.add_(1 if x.sum() > 0 else 5)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    grown(y)
    return y


@torch.jit.script
def scripted(x: torch.Tensor, k: int) -> torch.Tensor:
    if bool(x.sum() > 0):
        x = x + k
    return x


@torch.jit.script
def scripted_alone(x: torch.Tensor) -> torch.Tensor:
    return x - 1 if bool(x.sum() > 0) else x * 2


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x + 1 if x.sum() > 0 else x


def add(x: torch.Tensor, k: float) -> torch.Tensor:
    return x + k if x.sum() > 0 else x


PROGRAMS: dict[str, Any] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (x,)) + 1,
    "while_loop": lambda x: while_loop(lambda i, y: y.sum() < 10, lambda i, y: (i + 1, y + 1), (torch.tensor(0), x)),
    "scan": lambda x: scan(lambda c, r: (c + r, {"y": c * r}), x[:, 0] * 0, x, dim=1, reverse=True),
    "map": lambda x: torch_map(lambda r, y: (r * y, r.sum()), x, x.sum()),
    "an operator with a body in Python": lambda x: doubled(x, 1.0) + torch.ops.dycl_tests.doubled(x, 2.0),
    "an operator that writes": in_place,
    "a scripted function within": lambda x: scripted(x, 2) * 2,
    "a scripted function": functools.partial(scripted, k=3),
    "a scripted function alone": scripted_alone,
    "a forward without self": Static(),
    "a partial": functools.partial(add, k=2.0),
    "a compiled function": torch.compile(lambda x: x + 1 if x.sum() > 0 else x, backend="eager"),
    "a builtin": torch.relu,
    "a builtin of Python": operator.neg,
    "a partial of a builtin": functools.partial(torch.add, alpha=2, other=torch.ones(3)),
}


with contextlib.suppress(ImportError):  # before PyTorch 2.14
    from torch._higher_order_ops.switch import switch

    _SIDES = (lambda x: x.cos(), lambda x: x.sin(), lambda x: x.abs(), lambda x: -x)
    PROGRAMS["switch"] = lambda x: switch(x.sum().long(), _SIDES, (x,)) + switch((x[0, 0] > 0).long(), _SIDES[:2], (x,))


@pytest.mark.parametrize("name", PROGRAMS)
def test_right(name: str) -> None:
    program = PROGRAMS[name]
    graph = stage(program, (X.clone(),))
    for x in (X, -X):
        with torch.no_grad():
            assert same(program(x.clone()), interpret(graph, [x.clone()])[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_check_of_a_build_sees_into_them(name: str) -> None:
    """The program is observed in eager, where PyTorch would hand parts of it to its compiler, and every edge of the graph is taken."""
    program = PROGRAMS[name]
    report = check_control(program, stage(program, (X.clone(),)), (X.clone(),), {})
    assert report.edges == report.edges_total


def test_what_has_lost_its_python_is_refused() -> None:
    source = "class Inner(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return x + 1\nINNER = torch.jit.script(Inner())\n"
    check_refused(source + "def net(x):\n    return INNER(x)\n", "a TorchScript module has lost its Python source")
    with pytest.raises(UnsupportedError, match="lost its Python source"):
        stage(torch.jit.script(nn.ReLU()), (X,))


def test_a_compiled_module_depends_on_training_as_what_it_wraps() -> None:
    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    assert dycl_tvm.stage(torch.compile(Gate(), backend="eager"), X).return_sites()
    assert dycl_tvm.stage(nn.Sequential(torch.compile(Gate(), backend="eager")), X).return_sites()
    with pytest.raises(UsageError, match="Dropout"):
        dycl_tvm.stage(torch.compile(nn.Sequential(Gate(), nn.Dropout()), backend="eager"), X)
