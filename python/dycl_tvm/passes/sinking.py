# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sinking: work that only one side of a branch needs moves to that side.

Invariant: no path runs more than before. A step moves to a block that its own block dominates, never into a loop, and
only where some path leaves without passing there (or out of a loop). Random steps and host operations that can raise
stay: eager would have raised. Source: C. Click, "Global code motion, global value numbering", PLDI 1995 (schedule
late); edges with work of their own are split as in J. Knoop et al., "Partial dead code elimination", PLDI 1994.
"""

from __future__ import annotations

from collections import Counter

from dycl_tvm.hcfg.analysis import DominatorTree, LoopNest, dominators, natural_loops, postdominators, predecessors
from dycl_tvm.hcfg.hostops import may_raise, must_run
from dycl_tvm.hcfg.nodes import HCFG, Block, Edge, HostOp, Jump, Step, Value, block_operands
from dycl_tvm.passes.rewrite import is_pure


def sinking(graph: HCFG) -> int:
    """Sink what can sink, as far as it can; return the number of moved steps."""
    split = _split_critical_edges(graph)
    tree = dominators(graph)
    loops = natural_loops(graph, tree)
    # With a loop of two entrances, "not into a loop" is not told by natural loops; structured programs have none.
    moved = 0 if loops.irreducible else _sink(graph, tree, postdominators(graph), loops)
    _join_empty(graph, split)
    return moved


def _sink(graph: HCFG, tree: DominatorTree, post: DominatorTree, loops: LoopNest) -> int:
    readers: dict[Value, Counter[Block]] = {}
    for block in tree.order:
        for value in block_operands(block):
            readers.setdefault(value, Counter())[block] += 1
    front: dict[Block, list[Step]] = {}  # in reverse order
    moved = 0
    # The deepest blocks, and in each the last step, first: the readers of a step have found their place before it.
    for block in reversed(tree.order):
        kept = []
        for step in reversed(block.steps):
            target = _target(step, block, readers, tree, post, loops)
            if target is None:
                kept.append(step)
                continue
            front.setdefault(target, []).append(step)
            moved += 1
            for value in step.operands():
                counts = readers[value]
                counts[block] -= 1
                if not counts[block]:
                    del counts[block]
                counts[target] += 1
        kept.reverse()
        block.steps = kept
    for block, steps in front.items():
        block.steps = steps[::-1] + block.steps
    return moved


def _target(
    step: Step, block: Block, readers: dict[Value, Counter[Block]], tree: DominatorTree, post: DominatorTree, loops: LoopNest
) -> Block | None:
    """Return the block that a step should move to, None where it must or may as well stay."""
    users: set[Block] = set()
    for value in step.results():
        users.update(readers.get(value, ()))
    if not users or block in users or not _movable(step):
        return None
    target = tree.common(users)
    loop = loops.innermost.get(target)
    while loop is not None and block not in loop.body:
        target = tree.idom[loop.header]
        loop = loops.innermost.get(target)
    if target is block:
        return None
    # As often as here: no gain.
    always = post.dominates(target, block) and loop is loops.innermost.get(block)
    return None if always else target


def _movable(step: Step) -> bool:
    return not (step.op == "clock" or must_run(step) or may_raise(step)) if isinstance(step, HostOp) else is_pure(step)


def _split_critical_edges(graph: HCFG) -> list[Block]:
    """Put an empty block on the edges that share both their ends with others, where something could sink onto them.

    That is where they carry values, and where they enter a loop: what the loop needs is computed before it.
    """
    entering = {b: len(into) for b, into in predecessors(graph).items()}
    bodies = {loop.header: loop.body for loop in natural_loops(graph).loops}
    added = []
    for block in list(graph.blocks):
        edges = block.edges()
        if len(edges) < 2:
            continue
        for edge in edges:
            carries = any(isinstance(a, Value) for a in edge.args)
            enters = edge.target in bodies and block not in bodies[edge.target]
            if entering[edge.target] > 1 and (carries or enters):
                middle = Block(f"{block.name}.{edge.target.name}", terminator=Jump(Edge(edge.target, edge.args)))
                edge.target, edge.args = middle, []
                added.append(middle)
    graph.blocks.extend(added)
    return added


def _join_empty(graph: HCFG, split: list[Block]) -> None:
    """Take out the blocks of split edges into which nothing sank."""
    empty = {b for b in split if not b.steps}
    if not empty:
        return
    graph.blocks = [b for b in graph.blocks if b not in empty]
    for block in graph.blocks:
        for edge in block.edges():
            middle = edge.target
            if middle in empty and isinstance(middle.terminator, Jump):
                edge.target, edge.args = middle.terminator.edge.target, middle.terminator.edge.args
