# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dead code elimination: steps, results, block parameters, state variables and blocks that nothing needs.

Invariant: what stays is what an exit, a decision or an exception depends on. Everything counts as dead until it is
marked, so that a loop that only feeds itself goes too. Source: R. Cytron et al., "Efficiently computing static single
assignment form", TOPLAS 1991, 7.1 (marking from the critical statements).
"""

from __future__ import annotations

from dycl_tvm.hcfg.analysis import reachable
from dycl_tvm.hcfg.hostops import must_run
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, HostOp, Return, Step, Switch, TensorOp, Value


def dead_code(graph: HCFG) -> int:
    """Remove what is dead; return the number of removed blocks, steps, results, parameters and state variables."""
    alive = reachable(graph)
    changes = len(graph.blocks) - len(alive)
    graph.blocks = [b for b in graph.blocks if b in alive]
    marks = _mark(graph)
    changes += _drop_state(graph, marks)
    for block in graph.blocks:
        if block is not graph.entry:
            changes += _drop_parameters(block, marks)
    for block in graph.blocks:
        for edge in block.edges():
            edge.args = [a for a, p in zip(edge.args, marks.old_params.get(edge.target, edge.target.params)) if p in marks.live]
        changes += _drop_steps(block, marks)
    return changes


class _Marks:
    """Which values are live, and the parameters that the blocks had before any went."""

    def __init__(self) -> None:
        self.live: set[Value] = set()
        self.old_params: dict[Block, list[Value]] = {}


def _mark(graph: HCFG) -> _Marks:
    makers: dict[Value, Step] = {}
    arguments: dict[Value, list[object]] = {}  # what the edges give to a parameter
    state_reads: dict[Value, list[object]] = {p: [] for p in graph.entry.params[len(graph.inputs) :]}
    roots: list[object] = list(graph.inputs)
    for block in graph.blocks:
        for step in block.steps:
            makers.update(dict.fromkeys(step.results(), step))
            if isinstance(step, HostOp) and must_run(step):
                roots.append(step.output)
        term = block.terminator
        if isinstance(term, Branch):
            roots.append(term.cond)
        elif isinstance(term, Switch):
            roots.append(term.index)
        elif isinstance(term, Return):
            roots.extend(term.values)
            for param, value in zip(state_reads, term.state):
                state_reads[param].append(value)
        for edge in block.edges():
            for param, arg in zip(edge.target.params, edge.args):
                arguments.setdefault(param, []).append(arg)
    arguments.update(state_reads)  # a state variable is kept for the next call only if a call reads it
    marks = _Marks()
    work = [v for v in roots if isinstance(v, Value)]
    while work:
        value = work.pop()
        if value in marks.live:
            continue
        marks.live.add(value)
        if value in makers:
            work.extend(makers[value].operands())
        work.extend(a for a in arguments.get(value, ()) if isinstance(a, Value))
    return marks


def _drop_state(graph: HCFG, marks: _Marks) -> int:
    params = graph.entry.params
    first = len(graph.inputs)
    keep = [p in marks.live for p in params[first:]]
    if all(keep):
        return 0
    graph.entry.params = params[:first] + [p for p, kept in zip(params[first:], keep) if kept]
    graph.state = [v for v, kept in zip(graph.state, keep) if kept]
    for block in graph.blocks:
        if isinstance(block.terminator, Return):
            block.terminator.state = [v for v, kept in zip(block.terminator.state, keep) if kept]
    return keep.count(False)


def _drop_parameters(block: Block, marks: _Marks) -> int:
    kept = [p for p in block.params if p in marks.live]
    if len(kept) == len(block.params):
        return 0
    marks.old_params[block] = block.params
    removed = len(block.params) - len(kept)
    block.params = kept
    return removed


def _drop_steps(block: Block, marks: _Marks) -> int:
    kept: list[Step] = []
    changes = 0
    for step in block.steps:
        if not any(v in marks.live for v in step.results()):
            changes += 1
            continue
        if isinstance(step, TensorOp) and any(v not in marks.live for v in step.results()):
            changes += sum(v not in marks.live for v in step.results())
            step.outputs = tuple(v if v in marks.live else None for v in step.outputs)
        kept.append(step)
    block.steps = kept
    return changes
