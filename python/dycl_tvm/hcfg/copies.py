# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Copies of graphs."""

from __future__ import annotations

import dataclasses

from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Edge,
    Jump,
    Return,
    Step,
    SubDNNCall,
    Switch,
    TensorOp,
    Terminator,
    map_operands,
)


def copied_graph(graph: HCFG) -> HCFG:
    """Return a graph that shares no block and no step with the given one; values, constants and sub-DNNs are the same objects."""
    blocks = {b: Block(b.name, list(b.params), [_copied_step(s) for s in b.steps], None, b.origin) for b in graph.blocks}
    for old, new in blocks.items():
        new.terminator = _copied_end(old.terminator, blocks)
    return dataclasses.replace(graph, blocks=list(blocks.values()), state=list(graph.state))


def _copied_step(step: Step) -> Step:
    if isinstance(step, TensorOp):
        return dataclasses.replace(step, args=map_operands(step.args, lambda v: v), kwargs=dict(step.kwargs))
    return dataclasses.replace(step, args=list(step.args)) if isinstance(step, SubDNNCall) else dataclasses.replace(step)


def _copied_end(end: Terminator | None, blocks: dict[Block, Block]) -> Terminator | None:
    def edge(e: Edge) -> Edge:
        return Edge(blocks[e.target], list(e.args))

    if isinstance(end, Jump):
        return Jump(edge(end.edge))
    if isinstance(end, Branch):
        return dataclasses.replace(end, then=edge(end.then), orelse=edge(end.orelse))
    if isinstance(end, Switch):
        return dataclasses.replace(end, edges=[edge(e) for e in end.edges])
    if isinstance(end, Return):
        return Return(end.site, list(end.values), list(end.state))
    return dataclasses.replace(end) if end is not None else None
