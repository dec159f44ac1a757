# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Jump threading: an edge leads straight to where it must end up.

- An edge to an empty block that jumps leads to that block's target.
- An edge to an empty block whose branch or switch it decides, by a literal that it gives, leads to the side decided.
- Below an edge of a branch its condition is known: it becomes a literal.
- A branch whose sides are the same edge is a jump.
- A branch on ``not c`` is the branch on ``c`` with the sides exchanged; only where the branch stands for no line of the
  user's source, for the path report says which side of that line was taken.

Invariant: the same steps run in the same order on every path, and a threaded block's parameters have no reader but its
own terminator. Source: S. Muchnick, "Advanced compiler design and implementation", 1997, 18.11 and 12.3.
"""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.analysis import DominatorTree, dominators, predecessors
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Edge,
    HostOp,
    Jump,
    Operand,
    Switch,
    Value,
    block_operands,
    rewrite_step,
    rewrite_terminator,
    terminator_operands,
)
from dycl_tvm.passes.rewrite import count_uses, freeze, local_uses


def jump_threading(graph: HCFG) -> int:
    """Thread jumps and simplify branches; return the number of changes."""
    changes = _known_conditions(graph, dominators(graph))
    makers = {s.output: s for b in graph.blocks for s in b.steps if isinstance(s, HostOp)}
    for block in graph.blocks:
        changes += _simplify(block, makers)
    return changes + _thread(graph)


def _thread(graph: HCFG) -> int:
    uses = count_uses(graph)
    tree, incoming = dominators(graph), predecessors(graph)
    passable: dict[Block, bool] = {}
    for block in graph.blocks:
        if not block.steps and block.edges():
            local = local_uses(block)
            # Elsewhere the parameters stand for the value at this block; a way around it would leave them undefined.
            free = all(uses[p] == local[p] for p in block.params)
            # Past a loop's header that decides, the loop would get a second entrance.
            header = block in tree.depth and any(s in tree.depth and tree.dominates(block, s) for s, _ in incoming[block])
            passable[block] = free and (isinstance(block.terminator, Jump) or not header)
    changes = 0
    for block in graph.blocks:
        for edge in block.edges():
            seen = {edge.target}
            while passable.get(edge.target):
                next_edge = decided(edge)
                if next_edge is None or next_edge.target in seen:
                    break
                given: dict[Any, Operand] = dict(zip(edge.target.params, edge.args))
                edge.args = [given.get(a, a) if isinstance(a, Value) else a for a in next_edge.args]
                edge.target = next_edge.target
                seen.add(edge.target)
                changes += 1
    return changes


def decided(edge: Edge) -> Edge | None:
    """Return the edge by which an empty block is left when it is entered by ``edge``, if that is known."""
    term = edge.target.terminator
    if isinstance(term, Jump):
        return term.edge
    given: dict[Any, Operand] = dict(zip(edge.target.params, edge.args))
    if isinstance(term, Branch):
        cond = given.get(term.cond, term.cond)
        return (term.then if cond else term.orelse) if isinstance(cond, bool) else None
    if isinstance(term, Switch):
        index = given.get(term.index, term.index)
        return term.edges[index] if isinstance(index, int) and 0 <= index < len(term.edges) else None
    return None


def _simplify(block: Block, makers: dict[Value, HostOp]) -> int:
    term = block.terminator
    changes = 0
    while isinstance(term, Branch) and term.origin is None and isinstance(term.cond, Value):
        maker = makers.get(term.cond)
        if maker is None or maker.op != "not":
            break
        term.cond, term.then, term.orelse = maker.args[0], term.orelse, term.then
        changes += 1
    if isinstance(term, Branch) and _same(term.then, term.orelse):
        block.terminator = Jump(term.then)
        changes += 1
    return changes


def _same(a: Edge, b: Edge) -> bool:
    return a.target is b.target and freeze(a.args, lambda v: v) == freeze(b.args, lambda v: v)


def _known_conditions(graph: HCFG, tree: DominatorTree) -> int:
    """Replace a branch's condition by what it is known to be, in all that an edge of the branch dominates."""
    incoming = predecessors(graph)
    facts: dict[Value, bool] = {}
    changes = 0
    stack: list[tuple[Block, Value | None]] = [(graph.entry, None)]
    while stack:
        block, forget = stack.pop()
        if forget is not None:
            del facts[forget]
            continue
        fact = _fact(incoming[block], tree)
        if fact is not None and fact[0] not in facts:
            facts[fact[0]] = fact[1]
            stack.append((block, fact[0]))  # reached again when everything below is done
        changes += _apply(block, facts)
        stack.extend((child, None) for child in tree.children[block])
    return changes


def _fact(incoming: list[tuple[Block, Edge]], tree: DominatorTree) -> tuple[Value, bool] | None:
    """Return the condition that the only edge into a block decides."""
    if len(incoming) != 1 or incoming[0][0] not in tree.depth:
        return None
    source, edge = incoming[0]
    term = source.terminator
    if isinstance(term, Branch) and isinstance(term.cond, Value):
        return term.cond, edge is term.then
    return None


def _apply(block: Block, facts: dict[Value, bool]) -> int:
    if not facts or not any(v in facts for v in block_operands(block)):
        return 0

    def known(operand: Any) -> Any:
        return facts.get(operand, operand) if isinstance(operand, Value) else operand

    for step in block.steps:
        if any(v in facts for v in step.operands()):
            rewrite_step(step, known)
    if any(v in facts for v in terminator_operands(block.terminator)):
        rewrite_terminator(block.terminator, known)
    return 1
