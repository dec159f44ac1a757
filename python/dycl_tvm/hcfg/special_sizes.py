# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes that have a path of their own (``HCFG.special_sizes``): the tests that lead there, and what is on these paths."""

from __future__ import annotations

from collections.abc import Mapping

from dycl_tvm.hcfg.analysis import dominators, predecessors
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Origin
from dycl_tvm.hcfg.sizes import Span, sizes_text

_FILE = "specialize"


def special_origin(sizes: Mapping[str, Span]) -> Origin:
    """Return what stands for the place of a test that no line of the model makes."""
    return Origin(_FILE, 0, "", sizes_text(sizes))


def special_paths(graph: HCFG) -> dict[Block, Origin]:
    """Return the blocks that only calls of special sizes reach, each with the test that leads there."""
    if not graph.special_sizes:
        return {}
    tree, before = dominators(graph), predecessors(graph)
    found: dict[Block, Origin] = {}
    for block in tree.order:
        end = block.terminator
        if block is not graph.entry and (test := found.get(tree.idom[block])) is not None:
            found[block] = test
        if isinstance(end, Branch) and end.origin is not None and end.origin.file == _FILE and len(before[end.then.target]) == 1:
            found[end.then.target] = end.origin
    return found
