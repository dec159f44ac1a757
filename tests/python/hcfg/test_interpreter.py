# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The reference interpreter and the semantics of host operations."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from dycl_tvm.errors import InvariantError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.hostops import evaluate, result_type
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import Edge, StateVar, TensorOp, Value
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT
from dycl_tvm.hcfg.verify import verify


def early_exit() -> GraphBuilder:
    g = GraphBuilder("early", {"x": tensor(4)})
    (x,) = g.params
    mean = g.op(g.entry, "aten.mean.default", x)
    high = g.host(g.entry, "gt", g.host(g.entry, "item", mean), 0.5)
    out, more = g.block("out"), g.block("more")
    g.branch(g.entry, high, out, more)
    g.leave(out, x, 1)
    g.leave(more, g.op(more, "aten.relu.default", x), mean)
    return g


def test_path_decides_what_is_returned() -> None:
    graph = early_exit().graph
    verify(graph)
    x = torch.ones(4)
    values, path = interpret(graph, [x])
    assert values[1] == 1
    assert values[0] is x
    assert path == [("entry", 0)]
    values, path = interpret(graph, [-x])
    assert path == [("entry", 1)]
    assert torch.equal(values[0], torch.zeros(4))
    assert values[1].item() == -1


def test_loop_moves_in_parallel_and_counts() -> None:
    g = GraphBuilder("swap", {"n": INT})
    head, body, end = g.block("head", INT, INT, INT), g.block("body"), g.block("end")
    a, b, k = head.params
    g.jump(g.entry, head, 1, 2, 0)
    g.branch(head, g.host(head, "lt", k, g.params[0]), body, end)
    g.jump(body, head, b, a, g.host(body, "add", k, 1))
    g.leave(end, a, b)
    verify(g.graph)
    counts: Counter[str] = Counter()
    assert interpret(g.graph, [3], counts=counts)[0] == (2, 1)
    assert counts == {"lt": 4, "add": 3}
    with pytest.raises(RuntimeError, match="did not return"):
        interpret(g.graph, [10**6], max_blocks=100)


def test_switch_out_of_range_and_raise() -> None:
    g = GraphBuilder("pick", {"i": INT})
    one, two = g.block("one"), g.block("two")
    g.switch(g.entry, g.params[0], one, two)
    g.leave(one, 1.5)
    g.fail(two, "KeyError", "no such key")
    verify(g.graph)
    assert interpret(g.graph, [0]) == ((1.5,), [("entry", 0)])
    with pytest.raises(KeyError):
        interpret(g.graph, [1])
    with pytest.raises(IndexError):
        interpret(g.graph, [2])


def test_state_lives_on() -> None:
    zero = constant(torch.zeros(2), "h")
    g = GraphBuilder("gate", {"x": tensor(2)}, [StateVar("h", tensor(2), zero), StateVar("n", INT, 0)])
    x, h, n = g.params
    new = g.op(g.entry, "aten.add.Tensor", h, x)
    count = g.host(g.entry, "add", n, 1)
    g.leave(g.entry, new, state=[new, count])
    verify(g.graph)
    state = [zero.data, 0]
    for k in (1, 2):
        (out,), _ = interpret(g.graph, [torch.ones(2)], state)
        assert torch.equal(out, torch.full((2,), float(k)))
        assert state[1] == k
    assert torch.equal(zero.data, torch.zeros(2))


def test_wrong_result_type_is_found() -> None:
    g = early_exit()
    step = g.entry.steps[0]
    step.outputs = (Value(tensor(7)),)
    with pytest.raises(InvariantError, match="the graph says"):
        interpret(g.graph, [torch.ones(4)])


def test_wrong_input_is_refused() -> None:
    with pytest.raises(TypeError, match=r"float32\[4\]"):
        interpret(early_exit().graph, [torch.ones(5)])


@pytest.mark.parametrize(
    "op, args, want",
    [
        ("floordiv", (-7, 2), -4), ("mod", (-7, 2), 1), ("mod", (7, -2), -1), ("truediv", (1, 3), 1 / 3),
        ("pow", (2, 10), 1024), ("neg", (3,), -3), ("xor", (True, True), False), ("select", (False, 1, 2), 2),
        ("to_int", (-2.9,), -2), ("floor", (-2.1,), -3), ("ceil", (-2.1,), -2), ("trunc", (-2.9,), -2), ("to_bool", (0.0,), False),
        ("add", (True, 2), 3), ("min", (1.0, -2.0), -2.0), ("eq", (2**53 + 1, 2.0**53), False), ("floordiv", (-7.5, 2.0), -4.0),
    ],
)  # fmt: skip
def test_host_operations_are_pythons(op: str, args: tuple, want: object) -> None:
    kind = BOOL if isinstance(want, bool) else INT if isinstance(want, int) else FLOAT
    found = evaluate(op, args, kind)
    assert found == want
    assert type(found) is type(want)


def test_round_is_half_to_even() -> None:
    assert [evaluate("round", (v,), INT) for v in (0.5, 1.5, 2.5, -0.5)] == [0, 2, 2, 0]


@pytest.mark.parametrize(
    "op, args, kind, error",
    [
        ("floordiv", (1, 0), INT, ZeroDivisionError), ("mod", (1.0, 0.0), FLOAT, ZeroDivisionError),
        ("add", (2**63 - 1, 1), INT, OverflowError),
        ("neg", (-(2**63),), INT, OverflowError), ("pow", (10, 10**12), INT, OverflowError), ("pow", (2, -1), INT, ValueError),
        ("pow", (-2.0, 0.5), FLOAT, ValueError), ("sqrt", (-1.0,), FLOAT, ValueError), ("to_int", (math.nan,), INT, ValueError),
        ("to_int", (1e30,), INT, OverflowError), ("exp", (1e4,), FLOAT, OverflowError), ("pow", (0.0, -1.0), FLOAT, ZeroDivisionError),
    ],
)  # fmt: skip
def test_host_errors_are_pythons(op: str, args: tuple, kind: object, error: type) -> None:
    with pytest.raises(error):
        evaluate(op, args, kind)


def test_types_of_host_operations() -> None:
    assert result_type("add", [INT, FLOAT], FLOAT) is None
    assert result_type("item", [tensor(1, 1)], FLOAT) is None
    for op, args, declared in [
        ("add", [INT, INT], FLOAT), ("add", [INT], INT), ("and", [INT, BOOL], BOOL), ("item", [tensor(2)], FLOAT), ("bogus", [], INT),
        ("to_tensor", [INT], tensor(1)), ("select", [BOOL, INT, FLOAT], FLOAT), ("lt", [INT, tensor()], BOOL),
    ]:  # fmt: skip
        assert result_type(op, args, declared), op


def test_edges_carry_values() -> None:
    g = GraphBuilder("edges", {"c": BOOL})
    join = g.block("join", FLOAT)
    g.branch(g.entry, g.params[0], Edge(join, [1.0]), Edge(join, [2.0]))
    g.leave(join, join.params[0])
    verify(g.graph)
    assert [interpret(g.graph, [c])[0] for c in (True, False)] == [(1.0,), (2.0,)]


def test_side_result_of_another_type_may_stand_but_not_be_read() -> None:
    g = GraphBuilder("norm", {"x": tensor(1, 2, 3, 3)})
    ones = constant(torch.ones(2))
    out, *_ = g.ops(g.entry, "aten.native_batch_norm.default", g.params[0], ones, ones, ones, ones, False, 0.1, 1e-5)
    saved = Value(tensor(2), "saved")
    step = g.entry.steps[0]
    assert isinstance(step, TensorOp)
    step.outputs = (out, saved, None)
    g.leave(g.entry, out)
    assert interpret(g.graph, [torch.ones(1, 2, 3, 3)])[0][0].shape == (1, 2, 3, 3)
    g.leave(g.entry, saved)
    with pytest.raises(InvariantError, match="saved"):
        interpret(g.graph, [torch.ones(1, 2, 3, 3)])
