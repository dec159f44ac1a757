# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A fault in each of the passes, with a program that it makes wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fault_harness import Fault, Program, edit
from torch import nn

X = torch.tensor([[0.5, -1.0, 0.25], [0.125, 0.75, -0.5]])
CALLS = [(X,), (X + 1,), (-X - 1,), (X + 3,), (X * 0.1,)]


def program(name: str, function: Callable[..., object]) -> Program:
    """Return a function as a program."""
    return Program(name, lambda: function, CALLS)


def square(x):  # type: ignore[no-untyped-def]
    y = x @ x.t()
    return y.permute(1, 0) * torch.arange(2.0), (x[:, :2] * x[:, 1:]).permute(1, 0) + 1


def ranged(x):  # type: ignore[no-untyped-def]
    n = int((x > 0).sum()) % 3
    return [x + 1, x * 2, x - 3, x][n]


def bounded(x):  # type: ignore[no-untyped-def]
    n = abs(int((x > 0).sum()) % 3)  # the front end does not know the bounds of an absolute value
    if n < 4:
        return x + n
    return x * 2


class Normed(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.conv, self.norm = nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4, eps=0.1)
        self.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.1, 1)  # type: ignore[union-attr]

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = self.norm(self.conv(x[None]))
        return y * 2 if y.sum() > 0 else y


def around(x):  # type: ignore[no-untyped-def]
    c = False
    y = x
    if x.sum() > 1:
        c = True
        y = x * 2
    for _ in range(2):
        if c:
            y = y + 1
        else:
            y = y * 3
    return y


def raising(x):  # type: ignore[no-untyped-def]
    n = int((x > 0).sum())
    k = 7 // n
    if x.sum() > 0:
        return x * k
    return x


def unused(x):  # type: ignore[no-untyped-def]
    n = int((x > 0).sum())
    7 // n
    return x * 2


def choose(x):  # type: ignore[no-untyped-def]
    a, b = x + 1, x * 2
    if x.sum() > 1:
        y = a
        z = torch.relu(a) * 3
    else:
        y = b
        z = torch.relu(b) * 3
    return y - 0.5, z + a + b


def pick(x):  # type: ignore[no-untyped-def]
    a, b = x + 1, x * 2
    return (a if x.sum() > 1 else b) - 0.5 + a * b


def known(x):  # type: ignore[no-untyped-def]
    n = abs(int((x > 0).sum()) % 3)
    if n < 5:
        a, b = x + n, x * 2
    else:
        a, b = x * 3, x - n
    return a - b


def scaled(x):  # type: ignore[no-untyped-def]
    y = torch.add(x, x * x, alpha=2)
    z = torch.add(x, x * x, alpha=3)
    return y * z


def elements(x):  # type: ignore[no-untyped-def]
    v = x.reshape(6)
    return v[0] * 2 + v[1] * 3 - v[5]


def alike(x):  # type: ignore[no-untyped-def]
    y = torch.relu(x)
    if y.sum() > 1:
        return torch.tanh(y)
    return torch.sigmoid(y)


_IN = "dycl_tvm.passes."
FAULTS = [
    Fault(name, "passes", shown, edit(_IN + target, old, new))
    for name, shown, target, old, new in (
        (
            "block_parameters takes what one edge gives",
            program("pick", pick),
            "block_parameters:_redundant",
            "len(given) == 1",
            "len(given) >= 1",
        ),
        (
            "identity_elimination takes a transposition for nothing",
            program("square", square),
            "identity_elimination:_hands_on",
            '[d % rank for d in static_argument(step, "dims")] == list(range(rank))',
            'sorted(d % rank for d in static_argument(step, "dims")) == list(range(rank))',
        ),
        (
            "constant_propagation takes the other side",
            program("known", known),
            "constant_propagation:_decide",
            "term.then if term.cond else term.orelse",
            "term.orelse if term.cond else term.then",
        ),
        (
            "value_ranges cuts one case too many",
            program("ranged", ranged),
            "value_ranges:value_ranges",
            "int(index.high) + 1 :",
            "int(index.high) :",
        ),
        (
            "value_ranges takes a comparison the other way",
            program("bounded", bounded),
            "value_ranges:value_ranges",
            "mapping[value] = bool(known.low) if value.type == BOOL else int(known.low)",
            "mapping[value] = not bool(known.low) if value.type == BOOL else int(known.low) + 1",
        ),
        (
            "fold_batch_norm forgets epsilon",
            Program("normed", lambda: Normed().eval(), CALLS),
            "fold_batch_norm:_affine",
            "torch.rsqrt(var + _eps(step))",
            "torch.rsqrt(var)",
        ),
        (
            "fold_batch_norm shifts the wrong way",
            Program("normed", lambda: Normed().eval(), CALLS),
            "fold_batch_norm:_affine",
            "- mean * scale)",
            "+ mean * scale)",
        ),
        (
            "jump_threading takes two edges to one block for one",
            program("pick", pick),
            "jump_threading:_same",
            " and freeze(a.args, lambda v: v) == freeze(b.args, lambda v: v)",
            "",
        ),
        (
            "jump_threading and decided_joins take the other side",
            program("around", around),
            "jump_threading:decided",
            "(term.then if cond else term.orelse)",
            "(term.orelse if cond else term.then)",
        ),
        (
            "decided_joins leads an edge to the wrong side",
            program("around", around),
            "decided_joins:decided_joins",
            "around.terminator = Jump(Edge(way_out.target, list(way_out.args)))",
            "other = [e for e in block.edges() if e is not way_out][0]; around.terminator = Jump(Edge(other.target, list(other.args)))",
        ),
        (
            "dead_code removes what may raise",
            program("unused", unused),
            "dead_code:_mark",
            "isinstance(step, HostOp) and must_run(step)",
            "isinstance(step, HostOp) and step.op == 'print'",
        ),
        (
            "merge_blocks gives arguments in the wrong order",
            program("known", known),
            "merge_blocks:merge_blocks",
            "zip(after.params, edge.args)",
            "zip(after.params, reversed(edge.args))",
        ),
        (
            "common_subexpression does not look at keywords",
            program("scaled", scaled),
            "common_subexpression:_key",
            "freeze(step.kwargs, lambda v: v), ",
            "",
        ),
        (
            "sinking moves what may raise",
            program("raising", raising),
            "sinking:_target",
            " or not _movable(step)",
            "",
        ),
        (
            "tail_merging keeps the first one's operands",
            program("choose", choose),
            "tail_merging:_Merger.unify",
            "len(set(key)) == 1",
            "len(key) >= 1",
        ),
        (
            "index_as_data is off by one",
            program("elements", elements),
            "index_as_data:index_as_data",
            "torch.tensor(index)",
            "torch.tensor(max(index - 1, 0))",
        ),
        (
            "outline takes all sub-DNNs of one signature for one",
            program("alike", alike),
            "outline:_call",
            "for a in args), body, tuple",
            "for a in args), tuple",
        ),
    )
]
