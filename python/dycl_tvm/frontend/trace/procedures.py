# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Procedures: pieces of the graph under construction that call themselves. They become jumps, a stack and switches.

While a program is staged, a call ends its block with :class:`Call`, and a procedure returns with :class:`GoBack`. :func:`lower_calls`
turns them into what every graph has: a call pushes the values that are read after it and that the procedure overwrites, and its number;
it jumps. A return pops the number and switches over the places of call, where the values are popped. As in any other graph a
value is what its definition gave last, so nothing that works on graphs has to know of procedures.

The values popped are further definitions of those pushed; block parameters are placed where several meet (R. Cytron et al.,
"Efficiently computing static single assignment form and the control dependence graph", TOPLAS 1991).
"""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.analysis import definitions, dominators, liveness, predecessors, reverse_postorder
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Edge,
    HostOp,
    Jump,
    Operand,
    Origin,
    Return,
    ReturnSite,
    Switch,
    Value,
    block_operands,
    rewrite_step,
    rewrite_terminator,
)
from dycl_tvm.hcfg.types import INT


class Call(Switch):
    """Run a procedure, whose entry takes ``args``; go on in ``back``, whose parameters are what it returns.

    For analyses it is a choice between the two, of which nothing is known.
    """

    def __init__(self, back: Block, entry: Block, args: list[Operand], origin: Origin | None) -> None:
        super().__init__(Value(INT), [Edge(back), Edge(entry, args)], origin)


class GoBack(Return):
    """Return from the procedure that begins with ``entry``, with ``values``."""

    def __init__(self, entry: Block, values: list[Operand], origin: Origin | None) -> None:
        super().__init__(ReturnSite(None, origin), values)
        self.entry, self.origin = entry, origin


def lower_calls(graph: HCFG) -> None:
    """Replace all calls and returns of procedures in a graph."""
    blocks = reverse_postorder(graph)
    if not any(isinstance(b.terminator, Call) for b in blocks):
        return
    for block in blocks:
        if isinstance(block.terminator, Call) and _is_last(block.terminator):
            block.terminator = Jump(block.terminator.edges[1])
    graph.blocks = reverse_postorder(graph)
    _Lowering(graph).run()


def _is_last(call: Call) -> bool:
    """Whether a procedure does nothing after a call of itself but return what that returns: no stack is needed then."""
    block, known = call.edges[0].target, {p: p for p in call.edges[0].target.params}
    while isinstance(block.terminator, Jump) and not block.steps:
        edge = block.terminator.edge
        known = {p: known[a] for p, a in zip(edge.target.params, edge.args) if isinstance(a, Value) and a in known}
        block = edge.target
    end = block.terminator
    returned = [known.get(v) if isinstance(v, Value) else None for v in end.values] if isinstance(end, GoBack) else []
    return isinstance(end, GoBack) and end.entry is call.edges[1].target and not block.steps and returned == call.edges[0].target.params


class _Lowering:
    def __init__(self, graph: HCFG) -> None:
        self._blocks = graph.blocks
        self._tree, self._before = dominators(graph), predecessors(graph)
        self._live = liveness(graph).live_in
        self._home = {v: b for b in graph.blocks for v in definitions(b)}
        #: By the entry of each procedure, the blocks that end in a call of it, with the block behind.
        self._calls: dict[Block, list[tuple[Block, Call]]] = {}
        #: By value and block, what the value is where the block begins, if that is not what it was before.
        self._again: dict[Value, dict[Block, Value]] = {}
        self._frontiers: dict[Block, list[Block]] = {}

    def run(self) -> None:
        number = {v: k for k, v in enumerate(self._home)}
        overwritten: dict[Block, set[Value]] = {}
        saved: dict[Block, list[Value]] = {}
        for block in self._blocks:
            if isinstance(block.terminator, Call):
                back, entry = [e.target for e in block.terminator.edges]
                self._calls.setdefault(entry, []).append((block, block.terminator))
                if entry not in overwritten:
                    overwritten[entry] = {v for b in _reached(entry) for v in definitions(b)}
                saved[block] = sorted(self._live[back] & overwritten[entry], key=number.__getitem__)
                for value in saved[block]:
                    self._again.setdefault(value, {})[back] = Value(value.type, value.name)
        popped = {block: [self._again[v][block.terminator.edges[0].target] for v in values] for block, values in saved.items()}  # type: ignore[union-attr]
        for value, places in self._again.items():
            self._place_parameters(value, places)
        for block in self._blocks:
            self._rename(block)
        for calls in self._calls.values():
            for k, (block, call) in enumerate(calls):
                values: list[Operand] = [self._now(v, block) for v in saved[block]]
                _push(block, [*values, k] if len(calls) > 1 else values, call.origin)
                call.edges[0].target.steps[:0] = [HostOp("pop", (), v, call.origin) for v in reversed(popped[block])]
                block.terminator = Jump(call.edges[1])
        for block in self._blocks:
            if isinstance(block.terminator, GoBack):
                self._leave(block, block.terminator)

    def _place_parameters(self, value: Value, places: dict[Block, Value]) -> None:
        """Make parameters where several definitions of a value meet and it is read later."""
        work = [self._home[value], *places]
        while work:
            for block in self._frontier(work.pop()):
                if block not in places and value in self._live[block]:
                    param = places[block] = Value(value.type, value.name)
                    block.params.append(param)
                    work.append(block)
                    for _, edge in self._before[block]:
                        edge.args.append(value)  # it is renamed with all that the block before reads

    def _frontier(self, block: Block) -> list[Block]:
        """Return the dominance frontier of a block."""
        if block not in self._frontiers:
            found: dict[Block, None] = {}
            for below in self._blocks:
                if self._tree.dominates(block, below):
                    for target in below.successors():
                        if target is block or not self._tree.dominates(block, target):
                            found[target] = None
            self._frontiers[block] = list(found)
        return self._frontiers[block]

    def _now(self, value: Value, block: Block) -> Value:
        """Return what a value is at the end of a block."""
        places, home = self._again[value], self._home[value]
        while block not in places and block is not home:
            block = self._tree.idom[block]
        return places.get(block, value)

    def _rename(self, block: Block) -> None:
        def now(operand: Any) -> Any:
            return self._now(operand, block) if isinstance(operand, Value) and operand in self._again else operand

        if any(v in self._again for v in block_operands(block)):
            for step in block.steps:
                rewrite_step(step, now)
            rewrite_terminator(block.terminator, now)

    def _leave(self, block: Block, end: GoBack) -> None:
        calls = self._calls[end.entry]
        edges = [Edge(call.edges[0].target, list(end.values)) for _, call in calls]
        if len(edges) == 1:
            block.terminator = Jump(edges[0])
            return
        number = Value(INT, "call")
        block.steps.append(HostOp("pop", (), number, end.origin))
        block.terminator = Switch(number, edges, end.origin)


def _push(block: Block, values: list[Operand], origin: Origin | None) -> None:
    block.steps += [HostOp("push", (v,), Value(INT), origin) for v in values]


def _reached(entry: Block) -> list[Block]:
    """Return the blocks of a procedure, and of all that it calls."""
    found, work = {entry: None}, [entry]
    while work:
        for target in work.pop().successors():
            if target not in found:
                found[target] = None
                work.append(target)
    return list(found)
