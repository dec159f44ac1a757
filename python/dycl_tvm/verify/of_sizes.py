# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of the calls of a check, and the numbers of a graph that follow from them alone: operands are as a call may give them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dycl_tvm.compile.program import Program
from dycl_tvm.hcfg.hostops import ARITY, Number, evaluate
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Operand, Value
from dycl_tvm.hcfg.types import ScalarType


def draw_sizes(of: HCFG | Program, noise: torch.Generator) -> list[int]:
    """Return sizes of a call, each within its bounds and often one of them; in half of the calls some that have a path of their own."""

    def below(n: int) -> int:
        return int(torch.randint(n, (), generator=noise))

    drawn = [(least + below(most - least + 1), least, most)[max(0, below(5) - 2)] for least, most in ((s.least, s.most) for s in of.sizes)]
    if of.special_sizes and below(2):
        special = of.special_sizes[below(len(of.special_sizes))]
        spans = [special.get(size.name, (n, n)) for size, n in zip(of.sizes, drawn)]
        drawn = [least + below(most - least + 1) if below(2) else most for least, most in spans]
    return drawn


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
