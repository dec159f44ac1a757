# Licensed under the Apache License, Version 2.0; see LICENSE.
"""If, Loop, Scan and SequenceMap."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import torch

from dycl_tvm.frontend.onnx.execute import CHOICES, Env, Executor, Scope, control
from dycl_tvm.frontend.onnx.loops import Loop, run_loop
from dycl_tvm.frontend.onnx.node import Node
from dycl_tvm.frontend.onnx.values import Cause, Datum, Outcome, causes_of, is_runtime
from dycl_tvm.frontend.onnx.ways import Meeting
from dycl_tvm.hcfg.nodes import Block, Branch, Edge
from dycl_tvm.hcfg.types import BOOL


def _where(scope: Scope, node: Node) -> str:
    label = node.proto.name or next((o for o in node.proto.output if o), node.type)
    return f"{scope.where}/{label}"


def _inputs(node: Node, env: Env) -> list[Datum]:
    return [env[name] if name else None for name in node.proto.input]


def _if(ex: Executor, scope: Scope, node: Node, env: Env, ways: list[Outcome], kept: frozenset[str]) -> list[Outcome]:
    """Run an ``If``: a branch on the ways on which its condition is known only at run time, the one side on all others."""
    where = _where(scope, node)
    label = where.rsplit("/", 1)[-1]
    leading: dict[bool, list[Outcome]] = {True: [], False: []}
    undecided: list[Outcome] = []
    causes: frozenset[Cause] = frozenset()

    def condition(way: Outcome) -> Any:
        (cond,) = _inputs(node, ChainMap(way.own, env))
        if cond.numel() != 1:
            node.fail(f"its condition has {cond.numel()} elements")
        return cond

    for way in ways:
        cond = condition(way)
        (undecided if is_runtime(cond) else leading[bool(cond.item())]).append(way)
        if isinstance(way.group, Meeting):
            causes |= way.group.causes | {("merge", way.group.where)}
    for way in ex.meet(undecided):
        cond = condition(way)
        if not is_runtime(cond):
            leading[bool(cond.item())].append(way)
            continue
        causes |= causes_of(cond)
        ex.recorder.block = way.block
        holds = ex.recorder.item(cond, BOOL)
        sides = {taken: Block(f"{label}.{'then' if taken else 'else'}", origin=node.origin) for taken in (True, False)}
        way.block.terminator = Branch(holds, Edge(sides[True]), Edge(sides[False]), node.origin)
        for taken, block in sides.items():
            leading[taken].append(Outcome(block, [], dict(way.own), way.group))
    outcomes: list[Outcome] = []
    for taken, name in ((True, "then"), (False, "else")):
        if not leading[taken]:
            continue
        ex.recorder.origin = node.origin
        body = node.attr(f"{name}_branch")
        outcomes += ex.run(body, scope.inner(f"{label}.{name}", body), env, [], _together(leading[taken], where, causes), kept)
    ex.recorder.origin = node.origin
    return ex.settle(outcomes, where, causes)


def _together(ways: list[Outcome], where: str, causes: frozenset[Cause]) -> list[Outcome]:
    """Return ways that come from several places as ways that meet as soon as they do something."""
    if len(ways) == 1:
        return [Outcome(ways[0].block, [], ways[0].own)]
    meeting = Meeting(where, causes)
    return [Outcome(way.block, [], way.own, meeting) for way in ways]


CHOICES["If"] = _if


@control("Loop")
def _loop(ex: Executor, scope: Scope, node: Node, env: Env) -> list[Outcome]:
    inputs = _inputs(node, env)
    padded = inputs + [None] * (2 - len(inputs))
    trip, cond, states = padded[0], padded[1], padded[2:]
    body, where = node.attr("body"), _where(scope, node)
    inner = scope.inner(where.rsplit("/", 1)[-1], body)

    def run(number: torch.Tensor, holds: torch.Tensor, carried: list[Datum]) -> list[Outcome]:
        return ex.run(body, inner, env, [number, holds, *carried])

    names = list(node.proto.output)[len(states) :]
    scans = len(body.output) - 1 - len(states)
    declared = [_length(scope, name, 0) for name in names]
    return run_loop(ex, Loop(trip, cond, states, scans, run, declared, where))


def _length(scope: Scope, name: str, axis: int) -> int | None:
    shape = scope.declared.get(name) or ()
    return shape[axis] if axis < len(shape) else None


@control("Scan")
def _scan(ex: Executor, scope: Scope, node: Node, env: Env) -> list[Outcome]:
    inputs = _inputs(node, env)
    if node.opset < 9:
        return _scan8(ex, scope, node, env, inputs)
    count = node.attr("num_scan_inputs")
    states, sliced = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    axes = node.attr("scan_input_axes") or [0] * count
    sliced = [x.movedim(axis, 0) for x, axis in zip(sliced, axes)]
    outputs = len(node.attr("body").output) - len(states)
    outcomes = _scan_once(ex, scope, node, env, states, sliced, node.attr("scan_input_directions"), node.attr("scan_output_directions"))
    axes = node.attr("scan_output_axes") or [0] * outputs
    for outcome in outcomes:
        ex.recorder.block = outcome.block
        outcome.values[len(states) :] = [x.movedim(0, axis) for x, axis in zip(outcome.values[len(states) :], axes)]
    return outcomes


def _scan_once(
    ex: Executor, scope: Scope, node: Node, env: Env, states: list[Datum], sliced: list[torch.Tensor], ways_in: Any, ways_out: Any
) -> list[Outcome]:
    """Run a Scan over the first axis of ``sliced``; scan outputs have their rows on the first axis."""
    body, where = node.attr("body"), _where(scope, node)
    inner = scope.inner(where.rsplit("/", 1)[-1], body)
    lengths = {int(x.shape[0]) for x in sliced}
    if len(lengths) != 1:
        node.fail(f"its scan inputs have different lengths: {sorted(lengths)}")
    length = lengths.pop()
    back_in = ways_in or [0] * len(sliced)

    def run(number: torch.Tensor, holds: torch.Tensor, carried: list[Datum]) -> list[Outcome]:
        rows = []
        for x, backwards in zip(sliced, back_in):
            at = length - 1 - number if backwards else number
            rows.append(x.index_select(0, at.reshape(1)).squeeze(0) if is_runtime(at) else x.select(0, int(at.item())))
        outcomes = ex.run(body, inner, env, [*carried, *rows])
        return [Outcome(o.block, [holds, *o.values]) for o in outcomes]

    scans = len(body.output) - len(states)
    outcomes = run_loop(ex, Loop(length, None, states, scans, run, [None] * scans, where))
    back_out = ways_out or [0] * scans
    for outcome in outcomes:
        ex.recorder.block = outcome.block
        rows = outcome.values[len(states) :]
        outcome.values[len(states) :] = [x.flip(0) if backwards else x for x, backwards in zip(rows, back_out)]
    return outcomes


def _scan8(ex: Executor, scope: Scope, node: Node, env: Env, inputs: list[Datum]) -> list[Outcome]:
    """Run the Scan of operator set 8: every element of the batch by itself, each with a length of its own."""
    lengths, *rest = inputs
    count = node.attr("num_scan_inputs")
    states, sliced = rest[: len(rest) - count], rest[len(rest) - count :]
    batch, longest = int(sliced[0].shape[0]), int(sliced[0].shape[1])
    ends = node.ints(lengths, "the length of each sequence") or [longest] * batch
    total = len(node.attr("body").output)
    ways = [Outcome(ex.recorder.block, [[] for _ in range(total)])]
    for b in range(batch):
        following: list[Outcome] = []
        for way in ways:
            ex.recorder.block = way.block
            mine = [x.select(0, b).narrow(0, 0, ends[b]) for x in sliced]
            for found in _scan_once(ex, scope, node, env, [s.select(0, b) for s in states], mine, node.attr("directions"), None):
                ex.recorder.block = found.block
                for k in range(len(states), total):
                    row = found.values[k]
                    if ends[b] < longest:
                        row = torch.cat([row, torch.zeros((longest - ends[b], *row.shape[1:]), dtype=row.dtype)])
                    found.values[k] = row
                following.append(Outcome(found.block, [[*old, new] for old, new in zip(way.values, found.values)]))
        ways = following
    for way in ways:
        ex.recorder.block = way.block
        way.values = [torch.stack(rows, 0) for rows in way.values]
    return ways


@control("SequenceMap")
def _sequence_map(ex: Executor, scope: Scope, node: Node, env: Env) -> list[Outcome]:
    first, *others = _inputs(node, env)
    body, where = node.attr("body"), _where(scope, node)
    inner = scope.inner(where.rsplit("/", 1)[-1], body)

    def run(number: torch.Tensor, holds: torch.Tensor, carried: list[Datum]) -> list[Outcome]:
        k = int(number.item())
        arguments = [first[k], *(x[k] if isinstance(x, list) else x for x in others)]
        return [Outcome(o.block, [holds, *o.values]) for o in ex.run(body, inner, env, arguments)]

    scans = len(body.output)
    return run_loop(ex, Loop(len(first), None, [], scans, run, [None] * scans, where, stack=False))
