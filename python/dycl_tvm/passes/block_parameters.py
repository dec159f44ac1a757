# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Redundant block parameters: one that gets the same value on every edge is that value.

Invariant: a replaced parameter had, on every way into its block, the value that replaces it, which dominates the block.
Source: M. Braun et al., "Simple and efficient construction of static single assignment form", CC 2013 (trivial phis).
"""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.analysis import predecessors, reachable
from dycl_tvm.hcfg.nodes import HCFG, Block, Edge, Operand, Value
from dycl_tvm.passes.rewrite import freeze, replacer, substitute


def block_parameters(graph: HCFG) -> int:
    """Remove redundant parameters; return their number."""
    alive = reachable(graph)
    incoming = {b: [edge for source, edge in into if source in alive] for b, into in predecessors(graph).items()}
    mapping: dict[Value, Operand] = {}
    follow = replacer(mapping)
    users: dict[Value, list[Block]] = {}
    for block, edges in incoming.items():
        for edge in edges:
            for arg in edge.args:
                if isinstance(arg, Value):
                    users.setdefault(arg, []).append(block)
    work = [b for b in graph.blocks if b in alive and b is not graph.entry]
    queued = set(work)
    while work:
        block = work.pop()
        queued.discard(block)
        for param in _redundant(block, incoming[block], mapping, follow):
            # A parameter gone may make the parameters that it flowed into redundant.
            replaced = follow(param)
            if isinstance(replaced, Value):
                users.setdefault(replaced, []).extend(users.get(param, ()))
            for user in users.get(param, ()):
                if user not in queued and user is not graph.entry:
                    queued.add(user)
                    work.append(user)
    old_params = {b: b.params for b in graph.blocks}
    for block in graph.blocks:
        for edge in block.edges():
            edge.args = [a for a, p in zip(edge.args, old_params[edge.target]) if p not in mapping]
        block.params = [p for p in block.params if p not in mapping]
    substitute(graph, mapping)
    return len(mapping)


def _redundant(block: Block, edges: list[Edge], mapping: dict[Value, Operand], follow: Any) -> list[Value]:
    """Map the redundant parameters of one block; return them."""
    found: list[Value] = []
    twins: dict[Any, Value] = {}
    for k, param in enumerate(block.params):
        if param in mapping:
            continue
        args = [follow(edge.args[k]) for edge in edges]
        own = [a is param for a in args]
        given = {_key(a): a for a, self_ in zip(args, own) if not self_}
        if len(given) == 1:
            mapping[param] = next(iter(given.values()))
            found.append(param)
            continue
        # Two parameters that always get the same: in a loop, each itself counts as the same.
        key = tuple("self" if self_ else _key(a) for a, self_ in zip(args, own))
        twin = twins.setdefault(key, param)
        if twin is not param:
            mapping[param] = twin
            found.append(param)
    return found


def _key(operand: Operand) -> Any:
    return freeze(operand, lambda v: v)
