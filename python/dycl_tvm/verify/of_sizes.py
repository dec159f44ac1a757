# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of the calls of a check, and the numbers of a graph that follow from them alone: operands are as a call may give them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dycl_tvm.compile.program import Program
from dycl_tvm.hcfg.hostops import ARITY, Number, evaluate
from dycl_tvm.hcfg.nodes import HCFG, Block, HostOp, Operand, Value
from dycl_tvm.hcfg.ranges import Range, Ranges
from dycl_tvm.hcfg.types import ScalarType


def draw_sizes(of: HCFG | Program, noise: torch.Generator, spans: Sequence[Range] = ()) -> list[int]:
    """Return sizes of a call, each within its bounds and often one of them; in half of the calls some that have a path of their own.

    With ``spans``, one for each size, they lie within these as well.
    """
    spans = spans or [Range(size.least, size.most) for size in of.sizes]
    if of.special_sizes and torch.rand((), generator=noise) < 0.5:
        special = of.special_sizes[int(torch.randint(len(of.special_sizes), (), generator=noise))]
        both = [span.meet(Range(*special.get(size.name, span))) for size, span in zip(of.sizes, spans)]
        spans = both if all(both) else spans
    return [_drawn(span, noise) for span in spans]


def _drawn(span: Range, noise: torch.Generator) -> int:
    least, most = int(span.low), int(span.high)
    if torch.rand((), generator=noise) < 0.4:
        return (least, most)[int(torch.randint(2, (), generator=noise))]
    return int(torch.randint(least, most + 1, (), generator=noise))


class SizesOfBlocks:
    """Which sizes calls have that reach a block, as far as ranges tell: what stands there need be right for no others.

    Parameters
    ----------
    graph : HCFG
        It must not be changed.
    """

    def __init__(self, graph: HCFG) -> None:
        self._params, self._bounds = graph.size_params, [Range(size.least, size.most) for size in graph.sizes]
        self._ranges = Ranges(graph, dict(zip(self._params, self._bounds))) if graph.sizes else None
        self._found: dict[int, list[Range]] = {}

    def spans(self, block: Block) -> list[Range]:
        """Return between which bounds each size is; those of the graph where nothing is known of a block."""
        found = self._found.get(id(block), self._bounds)
        if self._ranges is not None and id(block) not in self._found:
            found = [(self._ranges.of(param, block) or bounds).meet(bounds) for param, bounds in zip(self._params, self._bounds)]
            self._found[id(block)] = found = found if all(found) else self._bounds
        return found


class OfSizes:
    """The numbers of a graph that follow from the sizes that its callers decide.

    Parameters
    ----------
    graph : HCFG
    """

    def __init__(self, graph: HCFG) -> None:
        self._sizes = {id(p): k for k, p in enumerate(graph.size_params)}
        self._steps = {id(s.output): s for block in graph.blocks for s in block.steps if isinstance(s, HostOp)}

    def tensor(self, value: Value, like: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor | None:
        """Return what a tensor holds that is such a number; None if it is none."""
        step = self._steps.get(id(value))
        if step is None or step.op != "to_tensor":
            return None
        number = self._number(step.args[0], sizes, {})
        return None if number is None else torch.full_like(like, number)

    def _number(self, operand: Operand, sizes: Sequence[int], found: dict[int, Number | None]) -> Number | None:
        if not isinstance(operand, Value):
            return operand
        key = id(operand)
        if key in self._sizes:
            return sizes[self._sizes[key]]
        if key not in found:
            step = self._steps.get(key)
            kind = operand.type
            known = None
            if step is not None and step.op in ARITY and step.op not in ("item", "to_tensor") and isinstance(kind, ScalarType):
                args = [self._number(a, sizes, found) for a in step.args]
                try:
                    known = None if None in args else evaluate(step.op, args, kind)  # type: ignore[arg-type]  # none is None
                except ArithmeticError:
                    known = None  # no call gets beyond it
            found[key] = known
        return found[key]
