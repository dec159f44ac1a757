# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known of host ints: comparisons and sides of switches that cannot be, ways past joins that decide."""

from __future__ import annotations

import pytest
import torch

from dycl_tvm.hcfg.analysis import count_paths
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import Edge, HostOp, Switch
from dycl_tvm.hcfg.types import BOOL, INT
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes
from dycl_tvm.passes.decided_joins import decided_joins
from dycl_tvm.passes.value_ranges import value_ranges

V = tensor(4)


def patience(layers: int) -> GraphBuilder:
    """A counter that begins anew at each disagreement; two agreements in a row leave."""
    g = GraphBuilder("patience", {f"agree{k}": BOOL for k in range(layers)})
    block, count, out = g.entry, 0, g.block("out", INT)
    for k in range(layers):
        more, join, on = g.block("more"), g.block("join", INT), g.block("on")
        g.branch(block, g.params[k], more, Edge(join, [0]))
        g.jump(more, join, g.host(more, "add", count, 1))
        g.branch(join, g.host(join, "eq", join.params[0], 2), Edge(out, [k]), on)
        block, count = on, join.params[0]
    g.jump(block, out, layers)
    g.leave(out, out.params[0])
    return g


def test_a_counter_is_not_asked_for_what_it_cannot_have_reached() -> None:
    graph, kept = patience(3).graph, patience(3).graph
    run_passes(graph)
    run_passes(kept, {"value_ranges"})
    # After the first layer the count is 0 or 1: no way out there, on either side.
    assert (count_paths(kept), count_paths(graph)) == (22, 20)
    for k in range(8):
        agree = [bool(k >> n & 1) for n in range(3)]
        want = next((n for n in (1, 2) if agree[n - 1] and agree[n]), 3)
        assert interpret(graph, agree)[0] == interpret(kept, agree)[0] == (want,)


def exits(known: bool) -> GraphBuilder:
    """Three exits with their number and a tensor, then the head of that number; number and tensor are read behind the heads too."""
    g = GraphBuilder("exits", {"x": V, "a": BOOL, "b": BOOL, "n": INT})
    x, a, b, n = g.params
    join, on, last, end = g.block("join", INT, V), g.block("on"), g.block("last"), g.block("end", V)
    g.branch(g.entry, a, Edge(join, [0, x]), on)
    second = g.op(on, "aten.mul.Tensor", x, 2.0)
    g.branch(on, b, Edge(join, [1, second]), last)
    g.jump(last, join, 2 if known else n, g.op(last, "aten.add.Tensor", second, x))
    heads = [g.block(f"head{k}") for k in range(3)]
    g.switch(join, join.params[0], *heads)
    for k, head in enumerate(heads):
        g.jump(head, end, g.op(head, "aten.add.Tensor", join.params[1], float(k)))
    g.leave(end, g.op(end, "aten.mul.Tensor", end.params[0], join.params[1]), g.host(end, "add", join.params[0], 1))
    return g


@pytest.mark.parametrize(("known", "before", "after"), [(True, 9, 3), (False, 9, 5)])
def test_the_number_of_an_exit_leads_to_its_head(known: bool, before: int, after: int) -> None:
    graph = exits(known).graph
    assert count_paths(graph) == before
    assert decided_joins(graph) == (3 if known else 2)
    verify(graph)
    assert count_paths(graph) == after
    assert any(isinstance(b.terminator, Switch) for b in graph.blocks) == (not known)
    run_passes(graph)
    assert count_paths(graph) == after
    for a, b, n in [(True, True, 9), (False, True, 9), (False, False, 2), (False, False, 0)]:
        inputs = [torch.tensor([1.0, -2.0, 0.5, 3.0]), a, b, n]
        got, want = interpret(graph, inputs)[0], interpret(exits(known).graph, inputs)[0]
        assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_headers_of_loops_are_not_passed_by() -> None:
    # The first test of `while i < n` is decided; the way around would be a second entrance.
    g = GraphBuilder("loop", {"n": INT})
    head, body, end = g.block("head", BOOL, INT), g.block("body"), g.block("end")
    g.jump(g.entry, head, True, 0)
    g.branch(head, head.params[0], body, end)
    more = g.host(body, "add", head.params[1], 1)
    g.jump(body, head, g.host(body, "lt", more, g.params[0]), more)
    g.leave(end, head.params[1])
    assert decided_joins(g.graph) == 0


def test_a_switch_has_no_sides_beyond_its_index() -> None:
    g = GraphBuilder("sides", {"n": INT})
    sides = [g.block(f"side{k}") for k in range(5)]
    g.switch(g.entry, g.host(g.entry, "mod", g.params[0], 2), *sides)
    for k, side in enumerate(sides):
        g.leave(side, k)
    assert value_ranges(g.graph) == 1
    assert len(g.entry.edges()) == 2
    assert [interpret(g.graph, [n])[0] for n in (4, 5)] == [(0,), (1,)]


def test_selections_and_what_may_raise() -> None:
    g = GraphBuilder("select", {"n": INT, "m": INT})
    small = g.host(g.entry, "mod", g.params[0], 3)
    index = g.host(g.entry, "select", g.host(g.entry, "lt", small, 0), g.host(g.entry, "add", small, 3), small)
    zero = g.host(g.entry, "mul", 0, g.host(g.entry, "floordiv", 1, g.params[1]))
    g.leave(g.entry, index, zero)
    run_passes(g.graph)
    assert [s.op for s in g.entry.steps if isinstance(s, HostOp)] == ["mod", "floordiv"]
    assert interpret(g.graph, [-1, 5])[0] == (2, 0)
    with pytest.raises(ZeroDivisionError):
        interpret(g.graph, [1, 0])
