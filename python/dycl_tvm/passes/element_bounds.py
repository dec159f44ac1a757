# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of the elements of a whole graph's integer tensors.

They follow from more operators than those that the front end asks for (:mod:`dycl_tvm.hcfg.elements`): nothing that a program decides
hangs on them, so no answer of a forced run contradicts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dycl_tvm.hcfg.analysis import DominatorTree, natural_loops, predecessors
from dycl_tvm.hcfg.elements import ElementRanges, Of, fits, is_integer
from dycl_tvm.hcfg.nodes import HCFG, Block, HostOp, TensorOp, Value
from dycl_tvm.hcfg.ranges import ALL, Range, Ranges
from dycl_tvm.passes.scopes import Scopes

#: Operators of which a result holds places along a dimension: which result, which operand has it, and which argument says it.
_PLACES = {
    **{f"aten.{name}": (0, 0, 1) for name in ("argmax.default", "argmin.default", "argsort.default")},
    **{f"aten.{name}": (1, 0, 1) for name in ("max.dim", "min.dim", "sort.default", "cummax.default", "cummin.default")},
    "aten.topk.default": (1, 0, 2),
    "dycl_random.multinomial.default": (0, 1, 5),
}
#: Their results have the sign of the divisor.
_REMAINDERS = ("aten.remainder.Scalar", "aten.remainder.Tensor")
_SUMS = ("aten.sum.default", "aten.sum.dim_IntList", "aten.cumsum.default")


#: So many values, from a tensor back, are looked at with what is known in the block that reads it.
_NEAR = 32


class ElementBounds(ElementRanges):
    """Bounds in a graph that gets checks meanwhile, and no other steps.

    Parameters
    ----------
    graph : HCFG
    tree : DominatorTree
        Of its blocks, which are gone through down the tree: what is learned of a tensor is known in its block and below.
    scopes : Scopes
        Left with each block.
    """

    def __init__(self, graph: HCFG, tree: DominatorTree, scopes: Scopes) -> None:
        super().__init__()
        self._graph, self._scopes = graph, scopes
        self._numbers: Ranges | None = None
        nest = natural_loops(graph, tree)
        #: Values that are made at most once in a call: what is known of one holds for all that is computed of it later, in any trip.
        once = [] if nest.irreducible else [b for b in tree.order if b not in nest.innermost]
        self._once = {v for b in once for v in (*b.params, *(r for s in b.steps for r in s.results()))}
        self._learned: dict[Value, Range] = {}
        self._users: dict[Value, list[Value]] = {}
        #: Tensors that are made of numbers of the host, and in which blocks.
        self._of_numbers: dict[Value, Block] = {}
        for block, into in predecessors(graph).items():
            if into:
                self.incoming.update((p, tuple(e.args[k] for _, e in into)) for k, p in enumerate(block.params))
            for step in block.steps:
                if isinstance(step, (TensorOp, HostOp)):
                    self.makers.update((v, step) for v in step.results())
                    if step.op == "to_tensor":
                        self._of_numbers[step.results()[0]] = block

    def learn(self, value: Value, low: int, high: int) -> None:
        """Note that the elements of a tensor lie between two bounds."""
        known = Range(low, high).meet(self._learned.get(value, ALL))
        self._scopes.learn(self._learned, value, known)
        known = known.meet(Range(*(self.of(value) or ALL)))
        if not known or value not in self._once:
            return
        self._scopes.learn(self.given, value, (int(known.low), int(known.high)))
        behind = [value]
        while behind:  # what was concluded without this holds, but more may be concluded now
            for user in self._users.pop(behind.pop(), ()):
                if self._found.pop(user, ALL) is not ALL:
                    behind.append(user)

    def here(self, value: Value, block: Block) -> Range | None:
        """Return the bounds of a tensor that is read in a block.

        A value that it is computed of by steps alone, and by no parameter of a block, is the last one that was made, and the block's
        dominators have been passed since: what is known here holds for it.
        """
        found: dict[Value, Range | None] = {}

        def of(x: Any) -> Range | None:
            if not isinstance(x, Value):
                return self._at_once(x)
            if x not in found:
                found[x] = None
                bounds = self._learned.get(x)
                if bounds is None and len(found) <= _NEAR and x not in self.incoming:
                    bounds = self._number(x, block) if x in self._of_numbers else self._from(x, of)
                found[x] = Range(*anywhere) if bounds is None and (anywhere := self.of(x)) else bounds
            return found[x]

        return of(value)

    def _conclude(self, found: dict[Value, Range | None]) -> None:
        for value, bounds in found.items():
            self._scopes.conclude(self._found, value, bounds or None)
            for source in self._sources(value):
                self._users.setdefault(source, []).append(value)

    def _number(self, value: Value, block: Block) -> Range | None:
        """Return the number of which a tensor is made, as the branches that lead to a block bound it."""
        self._numbers = self._numbers or Ranges(self._graph)
        number = self._numbers.of(self.makers[value].args[0], block)
        if number is None:
            return None
        found = Range(max(number.low, -(2**63)), min(number.high, 2**63 - 1))  # ints of a network are those of int64
        return found if fits(found, value) else None

    def _sources(self, value: Value) -> Iterator[Value]:
        maker = self.makers.get(value)
        if isinstance(maker, TensorOp) and maker.op in _SUMS and is_integer(maker.args[0]):
            return iter(maker.args[:1])
        return super()._sources(value)

    def _computed(self, value: Value, of: Of) -> Range | None:
        maker = self.makers.get(value)
        if value in self._of_numbers:
            return self._number(value, self._of_numbers[value])
        if isinstance(maker, TensorOp) and maker.op in _SUMS:
            return _summed(maker, value, of)
        if (
            isinstance(maker, TensorOp)
            and maker.op in _REMAINDERS
            and (divisor := of(maker.args[1]))
            and divisor.low > 0
            and fits(divisor, value)
        ):
            return super()._computed(value, of) or Range(0, divisor.high - 1)
        places = _places(maker, value) if isinstance(maker, TensorOp) else None
        return super()._computed(value, of) if places is None else places


def _places(step: TensorOp, value: Value) -> Range | None:
    which, given, at = _PLACES.get(step.op, (None, 0, 0))
    if which is None or step.outputs[which] is not value:
        return None
    shape = step.args[given].type.shape or (1,)
    default = None if step.op.startswith("aten.argm") else -1
    dim = step.args[at] if at < len(step.args) else step.kwargs.get("dim", default)
    return Range(0, (math.prod(shape) if dim is None else shape[dim]) - 1)


def _summed(step: TensorOp, value: Value, of: Of) -> Range | None:
    """Return the bounds of sums, each of as many elements, or of the first ones along a dimension."""
    found, given, made = of(step.args[0]), step.args[0].type, value.type
    if found is None or made.dtype != "int64":  # type: ignore[union-attr]  # a tensor
        return None
    if not given.numel:
        return Range(0, 0)  # of no elements
    if not found:
        return found  # no way that leads there is known yet
    if "cumsum" in step.op:
        most = given.shape[step.args[1]] if given.shape else 1
        low, high = min(found.low, found.low * most), max(found.high, found.high * most)
    else:
        count = given.numel // made.numel  # type: ignore[union-attr]
        low, high = found.low * count, found.high * count
    return Range(low, high) if low > -(2**62) and high < 2**62 else None
