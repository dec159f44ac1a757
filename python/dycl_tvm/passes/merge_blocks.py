# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Block merging: a block and the only block that jumps to it become one.

Invariant: the steps of every path stay, in order. Source: S. Muchnick, "Advanced compiler design and implementation",
1997, 18.2 (straightening).
"""

from __future__ import annotations

from dycl_tvm.hcfg.analysis import predecessors, reachable
from dycl_tvm.hcfg.nodes import HCFG, Block, Jump, Operand, Value
from dycl_tvm.passes.rewrite import substitute


def merge_blocks(graph: HCFG) -> int:
    """Merge straight lines of blocks; return the number of blocks that went."""
    incoming = {b: len(edges) for b, edges in predecessors(graph).items()}
    alive = reachable(graph)  # a closed chain that nothing enters would never end
    mapping: dict[Value, Operand] = {}
    gone: set[Block] = set()
    for block in graph.blocks:
        if block in gone or block not in alive:
            continue
        while isinstance(block.terminator, Jump):
            edge = block.terminator.edge
            after = edge.target
            if incoming[after] != 1 or after is block:
                break
            mapping.update(zip(after.params, edge.args))
            block.steps.extend(after.steps)
            block.terminator = after.terminator
            gone.add(after)
    graph.blocks = [b for b in graph.blocks if b not in gone]
    substitute(graph, mapping)
    return len(gone)
