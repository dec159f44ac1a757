# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Decided joins: an edge into an empty block that decides the branch or switch there leads past it, whoever reads the block's parameters.

``jump_threading`` does so where nothing but the block's terminator reads them. Here they are read below, so that the way around
needs values of their own: what the edge gave, and a parameter wherever the ways meet again. An index that says which exit was
taken costs nothing then. Invariant: the same steps run in the same order on every path, and no loop gets a second entrance.
Source: the threading is Muchnick's (see ``jump_threading``); the parameters are placed as in M. Braun et al., "Simple and
efficient construction of static single assignment form", CC 2013.
"""

from __future__ import annotations

from dycl_tvm.hcfg.analysis import dominators, predecessors, reachable
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Edge, Jump, Operand, Switch, Value, block_operands, rewrite_step, rewrite_terminator
from dycl_tvm.passes.jump_threading import decided


def decided_joins(graph: HCFG) -> int:
    """Lead edges past the joins that they decide; return their number."""
    tree, incoming = dominators(graph), predecessors(graph)
    home: dict[Value, Block] = {}
    given: dict[Block, dict[Value, Operand]] = {}
    for block in list(graph.blocks):
        if block.steps or not isinstance(block.terminator, (Branch, Switch)) or block not in tree.depth:
            continue
        if any(source in tree.depth and tree.dominates(block, source) for source, _ in incoming[block]):
            continue  # the header of a loop
        for _, edge in incoming[block]:
            way_out = decided(edge) if edge.target is block else None
            if way_out is None:
                continue
            arguments: dict[Value, Operand] = dict(zip(block.params, edge.args))
            around = Block(f"{block.name}.around", origin=block.origin)
            around.terminator = Jump(Edge(way_out.target, list(way_out.args)))
            graph.blocks.append(around)
            edge.target, edge.args = around, []
            given[around] = arguments
            home.update(dict.fromkeys(block.params, block))
    if given:
        alive = reachable(graph)
        graph.blocks = [b for b in graph.blocks if b in alive]
        _repair(graph, home, given)
    return len(given)


def _repair(graph: HCFG, home: dict[Value, Block], given: dict[Block, dict[Value, Operand]]) -> None:
    """Make every reader of a parameter read what it is on the ways that lead there.

    Parameters
    ----------
    home : dict
        The parameters, and the blocks whose parameters they are.
    given : dict
        The blocks on the ways around, and what each parameter is from there on.
    """
    incoming = predecessors(graph)
    known: dict[tuple[Value, Block], Operand] = {}
    unfinished: list[tuple[Value, Block]] = []

    def read(operand: Operand, block: Block) -> Operand:
        """Return what a value is where a block begins."""
        passed: list[tuple[Value, Block]] = []
        while isinstance(operand, Value) and operand in home and home[operand] is not block:
            if (operand, block) in known:
                operand = known[operand, block]
                break
            passed.append((operand, block))
            if len(incoming[block]) > 1:
                unfinished.append((operand, block))
                operand = Value(operand.type, operand.name)
                break
            block = incoming[block][0][0]
            if operand in given.get(block, {}):
                operand = given[block][operand]
        known.update(dict.fromkeys(passed, operand))
        return operand

    for block in graph.blocks:
        own = given.get(block, {})

        def current(operand: Operand, block: Block = block, own: dict[Value, Operand] = own) -> Operand:
            return read(own.get(operand, operand) if isinstance(operand, Value) else operand, block)

        if any(v in home for v in block_operands(block)):
            for step in block.steps:
                if any(v in home for v in step.operands()):
                    rewrite_step(step, current)
            rewrite_terminator(block.terminator, current)
    while unfinished:
        value, block = unfinished.pop()
        param = known[value, block]
        assert isinstance(param, Value)
        block.params.append(param)
        for source, edge in incoming[block]:
            edge.args.append(read(given.get(source, {}).get(value, value), source))
