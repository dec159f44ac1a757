# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Ints of the host that go in lockstep: one is always so much more than the other, like the number of a trip and a place that it writes to.

Parameters of a block are taken to be in lockstep until an edge says otherwise. Source: B. Alpern, M. Wegman and F. Zadeck, "Detecting
equality of variables in programs", POPL 1988 (partitions that are only refined), with distances in the place of equality.
"""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.analysis import predecessors, reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Block, Edge, HostOp, Operand, Value
from dycl_tvm.hcfg.types import INT

#: Partitions that are still refined after so many rounds are given up.
_MOST_ROUNDS = 8
#: A value and how much is added to it; a number alone has no value.
Sum = tuple["Value | None", int]


def sums(order: list[Block]) -> dict[Value, tuple[Value, int]]:
    """Return the ints that are made by adding numbers: to which value, which makes none itself, and how much in all."""
    found: dict[Value, tuple[Value, int]] = {}
    for block in order:
        for step in block.steps:
            if isinstance(step, HostOp) and (added := _added(step)) is not None:
                base, more = found.get(added[0], (added[0], 0))
                found[step.output] = base, more + added[1]
    return found


def lockstep(graph: HCFG, made: dict[Value, tuple[Value, int]]) -> dict[Block, list[list[tuple[int, int]]]]:
    """Return which parameters of a block are in lockstep: groups of their positions, each with how much it is more than the first.

    Parameters
    ----------
    graph : HCFG
    made : dict
        Of :func:`sums`.
    """
    order = reverse_postorder(graph)
    incoming = predecessors(graph)
    positions = {b: [k for k, p in enumerate(b.params) if p.type == INT] for b in order[1:]}
    seen = {order[0]}
    groups: dict[Block, list[list[tuple[int, int]]]] = {}
    first: dict[Value, tuple[Value, int]] = {}

    def resolved(operand: Operand) -> Sum:
        if not isinstance(operand, Value):
            return None, int(operand)  # type: ignore[arg-type]  # an int
        base, more = made.get(operand, (operand, 0))
        base, further = first.get(base, (base, 0))
        return base, more + further

    for _ in range(_MOST_ROUNDS):
        changed = False
        for block in order[1:]:
            found = _grouped(positions[block], [e for source, e in incoming[block] if source in seen], resolved)
            seen.add(block)
            if found != groups.get(block, []):
                changed, groups[block] = True, found
                for k in positions[block]:
                    first.pop(block.params[k], None)
                for group in found:
                    first.update((block.params[k], (block.params[group[0][0]], more)) for k, more in group)
        if not changed:
            return groups
    return {}


def _grouped(positions: list[int], edges: list[Edge], resolved: Any) -> list[list[tuple[int, int]]]:
    alike: dict[Any, list[tuple[int, int]]] = {}
    for k in positions:
        bases, numbers = zip(*(resolved(e.args[k]) for e in edges))
        alike.setdefault((bases, tuple(n - numbers[0] for n in numbers)), []).append((k, numbers[0]))
    return [[(k, n - group[0][1]) for k, n in group] for group in alike.values() if len(group) > 1]


def _added(step: HostOp) -> tuple[Value, int] | None:
    if step.op not in ("add", "sub") or step.output.type != INT:
        return None
    left, right = step.args
    if isinstance(left, Value) and left.type == INT and type(right) is int:
        return left, right if step.op == "add" else -right
    if step.op == "add" and isinstance(right, Value) and right.type == INT and type(left) is int:
        return right, left
    return None
