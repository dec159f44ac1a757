# Licensed under the Apache License, Version 2.0; see LICENSE.
"""When ways through a graph meet.

The sides of an ``If`` are joined in a block whose parameters are what they differ in. Exporters of structured control flow (ours among
them) let sides give small constants, though, by which a later ``If`` tells where the code goes on: "the third exit was taken".
Joined at once, such a number would be data, and the later ``If`` a branch that is taken in ways that cannot be. So ways that differ in
a constant number or bool stay apart as long as nothing happens on them that takes time, and an ``If`` on such a constant costs nothing.
The first operation on a run-time tensor joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from dycl_tvm.frontend.onnx.values import Cause, Datum, Outcome, is_runtime, leaves, same, signature

#: More ways than this do not go on side by side.
MAX_APART = 64
_DECISIVE = (torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True, eq=False)
class Meeting:
    """Where ways that go on side by side came from: what ``join`` is told when they meet."""

    where: str
    causes: frozenset[Cause]


class Reads:
    """Which names the nodes of one graph read, and where for the last time; those that inner graphs capture are among them."""

    def __init__(self, nodes: Sequence[Any], outputs: Sequence[str]) -> None:
        self._nodes, self._outputs = nodes, outputs
        self._last: dict[str, int] | None = None

    def from_(self, k: int) -> frozenset[str]:
        """Return the names that are read by the k-th node or later."""
        if self._last is None:
            self._last = {}
            for index, node in enumerate(self._nodes):
                self._last.update(dict.fromkeys(_read_by(node), index))
            self._last.update(dict.fromkeys(self._outputs, len(self._nodes)))
        return frozenset(name for name, last in self._last.items() if last >= k)


def _read_by(node: Any) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            found.update(*(_read_by(n) for n in graph.node), (o.name for o in graph.output))
    return found


def stays_apart(proto: Any, ways: list[Outcome], env: Mapping[str, Datum]) -> bool:
    """Tell whether a node, which is no control flow, computes nothing at run time on any of the ways."""
    if proto.op_type == "Identity":
        return True
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in proto.attribute):
        return False
    data = (way.own.get(name, env.get(name)) for way in ways for name in proto.input if name)
    return not any(is_runtime(t) for x in data for t in leaves(x))


def alike(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """Return outcomes in classes of the same types."""
    classes: dict[Any, list[Outcome]] = {}
    for outcome in outcomes:
        classes.setdefault(tuple(signature(v) for v in everything(outcome)), []).append(outcome)
    return list(classes.values())


def everything(outcome: Outcome) -> list[Datum]:
    """Return all that an outcome brings along."""
    return [*outcome.values, *outcome.own.values()]


def by_constants(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """Return outcomes of the same types in classes by the constant numbers and bools in which they differ."""
    columns = list(zip(*[list(leaves(everything(o))) for o in outcomes]))
    deciding = [c for c in columns if _decides(c)]
    classes: dict[Any, list[Outcome]] = {}
    for k, outcome in enumerate(outcomes):
        key = tuple(None if is_runtime(c[k]) else c[k].item() for c in deciding)
        classes.setdefault(key, []).append(outcome)
    return list(classes.values()) if len(classes) <= MAX_APART else [outcomes]


def _decides(column: Sequence[torch.Tensor]) -> bool:
    first = column[0]
    if first.dim() or first.dtype not in _DECISIVE or all(is_runtime(t) for t in column):
        return False
    return not all(same(first, t) for t in column[1:])
