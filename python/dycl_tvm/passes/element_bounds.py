# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of the elements of a whole graph's integer tensors.

They follow from more operators than those that the front end asks for (:mod:`dycl_tvm.hcfg.elements`): nothing that a program decides
hangs on them, so no answer of a forced run contradicts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dycl_tvm.hcfg.analysis import predecessors
from dycl_tvm.hcfg.elements import ElementRanges, Of, fits, is_integer
from dycl_tvm.hcfg.nodes import HCFG, Constant, HostOp, TensorOp, Value
from dycl_tvm.hcfg.ranges import Range, Ranges

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


class ElementBounds(ElementRanges):
    """Bounds in a graph that does not change meanwhile; ``given`` may."""

    def __init__(self, graph: HCFG) -> None:
        super().__init__()
        self._graph = graph
        self._numbers: Ranges | None = None
        for block, into in predecessors(graph).items():
            if into:
                self.incoming.update((p, tuple(e.args[k] for _, e in into)) for k, p in enumerate(block.params))
            self.makers.update((v, s) for s in block.steps if isinstance(s, (TensorOp, HostOp)) for v in s.results())

    def forget(self) -> None:
        """Drop what was concluded from bounds that are not given any more."""
        self._found = {v: r for v, r in self._found.items() if isinstance(v, Constant)}

    def _sources(self, value: Value) -> Iterator[Value]:
        maker = self.makers.get(value)
        if isinstance(maker, TensorOp) and maker.op in _SUMS and is_integer(maker.args[0]):
            return iter(maker.args[:1])
        return super()._sources(value)

    def _computed(self, value: Value, of: Of) -> Range | None:
        maker = self.makers.get(value)
        if isinstance(maker, HostOp) and maker.op == "to_tensor":
            self._numbers = self._numbers or Ranges(self._graph)
            number = self._numbers.of(maker.args[0])
            if number is None:
                return None
            found = Range(max(number.low, -(2**63)), min(number.high, 2**63 - 1))  # ints of a network are those of int64
            return found if fits(found, value) else None
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
