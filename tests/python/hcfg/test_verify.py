# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The verifier accepts sound graphs and names the breach in each unsound one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dycl_tvm.errors import InvariantError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.nodes import Block, Branch, Edge, HostOp, Jump, Return, StateVar, SubDNN, SubDNNCall, Switch, TensorOp, Value
from dycl_tvm.hcfg.types import FLOAT, INT
from dycl_tvm.hcfg.verify import verify


def looped() -> GraphBuilder:
    """Blocks: entry, head (a loop), body, end."""
    g = GraphBuilder("looped", {"x": tensor(2), "n": INT}, [StateVar("seen", INT, 0)])
    x, n, seen = g.params
    head, body, end = g.block("head", tensor(2), INT), g.block("body"), g.block("end")
    g.jump(g.entry, head, x, 0)
    h, k = head.params
    g.branch(head, g.host(head, "lt", k, n), body, end)
    g.jump(body, head, g.op(body, "aten.relu.default", h), g.host(body, "add", k, 1))
    g.leave(end, h, state=[g.host(end, "add", seen, 1)])
    return g


def test_sound_graph_passes() -> None:
    verify(looped().graph)


def entry_loop(g: GraphBuilder) -> None:
    g.graph.blocks[2].terminator = Jump(Edge(g.entry, list(g.params)))


def no_terminator(g: GraphBuilder) -> None:
    g.graph.blocks[3].terminator = None


def foreign_target(g: GraphBuilder) -> None:
    g.graph.blocks[2].terminator = Jump(Edge(Block("elsewhere")))


def bad_cond(g: GraphBuilder) -> None:
    term = g.graph.blocks[1].terminator
    assert isinstance(term, Branch)
    term.cond = g.params[1]


def bad_index(g: GraphBuilder) -> None:
    g.graph.blocks[1].terminator = Switch(1.0, [Edge(g.graph.blocks[3])])


def short_edge(g: GraphBuilder) -> None:
    g.graph.blocks[2].edges()[0].args.pop()


def wrong_edge_type(g: GraphBuilder) -> None:
    g.graph.blocks[2].edges()[0].args[1] = 1.0


def late_definition(g: GraphBuilder) -> None:
    g.graph.blocks[1].steps.insert(0, HostOp("not", (g.graph.blocks[1].steps[0].results()[0],), Value(FLOAT, "early")))
    g.graph.blocks[1].steps[0].output.type = g.graph.blocks[1].steps[1].output.type


def not_dominating(g: GraphBuilder) -> None:
    term = g.graph.blocks[3].terminator
    assert isinstance(term, Return)
    term.values[0] = g.graph.blocks[2].steps[0].results()[0]


def undefined(g: GraphBuilder) -> None:
    g.graph.blocks[2].edges()[0].args[0] = Value(tensor(2), "ghost")


def twice(g: GraphBuilder) -> None:
    g.graph.blocks[2].steps.append(g.graph.blocks[2].steps[0])


def wrong_host_type(g: GraphBuilder) -> None:
    g.graph.blocks[2].steps[1].output.type = FLOAT


def scalar_into_tensor_op(g: GraphBuilder) -> None:
    out = Value(tensor(2), "y")
    g.graph.blocks[2].steps.append(TensorOp("aten.mul.Scalar", (g.graph.blocks[1].params[0], g.params[1]), {}, (out,)))


def wrong_leaf(g: GraphBuilder) -> None:
    term = g.graph.blocks[3].terminator
    assert isinstance(term, Return)
    term.values[0] = 3


def missing_state(g: GraphBuilder) -> None:
    term = g.graph.blocks[3].terminator
    assert isinstance(term, Return)
    term.state.clear()


def no_exit(g: GraphBuilder) -> None:
    g.graph.blocks[3].terminator = Jump(Edge(g.graph.blocks[3]))


def missing_input(g: GraphBuilder) -> None:
    g.graph.input_names.append("y")


def constant_defined(g: GraphBuilder) -> None:
    g.graph.blocks[2].params.append(constant(torch.ones(2), "w"))


def foreign_body(g: GraphBuilder) -> None:
    out = Value(tensor(2), "r")
    callee = SubDNN("f", [Value(tensor(2), "p")], [TensorOp("aten.relu.default", (g.params[0],), {}, (out,))], [out])
    g.entry.steps.append(SubDNNCall(callee, [g.params[0]], [Value(tensor(2), "y")]))


def undefined_result(g: GraphBuilder) -> None:
    callee = SubDNN("f", [Value(tensor(2), "p")], [], [Value(tensor(2), "q")])
    g.entry.steps.append(SubDNNCall(callee, [g.params[0]], [Value(tensor(2), "y")]))


def wrong_call(g: GraphBuilder) -> None:
    p = Value(tensor(3), "p")
    g.entry.steps.append(SubDNNCall(SubDNN("f", [p], [], [p]), [g.params[0]], [Value(tensor(3), "y")]))


def scalar_state(g: GraphBuilder) -> None:
    g.graph.state[0].initial = 0.5


@pytest.mark.parametrize(
    "breach, message",
    [
        (entry_loop, "'body': leads to the entry"), (no_terminator, "'end': has no terminator"), (foreign_target, "'elsewhere'"),
        (bad_cond, "n .int.*not a bool"), (bad_index, "not an int"), (short_edge, "has 1 values for 2"),
        (wrong_edge_type, "1.0 .float.*takes int"),
        (late_definition, "defined later"), (not_dominating, "'end'.*'body' does not dominate"), (undefined, "ghost.*nothing defines"),
        (twice, "'body': defines .* again"), (wrong_host_type, "gives int, not float"), (scalar_into_tensor_op, "to_tensor"),
        (wrong_leaf, "leaf 0, which is a tensor"), (missing_state, "0 state values"), (no_exit, "'end': cannot reach"),
        (missing_input, "3 inputs"), (constant_defined, "which is a constant"), (foreign_body, "does not define before"),
        (undefined_result, "its body does not define"), (wrong_call, r"takes float32\[3\]"), (scalar_state, "initial value a float"),
    ],
)  # fmt: skip
def test_breach_is_named(breach: Callable[[GraphBuilder], None], message: str) -> None:
    g = looped()
    breach(g)
    with pytest.raises(InvariantError, match=f"looped.*{message}"):
        verify(g.graph)


def test_block_listed_twice() -> None:
    g = looped()
    g.graph.blocks.append(g.graph.blocks[2])
    with pytest.raises(InvariantError, match="twice in the list"):
        verify(g.graph)
