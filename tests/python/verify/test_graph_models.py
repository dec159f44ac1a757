# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX models and exported programs against their own reference: a fault in either front end is found before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx.parser
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.errors import VerificationError
from dycl_tvm.frontend.exported import graph as exported_graph
from dycl_tvm.frontend.onnx import ops  # noqa: F401  # they register
from dycl_tvm.frontend.onnx.node import CONVERTERS
from dycl_tvm.verify.model import check_model

X = torch.tensor([[0.5, -1.0, 2.0], [0.25, -0.5, 1.0]])

_ONNX = """<ir_version: 8, opset_import: ["" : 18]>
net (float[2,3] x, int64 trips) => (float[2,3] y) {
  zero = Constant <value_float = 0.0> ()
  total = ReduceSum <keepdims = 0> (x)
  positive = Greater (total, zero)
  z = If (positive) <
    then_branch = left () => (float[2,3] a) { a = Sub (x, total) },
    else_branch = right () => (float[2,3] b) { b = Relu (x) }
  >
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, z) <body = step (int64 k, bool more, float[2,3] state) => (bool again, float[2,3] next) {
    again = Identity (more)
    next = Add (state, x)
  }>
}
"""


def _onnx_model() -> Any:
    model = onnx.parser.parse_model(_ONNX)
    onnx.checker.check_model(model)
    return model


def test_an_onnx_model_is_compared_with_its_reference() -> None:
    model = _onnx_model()
    graph = dycl_tvm.stage(model, passes=False)
    proved = check_model(model, graph, None)
    assert proved.method == "inputs" and proved.runs >= 4 and proved.reason == ""
    assert proved.edges == proved.edges_total


def _swapped(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, a, b: convert(node, b, a)


@pytest.mark.parametrize(
    "operator, fault",
    [
        ("Sub", _swapped),
        ("Greater", _swapped),
        ("Add", lambda convert: lambda node, a, b: convert(node, a, a)),
        ("Relu", lambda convert: lambda node, a: a.abs()),
        ("ReduceSum", lambda convert: lambda node, *a: convert(node, *a) * 1.001),
    ],
)
def test_a_wrong_converter_of_onnx_is_found(operator: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONVERTERS, operator, fault(CONVERTERS[operator]))
    with pytest.raises(VerificationError, match=r"what was built of net does something else[\s\S]*reference: [\s\S]*as built: "):
        dycl_tvm.build(_onnx_model())


class _Net(nn.Module):
    def forward(self, x):
        def more(k, v):
            return k < 4

        def step(k, v):
            return k + 1, v + x

        y = torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))
        return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), y))[1]


@pytest.fixture(scope="module")
def program() -> Any:
    return torch.export.export(_Net(), (X,))


def test_an_exported_program_is_compared_with_its_eager_module(program: Any) -> None:
    proved = check_model(program, dycl_tvm.stage(program, passes=False), ((X,), {}))
    assert proved.method == "inputs" and proved.edges == proved.edges_total == 4


def _other_side(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, run, pred, left, right, *rest: handler(session, run, pred, right, left, *rest)


def _one_side(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, run, pred, left, right, *rest: handler(session, run, pred, left, left, *rest)


def _once(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, run, cond, body, carried, captured=(): tuple(run(session, body, [*carried, *captured]))


@pytest.mark.parametrize("operator, fault", [("cond", _other_side), ("cond", _one_side), ("while_loop", _once)])
def test_wrong_control_flow_of_an_exported_program_is_found(
    operator: str, fault: Callable[..., Any], program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exported_graph.HANDLERS, operator, fault(exported_graph.HANDLERS[operator]))
    with pytest.raises(VerificationError, match="does something else than the model"):
        dycl_tvm.build(program)
