# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Outlining: the tensor operations of each block become calls of sub-DNNs, as few as the host operations allow.

Within a block an operation belongs to the earliest group that its operands allow; reading a scalar (``item``) ends a
group for all that depends on the scalar, and for nothing else. Sub-DNNs that compute the same on other operands are one,
but for those on paths of special sizes: there all of a result is wanted, of which elsewhere the first elements are.

A draw of random numbers is a sub-DNN by itself: it stands before the tensor operations of its group, as a kernel that
nothing is fused with.

Invariant: the dependences of steps hold, operations that are not pure keep their order, and so do the host operations
that can raise. Source: the grouping is scheduling as soon as possible on the graph of dependences with an edge weight
of one from a later turn to an earlier one; the sharing is hashing of canonical forms.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dycl_tvm.hcfg.draws import is_draw
from dycl_tvm.hcfg.hostops import must_run
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, HostOp, Origin, Step, SubDNN, SubDNNCall, TensorOp, Value, map_operands
from dycl_tvm.hcfg.special_sizes import special_paths
from dycl_tvm.passes.rewrite import count_uses, freeze, is_pure


def outline(graph: HCFG) -> int:
    """Form the sub-DNNs; return the number of calls."""
    uses = count_uses(graph)
    known: dict[Any, SubDNN] = {}
    special = special_paths(graph)
    calls = 0
    for block in graph.blocks:
        if not any(isinstance(s, TensorOp) for s in block.steps):
            continue  # nothing to do, or done before
        group_of = _levels(block)
        groups: dict[int, list[TensorOp]] = {}
        draws: dict[int, list[TensorOp]] = {}
        hosts: dict[int, list[Step]] = {}
        for step in block.steps:
            if isinstance(step, TensorOp) and is_draw(step.op):
                draws.setdefault(group_of[step], []).append(step)
            elif isinstance(step, TensorOp):
                groups.setdefault(group_of[step], []).append(step)
            else:
                hosts.setdefault(group_of[step], []).append(step)
        # A host operation of group k stands before the tensor operations of group k, and after those of group k - 1.
        steps: list[Step] = []
        for k in sorted(groups.keys() | draws.keys() | hosts.keys()):
            steps.extend(hosts.get(k, ()))
            for ops in (*([draw] for draw in draws.get(k, ())), groups.get(k, [])):
                outputs = _outputs(ops, uses)
                if outputs:
                    steps.append(_call(block, ops, outputs, known, graph.caller, special.get(block)))
                    calls += 1
        block.steps = steps
    return calls


def _levels(block: Block) -> dict[Step, int]:
    """Return the group of each step of a block."""
    made: dict[Value, tuple[int, int]] = {}
    found: dict[Step, int] = {}
    last_impure = last_raising = 0
    barrier = ends = 0  # a clock is read after all that stands before it, and before all that comes after
    for step in block.steps:
        stage = _stage_of(step)
        level = barrier
        for value in step.operands():
            if value in made:
                at, turn = made[value]
                # what has its turn before the maker of an operand waits for the next group
                level = max(level, at + (turn > stage))
        if isinstance(step, TensorOp) and not is_pure(step):
            level = last_impure = max(level, last_impure)
        if isinstance(step, HostOp) and must_run(step):
            level = last_raising = max(level, last_raising)
        if isinstance(step, HostOp) and step.op == "clock":
            level = barrier = max(level, ends)
        ends = max(ends, level + (stage > 0))
        found[step] = level
        for value in step.results():
            made[value] = (level, stage)
    return found


def _stage_of(step: Step) -> int:
    """Return when a step has its turn in a group: host operations, draws, tensor operations."""
    return 0 if isinstance(step, HostOp) else 1 if isinstance(step, TensorOp) and is_draw(step.op) else 2


def _outputs(ops: list[TensorOp], uses: Counter[Value]) -> list[Value]:
    """Return the results that others than these operations read."""
    inner = Counter(v for op in ops for v in op.operands())
    return [v for v in _in_order(ops) if uses[v] > inner[v]]


def _call(
    block: Block, ops: list[TensorOp], outputs: list[Value], known: dict[Any, SubDNN], caller: Origin | None, path: Origin | None
) -> SubDNNCall:
    """Return the call that stands for ``ops``, of a sub-DNN that may be shared by those of one path of special sizes, or none.

    The ``caller`` is no line of the model.
    """
    inside = {v for op in ops for v in op.results()}
    first_read: dict[Value, None] = {}
    for op in ops:
        first_read.update(dict.fromkeys(v for v in op.operands() if v not in inside))
    # What flows comes first, then the weights.
    args = sorted(first_read, key=lambda v: isinstance(v, Constant))

    number: dict[Value, int] = {}
    for value in [*args, *_in_order(ops)]:
        number[value] = len(number)
    index = number.__getitem__
    body = tuple(
        (op.op, freeze(op.args, index), freeze(op.kwargs, index), tuple(None if o is None else (index(o), o.type) for o in op.outputs))
        for op in ops
    )
    key = (path, tuple((a.type, isinstance(a, Constant)) for a in args), body, tuple(number[v] for v in outputs))
    if key not in known:
        known[key] = _outlined(f"sub_dnn_{len(known)}", args, ops, outputs)
    origin = next((op.origin for op in ops if op.origin is not None), block.origin)
    lines = tuple(dict.fromkeys(op.origin for op in ops if op.origin not in (None, caller)))
    return SubDNNCall(known[key], args, outputs, origin, lines)


def _in_order(ops: list[TensorOp]) -> list[Value]:
    return [v for op in ops for v in op.results()]


def _outlined(name: str, args: list[Value], ops: list[TensorOp], outputs: list[Value]) -> SubDNN:
    """Copy the operations into a scope of their own."""
    copies: dict[Value, Value] = {v: Value(v.type, v.name) for v in [*args, *_in_order(ops)]}
    body = [
        TensorOp(
            op.op,
            map_operands(op.args, copies.__getitem__),
            map_operands(op.kwargs, copies.__getitem__),
            tuple(None if o is None else copies[o] for o in op.outputs),
            op.origin,
        )
        for op in ops
    ]
    return SubDNN(name, [copies[a] for a in args], body, [copies[o] for o in outputs])
