# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Value ranges: a host int or bool that can have one value only is that value, and a switch has no sides beyond its index.

So a counter that has counted to one at most is not compared with two, and an index that Python would wrap round or refuse is
used as it is. Invariant: on every way that inputs can take, the same operations give the same numbers; what may raise stays.
Source: the analysis, :mod:`dycl_tvm.hcfg.ranges`.
"""

from __future__ import annotations

from dycl_tvm.hcfg.nodes import HCFG, HostOp, Operand, Switch, Value
from dycl_tvm.hcfg.ranges import INT64, Ranges
from dycl_tvm.hcfg.types import BOOL
from dycl_tvm.passes.rewrite import count_uses, substitute


def value_ranges(graph: HCFG) -> int:
    """Replace what is known; return the number of replaced values and shortened switches."""
    ranges, uses = Ranges(graph), count_uses(graph)
    mapping: dict[Value, Operand] = {}
    changes = 0
    for block in graph.blocks:
        values = [*block.params, *(v for step in block.steps for v in step.results())]
        for value in values:
            known = ranges.of(value)
            if uses[value] and known is not None and known.low == known.high and known.low in INT64:
                mapping[value] = bool(known.low) if value.type == BOOL else int(known.low)
        for step in block.steps:
            if isinstance(step, HostOp) and step.op == "select" and uses[step.output] and step.output not in mapping:
                cond = ranges.of(step.args[0], block)
                if cond is not None and cond.low == cond.high:
                    mapping[step.output] = step.args[1 if cond.low else 2]
        term = block.terminator
        if isinstance(term, Switch):
            index = ranges.of(term.index, block)
            if index and 0 <= index.high < len(term.edges) - 1:
                del term.edges[int(index.high) + 1 :]
                changes += 1
    substitute(graph, mapping)
    return changes + len(mapping)
