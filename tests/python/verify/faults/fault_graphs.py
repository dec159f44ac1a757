# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Faults of any front end, as what they leave behind: a graph that is changed after staging."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fault_harness import Fault, Program
from torch import nn

from dycl_tvm.hcfg.nodes import HCFG, Branch, Constant, HostOp, Return, Switch, TensorOp, Value, map_operands
from dycl_tvm.hcfg.types import TensorType


class Gates(nn.Module):
    """Branches, a loop, a switch and state, on small tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(2, 3))

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = torch.relu(self.layer(x))
        if y.sum() > 0.7:
            z = y * 2 - 1
            w = y + 3
        else:
            z = x - 0.25
            w = y * 0.5
        k = 0
        while z.abs().sum() > 1.5 and k < 4:
            z = z * 0.75 + 0.01
            k = k + 1
        n = int((x > 0).sum()) % 3
        out = [z + 1, w * 2, z - w][n]
        self.mean = self.mean * 0.5 + out
        return out, k, self.mean * 1


X = torch.tensor([[0.5, -1.0, 0.25], [0.125, 0.75, -0.5]])
GATES = Program("gates", lambda: Gates().eval(), [(X,), (X + 1,), (-X - 1,), (X + 3,), (X * 0.1,), (X[:, [1, 0, 2]] * 2,), (X * 4,)])


def _branches(graph: HCFG) -> list[Branch]:
    return [b.terminator for b in graph.blocks if isinstance(b.terminator, Branch)]


def _invert(graph: HCFG) -> None:
    term = _branches(graph)[0]
    term.then, term.orelse = term.orelse, term.then


def _swap_join(graph: HCFG) -> None:
    for block in graph.blocks:
        for edge in block.edges():
            kinds = [p.type for p in edge.target.params]
            for i in range(len(kinds)):
                for j in range(i):
                    if kinds[i] == kinds[j] and isinstance(kinds[i], TensorType) and edge.args[i] is not edge.args[j]:
                        edge.args[i], edge.args[j] = edge.args[j], edge.args[i]
                        return
    raise AssertionError("no join of two tensors")


def _drop_state(graph: HCFG) -> None:
    keep = graph.entry.params[len(graph.input_names) :]
    for block in graph.blocks:
        if isinstance(block.terminator, Return):
            block.terminator.state = list(keep)


def _last_switch(graph: HCFG) -> None:
    term = next(b.terminator for b in graph.blocks if isinstance(b.terminator, Switch))
    term.edges[-1], term.edges[0] = term.edges[0], term.edges[-1]


def _host(op: str, to: str) -> Callable[[HCFG], None]:
    def mutate(graph: HCFG) -> None:
        step = next(s for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op == op)
        step.op = to

    return mutate


def _tensor(op: str, to: str) -> Callable[[HCFG], None]:
    def mutate(graph: HCFG) -> None:
        step = next(s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) and s.op == op)
        step.op = to

    return mutate


def _off_by_one(graph: HCFG) -> None:
    step = next(s for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op in ("lt", "le", "gt", "ge") and s.args[1] == 4)
    step.args = (step.args[0], 3)


def _constant(graph: HCFG) -> None:
    """A weight as it was before."""
    for block in graph.blocks:
        for step in block.steps:
            if not isinstance(step, TensorOp):
                continue
            for value in step.operands():
                if isinstance(value, Constant) and value.type.shape == (3,):  # type: ignore[union-attr]
                    stale = Constant(value.type, value.data * 0.5, value.name)  # type: ignore[arg-type]

                    def put(v: Value, old: Value = value, new: Value = stale) -> Value:
                        return new if v is old else v

                    step.args = map_operands(step.args, put)
                    return
    raise AssertionError("no bias")


def _initial(graph: HCFG) -> None:
    var = next(v for v in graph.state if isinstance(v.initial, Constant))
    var.initial = Constant(var.type, var.initial.data + 1, "")  # type: ignore[arg-type, union-attr]


def _number(graph: HCFG) -> None:
    """A number that Python has computed once, for ever."""
    for block in graph.blocks:
        if isinstance(block.terminator, Return):
            for k, v in enumerate(block.terminator.values):
                if isinstance(v, Value) and str(v.type) == "int":
                    block.terminator.values[k] = 2
                    return
    raise AssertionError("no number is returned")


def _wrong_results(graph: HCFG) -> None:
    for block in graph.blocks:
        if isinstance(block.terminator, Return):
            values = block.terminator.values
            values[0], values[2] = values[2], values[0]


def _skipped(graph: HCFG) -> None:
    """An edge of a loop carries the old tensor."""
    read = {v for b in graph.blocks for s in b.steps for v in s.operands()}
    made = {v for b in graph.blocks for s in b.steps for v in s.results()}
    for k, block in enumerate(graph.blocks):
        for edge in block.edges():
            back = edge.target in graph.blocks[: k + 1]
            for n, (p, a) in enumerate(zip(edge.target.params, edge.args)):
                if back and isinstance(p.type, TensorType) and p in read and a in made:
                    edge.args[n] = p
                    return
    raise AssertionError("no loop carries a tensor")


FAULTS = [
    Fault(name, "graph", GATES, mutate=mutate)
    for name, mutate in (
        ("the sides of a branch change places", _invert),
        ("two values of a join change places", _swap_join),
        ("new state is dropped", _drop_state),
        ("two cases of a choice change places", _last_switch),
        ("a host addition subtracts", _host("add", "sub")),
        ("remainder becomes floor division", _host("mod", "floordiv")),
        ("relu is dropped", _tensor("aten.relu.default", "aten.clone.default")),
        ("a product becomes a sum", _tensor("aten.mul.Tensor", "aten.add.Tensor")),
        ("the bound of a loop is off by one", _off_by_one),
        ("a stale weight", _constant),
        ("state begins with another value", _initial),
        ("a number is baked in", _number),
        ("results change places", _wrong_results),
        ("a loop carries the old value", _skipped),
    )
]
