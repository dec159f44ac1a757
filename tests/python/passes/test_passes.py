# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What each pass does, on graphs built by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from dycl_tvm.errors import InvariantError, UsageError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Constant, Edge, HostOp, Jump, Origin, Return, StateVar, SubDNNCall, TensorOp, Value
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import PASSES, PassStats, run_passes
from dycl_tvm.passes.rewrite import is_pure

RUN = dict(PASSES)
V = tensor(4)
HERE = Origin("model.py", 12, "Net.forward", "if self.gate(x) > 0.5:")


def apply(graph: HCFG, *names: str) -> list[int]:
    changes = []
    for name in names:
        verify(graph)
        changes.append(RUN[name](graph))
        verify(graph)
    return changes


def ops(block: Block) -> list[str]:
    return [s.op for s in block.steps if isinstance(s, (TensorOp, HostOp))]


def value(graph: HCFG, k: int = 0) -> Any:
    """The k-th value that the last return gives."""
    return [b.terminator for b in graph.blocks if isinstance(b.terminator, Return)][-1].values[k]


@pytest.mark.parametrize(
    "op, args, kwargs",
    [
        ("aten.clone.default", (), {}), ("aten.detach.default", (), {}), ("aten.alias.default", (), {}),
        ("aten.view.default", ([2, 2],), {}), ("aten.reshape.default", ([2, -1],), {}), ("aten.expand.default", ([2, 2],), {}),
        ("aten._to_copy.default", (), {"dtype": torch.float32}), ("aten.slice.Tensor", (0, 0, 9223372036854775807), {}),
        ("aten.permute.default", ([0, -1],), {}), ("aten.transpose.int", (1, -1), {}), ("aten.dropout.default", (0.5, False), {}),
        ("aten.native_dropout.default", (0.5, False), {}), ("aten.repeat.default", ([1, 1],), {}),
        ("aten.constant_pad_nd.default", ([0, 0],), {}), ("aten.lift_fresh_copy.default", (), {}), ("aten.squeeze.default", (), {}),
    ],
)  # fmt: skip
def test_identities_go(op: str, args: tuple, kwargs: dict) -> None:
    g = GraphBuilder("same", {"x": tensor(2, 2)})
    g.leave(g.entry, g.op(g.entry, op, g.params[0], *args, **kwargs))
    assert apply(g.graph, "identity_elimination") == [1]
    assert value(g.graph) is g.params[0]


@pytest.mark.parametrize(
    "op, args, kwargs",
    [
        ("aten.permute.default", ([1, 0],), {}), ("aten.transpose.int", (0, 1), {}), ("aten.view.default", ([4],), {}),
        ("aten.relu.default", (), {}), ("aten._to_copy.default", (), {"dtype": torch.float64}), ("aten.dropout.default", (0.5, True), {}),
        ("aten.flip.default", ([0],), {}),
        ("aten.roll.default", ([1],), {}), ("aten.as_strided.default", ([2, 2], [1, 2]), {}),
    ],
)  # fmt: skip
def test_what_changes_something_stays(op: str, args: tuple, kwargs: dict) -> None:
    g = GraphBuilder("other", {"x": tensor(2, 2)})
    g.leave(g.entry, g.op(g.entry, op, g.params[0], *args, **kwargs))
    assert apply(g.graph, "identity_elimination") == [0]


def test_a_choice_by_one_condition_is_made_once() -> None:
    g = GraphBuilder("choice", {"x": V, "c": tensor(4, dtype="bool"), "d": tensor(4, dtype="bool")})
    zero, one = constant(torch.zeros(())), constant(torch.ones(()))
    x, c, d = g.params
    inner = g.op(g.entry, "aten.where.self", c, x, zero)
    outer = [g.op(g.entry, "aten.where.self", *args) for args in ((c, inner, zero), (c, inner, one), (d, inner, zero), (c, zero, inner))]
    g.leave(g.entry, *outer)
    assert apply(g.graph, "identity_elimination") == [1]
    assert value(g.graph) is inner


NOWHERE = torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize(
    "op, args",
    [
        ("aten.index_put.default", ([NOWHERE, NOWHERE], torch.ones(()))), ("aten.index_add.default", (0, NOWHERE, torch.ones(0, 2))),
        ("aten.index_copy.default", (0, NOWHERE, torch.ones(0, 2))), ("aten.index_fill.int_Scalar", (1, NOWHERE, 2)),
        ("aten.scatter.value", (0, NOWHERE.reshape(0, 0), 3)), ("aten.scatter_add.default", (0, NOWHERE.reshape(0, 0), torch.ones(2, 2))),
        ("aten.scatter_reduce.two", (0, NOWHERE.reshape(0, 0), torch.ones(2, 2), "amax")),
        ("aten.slice_scatter.default", (torch.ones(0, 2), 0, 1, 1)), ("aten.put.default", (NOWHERE, torch.ones(0))),
    ],
)  # fmt: skip
def test_what_writes_nowhere_goes(op: str, args: tuple) -> None:
    g = GraphBuilder("same", {"x": tensor(2, 2)})
    given = torch.utils._pytree.tree_map(lambda x: constant(x) if isinstance(x, torch.Tensor) else x, args)
    g.leave(g.entry, g.op(g.entry, op, g.params[0], *given))
    assert apply(g.graph, "identity_elimination") == [1]
    assert value(g.graph) is g.params[0]


def test_used_dropout_mask_keeps_the_dropout() -> None:
    g = GraphBuilder("mask", {"x": V})
    out, mask = g.ops(g.entry, "aten.native_dropout.default", g.params[0], 0.5, False)
    g.leave(g.entry, out, mask)
    assert apply(g.graph, "identity_elimination") == [0]


def test_constants_fold_through_tensors_scalars_and_branches() -> None:
    g = GraphBuilder("fold", {"x": V})
    w = constant(torch.arange(4.0), "w")
    doubled = g.op(g.entry, "aten.mul.Tensor", w, 2)
    total = g.host(g.entry, "item", g.op(g.entry, "aten.sum.default", doubled))
    yes, no = g.block("yes"), g.block("no")
    g.branch(g.entry, g.host(g.entry, "gt", g.host(g.entry, "add", total, 1), 12.5), yes, no, HERE)
    g.leave(yes, g.op(yes, "aten.add.Tensor", g.params[0], doubled), total)
    g.leave(no, g.params[0], 0.0)
    want = interpret(g.graph, [torch.ones(4)])[0]
    apply(g.graph, "constant_propagation", "dead_code", "merge_blocks")
    assert len(g.graph.blocks) == 1
    assert ops(g.entry) == ["aten.add.Tensor"]
    got = interpret(g.graph, [torch.ones(4)])[0]
    assert torch.equal(want[0], got[0])
    assert want[1] == got[1] == value(g.graph, 1) == 12.0


def test_creations_and_their_copies_in_forks_give_one_constant() -> None:
    g = GraphBuilder("make", {"x": V, "c": BOOL})
    yes, no = g.block("yes"), g.block("no")
    g.branch(g.entry, g.params[1], yes, no)
    for b in (yes, no):
        zeros = g.op(b, "aten.zeros_like.default", g.params[0])
        g.leave(b, g.op(b, "aten.add.Tensor", g.op(b, "aten.full.default", [4], 3.0), 1), zeros)
    assert apply(g.graph, "constant_propagation") == [6]
    assert len(g.graph.constants()) == 2
    assert interpret(g.graph, [torch.ones(4), True])[0][0].tolist() == [4.0] * 4


def test_constants_without_elements_are_one_whatever_their_type() -> None:
    g = GraphBuilder("empty", {"x": V})
    g.leave(g.entry, *(constant(torch.zeros(0, 3, dtype=torch.bfloat16), name) for name in "ab"))
    assert apply(g.graph, "common_subexpression") == [1]


def test_errors_and_blow_up_are_not_folded() -> None:
    g = GraphBuilder("keep", {"x": V})
    ratio = g.host(g.entry, "floordiv", 1, 0)
    large = g.op(g.entry, "aten.expand.default", constant(torch.ones(1), "one"), [8 << 20])
    g.leave(g.entry, ratio, large)
    assert apply(g.graph, "constant_propagation", "dead_code", "constant_propagation") == [0, 0, 0]
    with pytest.raises(ZeroDivisionError):
        interpret(g.graph, [torch.ones(4)])


def test_folding_keeps_the_kinds_of_numbers() -> None:
    g = GraphBuilder("kinds", {})
    g.leave(g.entry, g.host(g.entry, "truediv", 4, 2), g.host(g.entry, "floordiv", -7, 2), g.host(g.entry, "neg", 0.0))
    apply(g.graph, "constant_propagation")
    assert [repr(value(g.graph, k)) for k in range(3)] == ["2.0", "-4", "-0.0"]


def test_index_out_of_range_still_raises() -> None:
    g = GraphBuilder("range", {"x": V})
    one = g.block("one")
    g.switch(g.entry, 3, one, one)
    g.leave(one, g.params[0])
    run_passes(g.graph)
    with pytest.raises(IndexError):
        interpret(g.graph, [torch.ones(4)])


def batch_norm(g: GraphBuilder, b: Block, x: Value, channels: int, op: str = "aten._native_batch_norm_legit_no_training.default") -> Value:
    gen = torch.Generator().manual_seed(channels)
    stats = [constant(torch.rand(channels, generator=gen) + 0.5, f"bn.{n}") for n in ("weight", "bias", "running_mean", "running_var")]
    rest = {"aten.batch_norm.default": (False, 0.1, 1e-5, True), "aten.native_batch_norm.default": (False, 0.1, 1e-5)}.get(op, (0.1, 1e-5))
    return g.op(b, op, x, *stats, *rest)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "op", ["aten._native_batch_norm_legit_no_training.default", "aten.native_batch_norm.default", "aten.batch_norm.default"]
)
def test_batch_norm_goes_into_the_convolution(bias: bool, groups: int, op: str) -> None:
    g = GraphBuilder("conv", {"x": tensor(2, 3, 5, 5)})
    w, b = constant(torch.randn(6, 3 // groups, 3, 3), "conv.weight"), constant(torch.randn(6), "conv.bias") if bias else None
    y = g.op(g.entry, "aten.convolution.default", g.params[0], w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    g.leave(g.entry, batch_norm(g, g.entry, y, 6, op))
    x = torch.randn(2, 3, 5, 5)
    want = interpret(g.graph, [x])[0][0]
    assert apply(g.graph, "fold_batch_norm") == [1]
    assert ops(g.entry) == ["aten.convolution.default"]
    torch.testing.assert_close(interpret(g.graph, [x])[0][0], want, rtol=1e-5, atol=1e-5)


def test_batch_norm_elsewhere_is_two_operations() -> None:
    g = GraphBuilder("norm", {"x": tensor(2, 3, 5, 5)})
    y = g.op(
        g.entry, "aten.convolution.default", g.params[0], constant(torch.randn(3, 3, 1, 1)), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1
    )
    shared = g.op(g.entry, "aten.convolution.default", y, constant(torch.randn(3, 3, 1, 1)), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    first, second = batch_norm(g, g.entry, y, 3), batch_norm(g, g.entry, shared, 3)
    g.leave(g.entry, first, second, shared)
    x = torch.randn(2, 3, 5, 5)
    want = interpret(g.graph, [x])[0]
    assert apply(g.graph, "fold_batch_norm") == [2]
    assert Counter(ops(g.entry))["aten.mul.Tensor"] == 2
    torch.testing.assert_close(interpret(g.graph, [x])[0], want, rtol=1e-5, atol=1e-5)


def test_batch_norm_in_training_or_with_used_statistics_stays() -> None:
    g = GraphBuilder("train", {"x": tensor(2, 3, 5, 5)})
    ones = constant(torch.ones(3))
    a = g.op(g.entry, "aten.native_batch_norm.default", g.params[0], ones, ones, ones, ones, True, 0.1, 1e-5)
    b, mean, _ = g.ops(g.entry, "aten._native_batch_norm_legit_no_training.default", g.params[0], ones, ones, ones, ones, 0.1, 1e-5)
    g.leave(g.entry, a, b, mean)
    assert apply(g.graph, "fold_batch_norm") == [0]


def test_dead_loop_values_state_and_results_go() -> None:
    g = GraphBuilder("dead", {"x": V, "n": INT}, [StateVar("kept", INT, 0), StateVar("unread", V, constant(torch.zeros(4)))])
    x, n, kept, unread = g.params
    head, body, end = g.block("head", INT, V, FLOAT), g.block("body"), g.block("end")
    k, h, useless = head.params
    g.jump(g.entry, head, 0, x, 1.0)
    g.branch(head, g.host(head, "lt", k, n), body, end)
    best, index = g.ops(body, "aten.max.dim", g.op(body, "aten.view.default", h, [1, 4]), 0)
    g.jump(body, head, g.host(body, "add", k, 1), best, g.host(body, "mul", useless, 2.0))
    g.host(end, "sqrt", -1.0)  # raises in eager
    g.leave(end, h, kept, state=[g.host(end, "add", kept, 1), g.op(end, "aten.add.Tensor", unread, h)])
    apply(g.graph, "dead_code")
    assert [v.name for v in g.graph.state] == ["kept"]
    assert head.params == [k, h]
    assert ops(body) == ["aten.view.default", "aten.max.dim", "add"]
    assert body.steps[1].results() == [best]
    assert ops(end) == ["sqrt", "add"]
    assert apply(g.graph, "dead_code") == [0]


def test_redundant_parameters_go_in_loops_too() -> None:
    g = GraphBuilder("phi", {"x": V, "n": INT})
    x, n = g.params
    head, body, end = g.block("head", INT, V, INT, INT), g.block("body"), g.block("end")
    k, same, twin, other = head.params
    g.jump(g.entry, head, 0, x, 0, 1)
    g.branch(head, g.host(head, "lt", k, n), body, end)
    nxt = g.host(body, "add", k, 1)
    g.jump(body, head, nxt, same, nxt, nxt)
    g.leave(end, same, twin, other)
    assert apply(g.graph, "block_parameters") == [2]
    assert head.params == [k, other]
    assert (value(g.graph, 0), value(g.graph, 1)) == (x, k)


def test_jumps_thread_through_decided_branches() -> None:
    g = GraphBuilder("thread", {"x": V, "c": BOOL, "d": BOOL})
    x, c, d = g.params
    again, empty, yes, no = g.block("again", BOOL), g.block("empty"), g.block("yes"), g.block("no")
    g.branch(g.entry, c, Edge(again, [True]), empty)
    g.jump(empty, again, d)
    g.branch(again, again.params[0], yes, no)
    g.leave(yes, 1)
    g.leave(no, x)
    apply(g.graph, "jump_threading", "dead_code")
    assert g.entry.successors() == [yes, again]
    assert not any(b is empty for b in g.graph.blocks)


def test_branch_on_not_is_exchanged_only_where_no_source_line_stands_behind_it() -> None:
    for origin in (None, HERE):
        g = GraphBuilder("not", {"c": BOOL})
        yes, no = g.block("yes"), g.block("no")
        g.branch(g.entry, g.host(g.entry, "not", g.params[0]), yes, no, origin)
        g.leave(yes, 1)
        g.leave(no, 2)
        apply(g.graph, "jump_threading")
        assert g.entry.successors() == ([no, yes] if origin is None else [yes, no])


def test_a_known_condition_is_not_asked_again() -> None:
    g = GraphBuilder("known", {"c": BOOL})
    yes, no, inner, never = g.block("yes"), g.block("no"), g.block("inner"), g.block("never")
    g.branch(g.entry, g.params[0], yes, no, HERE)
    g.branch(yes, g.params[0], inner, never, HERE)
    for k, b in enumerate((no, inner, never)):
        g.leave(b, k, origin=Origin("model.py", k))
    run_passes(g.graph)
    assert len(g.graph.blocks) == 3


def test_work_sinks_over_several_levels_and_onto_edges_but_not_into_loops() -> None:
    g = GraphBuilder("sink", {"x": V, "c": BOOL, "n": INT})
    x, c, n = g.params
    heavy = g.op(g.entry, "aten.tanh.default", g.op(g.entry, "aten.relu.default", x))
    edge_only = g.op(g.entry, "aten.sigmoid.default", x)
    risky = g.host(g.entry, "floordiv", 7, n)
    noise = g.op(g.entry, "aten.rand_like.default", x)
    yes, join, head, body, end = g.block("yes"), g.block("join", V), g.block("head", INT), g.block("body"), g.block("end")
    g.branch(g.entry, c, yes, Edge(join, [edge_only]))
    g.branch(yes, g.host(yes, "gt", n, 3), Edge(head, [0]), Edge(join, [x]))
    g.branch(head, g.host(head, "lt", head.params[0], n), body, end)
    item = g.host(body, "to_int", g.host(body, "item", g.op(body, "aten.sum.default", heavy)))
    g.jump(body, head, g.host(body, "add", g.host(body, "mul", item, 0), n))
    g.leave(end, risky, noise)
    g.leave(join, join.params[0])
    counts: Counter[str] = Counter()
    apply(g.graph, "sinking")
    assert ops(g.entry) == ["floordiv", "aten.rand_like.default"]
    for flag, count, ran in [(True, 5, {"aten.tanh.default"}), (True, 1, set()), (False, 1, {"aten.sigmoid.default"})]:
        counts.clear()
        interpret(g.graph, [torch.ones(4), flag, count], counts=counts)
        assert {op for op in ("aten.tanh.default", "aten.sigmoid.default") if counts[op]} == ran
        assert counts["aten.relu.default"] == counts["aten.tanh.default"] <= 1


def test_common_subexpressions_are_shared_downwards_only() -> None:
    g = GraphBuilder("cse", {"x": V, "c": BOOL})
    x, c = g.params
    a = g.op(g.entry, "aten.relu.default", x)
    yes, no, join = g.block("yes"), g.block("no"), g.block("join")
    g.branch(g.entry, c, yes, no)
    for b in (yes, no):
        g.op(b, "aten.tanh.default", x)
        g.jump(b, join)
    again = g.op(join, "aten.relu.default", x)
    tanh = g.op(join, "aten.tanh.default", x)
    noise = [g.op(join, "aten.rand_like.default", x) for _ in range(2)]
    scaled = [g.op(join, "aten.mul.Scalar", x, s) for s in (1, 1.0)]
    g.leave(join, again, tanh, *noise, *scaled)
    assert apply(g.graph, "common_subexpression") == [1]
    assert value(g.graph) is a
    assert len(join.steps) == 5


def forked(depth: int, weight: Constant) -> HCFG:
    """A full binary tree of forks, whose sides go on alike."""
    g = GraphBuilder("forked", {"x": V, "n": INT})

    def grow(block: Block, x: Value, level: int) -> None:
        if level == depth:
            out = g.op(block, "aten.add.Tensor", x, weight)
            g.leave(block, g.op(block, "aten.tanh.default", out), origin=HERE)
            return
        bit = g.host(block, "mod", g.host(block, "floordiv", g.params[1], 2**level), 2)
        yes, no = g.block("yes"), g.block("no")
        g.branch(block, g.host(block, "eq", bit, 1), yes, no, HERE)
        for b, op in ((yes, "relu"), (no, "neg")):
            y = g.op(b, f"aten.{op}.default", x)
            grow(b, g.op(b, "aten.sigmoid.default", y), level + 1)

    grow(g.entry, g.params[0], 0)
    return g.graph


def test_tails_of_forked_paths_meet_again() -> None:
    weight = constant(torch.ones(4), "w")
    graph, want = forked(5, weight), forked(5, weight)
    assert len(graph.blocks) == 63
    run_passes(graph)
    assert len(graph.blocks) <= 4 * 5
    for n in range(32):
        x = torch.randn(4)
        assert torch.equal(interpret(graph, [x, n])[0][0], interpret(want, [x, n])[0][0])


def two_exits(second: dict[str, Any]) -> HCFG:
    g = GraphBuilder("exits", {"x": V, "c": BOOL})
    yes, no = g.block("yes"), g.block("no")
    g.branch(g.entry, g.params[1], yes, no)
    base = {"w": constant(torch.ones(4), "w"), "op": "aten.tanh.default", "origin": HERE}
    for b, how in ((yes, base), (no, {**base, **second})):
        own = g.op(b, "aten.relu.default" if b is yes else "aten.neg.default", g.params[0])
        g.leave(b, g.op(b, how["op"], g.op(b, "aten.add.Tensor", own, how["w"])), origin=how["origin"])
    return g.graph


def test_only_equal_tails_are_shared() -> None:
    w = constant(torch.ones(4), "w")
    assert apply(two_exits({}), "tail_merging") == [1]  # tanh alone: the weights are two objects
    for other in ({"op": "aten.sigmoid.default"}, {"origin": Origin("model.py", 13)}):
        assert apply(two_exits({"w": w, **other}), "tail_merging") == [0]


def test_outline_splits_only_where_a_scalar_is_needed() -> None:
    g = GraphBuilder("split", {"x": V})
    (x,) = g.params
    score = g.host(g.entry, "item", g.op(g.entry, "aten.mean.default", x))
    beside = g.op(g.entry, "aten.relu.default", x)
    scale = g.host(g.entry, "to_tensor", g.host(g.entry, "add", score, 1.0), type=tensor())
    g.leave(g.entry, g.op(g.entry, "aten.mul.Tensor", beside, scale))
    want = interpret(g.graph, [torch.arange(4.0)])[0][0]
    assert run_passes(g.graph).changes["outline"] == 2
    calls = [s for s in g.entry.steps if isinstance(s, SubDNNCall)]
    assert [[op.op for op in c.callee.ops] for c in calls] == [["aten.mean.default", "aten.relu.default"], ["aten.mul.Tensor"]]
    assert torch.equal(interpret(g.graph, [torch.arange(4.0)])[0][0], want)


def test_equal_layers_with_other_weights_share_a_sub_dnn() -> None:
    g = GraphBuilder("layers", {"x": V, "c": BOOL})
    x, block = g.params[0], g.entry
    for k in range(6):
        work, join = g.block("work"), g.block("join", V)
        g.branch(block, g.params[1], work, Edge(join, [x]), HERE)
        y = g.op(work, "aten.mul.Tensor", x, constant(torch.full((4,), float(k)), f"l{k}.w"))
        out = g.op(work, "aten.clamp.default" if k == 5 else "aten.relu.default", y, *([0.5] if k == 5 else []))
        g.jump(work, join, out)
        block, x = join, join.params[0]
    g.leave(block, x)
    run_passes(g.graph, {"jump_threading"})
    bodies = g.graph.sub_dnns()
    assert len(bodies) == 2
    assert all(isinstance(a, Constant) for b in g.graph.blocks for s in b.steps if isinstance(s, SubDNNCall) for a in s.args[1:])


def test_purity() -> None:
    def step(op: str, *args: Any) -> TensorOp:
        return TensorOp(op, args, {}, (Value(V),))

    x = Value(V)
    assert not any(map(is_pure, [
        step("aten.rand.default", [4]), step("aten.bernoulli.default", x), step("aten.dropout.default", x, 0.5, True),
        step("aten.native_dropout.default", x, 0.5, None), step("aten.multinomial.default", x, 1), step("aten.randperm.default", 4),
        step("aten.empty_like.default", x), step("aten.add_.Tensor", x, x), step("aten.normal.Tensor_float", x),
        step("aten.native_batch_norm.default", x, None, None, x, x, True, 0.1, 1e-5),
        step("aten.scaled_dot_product_attention.default", x, x, x, None, 0.1),
    ]))  # fmt: skip
    assert all(map(is_pure, [
        step("aten.dropout.default", x, 0.5, False), step("aten.relu.default", x),
        step("aten.scaled_dot_product_attention.default", x, x, x),
        step("aten._native_batch_norm_legit.default", x, None, None, x, x, False, 0.1, 1e-5),
    ]))  # fmt: skip


def test_random_steps_are_left_alone() -> None:
    g = GraphBuilder("noise", {"c": BOOL})
    noise = [g.op(g.entry, "aten.rand.default", [4]) for _ in range(2)]
    yes, no = g.block("yes"), g.block("no")
    g.branch(g.entry, g.params[0], yes, no)
    g.leave(yes, *noise)
    g.leave(no, 1)
    assert apply(g.graph, *[n for n, _ in PASSES[:-1]]) == [0] * (len(PASSES) - 1)


def test_switches_of_the_pipeline() -> None:
    g = GraphBuilder("switches", {"x": V})
    g.leave(g.entry, g.op(g.entry, "aten.clone.default", g.params[0]))
    with pytest.raises(UsageError, match="outline"):
        run_passes(g.graph, ["outline"])
    with pytest.raises(UsageError, match="identity_elimination"):
        run_passes(g.graph, ["identities"])
    stats = run_passes(g.graph, ["identity_elimination"])
    assert isinstance(stats, PassStats)
    assert stats.changes["outline"] == 1
    assert "identity_elimination" not in stats.seconds


def test_unsound_graph_is_refused_with_the_culprit() -> None:
    g = GraphBuilder("unsound", {"x": V})
    g.entry.terminator = Jump(Edge(Block("nowhere")))
    with pytest.raises(InvariantError, match="after the front end.*nowhere"):
        run_passes(g.graph)


def test_branch_term_stays_a_branch() -> None:
    """A two-sided branch with the same target but other arguments decides something."""
    g = GraphBuilder("args", {"c": BOOL})
    join = g.block("join", INT)
    g.branch(g.entry, g.params[0], Edge(join, [1]), Edge(join, [2]))
    g.leave(join, join.params[0])
    run_passes(g.graph)
    assert isinstance(g.entry.terminator, Branch)


@pytest.mark.parametrize("op", ["sub", "div"])
def test_tails_with_another_flow_of_values_are_not_one(op: str) -> None:
    g = GraphBuilder("flow", {"x": V, "c": BOOL})
    x, c = g.params
    yes, no = g.block("yes"), g.block("no")
    g.branch(g.entry, c, yes, no)
    for b in (yes, no):
        bent = g.op(b, "aten.exp.default", x)
        pair = (bent, x) if b is yes else (x, bent)
        g.leave(b, g.op(b, f"aten.{op}.Tensor", *pair), origin=HERE)
    data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    want = [interpret(g.graph, [data, flag])[0][0] for flag in (True, False)]
    apply(g.graph, "tail_merging")
    got = [interpret(g.graph, [data, flag])[0][0] for flag in (True, False)]
    assert all(map(torch.equal, want, got))


def test_a_tail_whose_values_are_read_below_stays() -> None:
    """The block before a loop and the loop's latch end alike, but what the first computes is read in the loop."""
    g = GraphBuilder("latch", {"x": V, "n": INT})
    x, n = g.params
    head, body, end = g.block("head", INT, V), g.block("body"), g.block("end")
    k, h = head.params
    start = g.op(g.entry, "aten.exp.default", x)
    g.jump(g.entry, head, 0, start)
    g.branch(head, g.host(head, "lt", k, n), body, end)
    nxt = g.host(body, "add", k, 1)
    g.jump(body, head, nxt, g.op(body, "aten.exp.default", h))
    g.leave(end, h, start)
    want = interpret(g.graph, [torch.zeros(4), 2])[0]
    apply(g.graph, "tail_merging")
    got = interpret(g.graph, [torch.zeros(4), 2])[0]
    assert all(map(torch.equal, want, got))
