# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of the calls of a check, and the numbers of a graph that follow from them alone: operands are as a call may give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dycl_tvm.compile.program import Program
from dycl_tvm.hcfg.hostops import ARITY, Number, evaluate
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Operand, Value
from dycl_tvm.hcfg.sizes import InputSize
from dycl_tvm.hcfg.types import ScalarType


def draw_sizes(of: HCFG | Program, noise: torch.Generator) -> list[int]:
    """Return sizes of a call, each within its bounds and often one of them; in half of the calls some that have a path of their own."""

    drawn = [_drawn(size, noise) for size in of.sizes]
    if of.special_sizes and torch.rand((), generator=noise) < 0.5:
        special = of.special_sizes[int(torch.randint(len(of.special_sizes), (), generator=noise))]
        spans = [special.get(size.name, (n, n)) for size, n in zip(of.sizes, drawn)]
        drawn = [_drawn(replace(size, least=least, most=most), noise) for size, (least, most) in zip(of.sizes, spans)]
    return drawn


def _drawn(size: InputSize, noise: torch.Generator) -> int:
    if torch.rand((), generator=noise) < 0.4:
        return (size.least, size.most)[int(torch.randint(2, (), generator=noise))]
    return int(torch.randint(size.least, size.most + 1, (), generator=noise))


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
