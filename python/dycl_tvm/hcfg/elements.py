# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Between which numbers the elements of an integer tensor lie, whatever the inputs are.

It is asked for one tensor and found backwards from there: positions along a dimension and counts have bounds, and operators that only move,
choose or compute elements keep them. A loop's parameters are taken to hold what comes in before it, until nothing more comes in from its
body (P. Cousot and R. Cousot, "Abstract interpretation", POPL 1977).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.hcfg.moving import APART, TOGETHER
from dycl_tvm.hcfg.nodes import Constant, HostOp, Operand, TensorOp, Value
from dycl_tvm.hcfg.ranges import EITHER, Range, apply
from dycl_tvm.hcfg.types import TensorType

#: So many values are looked at for one question, and their bounds computed so often; what still grows then is not bounded.
_MOST_VALUES, _MOST_ROUNDS = 512, 4
_NOTHING = Range(0, -1)
Step = TensorOp | HostOp
Of = Callable[[Any], "Range | None"]


class ElementRanges:
    """What is known of the elements of a graph's integer tensors.

    Attributes
    ----------
    given : dict
        Bounds that are known beforehand.
    makers : dict
        The step that makes a value.
    incoming : dict
        What a parameter of a block is on the ways that lead there.
    """

    def __init__(self) -> None:
        self.given: dict[Value, tuple[int, int]] = {}
        self.makers: dict[Value, Step] = {}
        self.incoming: dict[Value, tuple[Operand, ...]] = {}
        self._found: dict[Value, Range | None] = {}

    def of(self, value: Value) -> tuple[int, int] | None:
        """Return the least and the largest element that a tensor may have; None if that is not known."""
        if value in self.given:
            return self.given[value]
        if value not in self._found and self._at_once(value) is None:
            self._solve(value)
        found = self._found.get(value)
        return (int(found.low), int(found.high)) if found else None

    def _solve(self, value: Value) -> None:
        values = self._behind(value)
        found: dict[Value, Range | None] = dict.fromkeys(values or (), _NOTHING)

        def of(x: Any) -> Range | None:
            return found[x] if x in found else self._at_once(x)

        for _ in range(_MOST_ROUNDS if values else 0):
            before = dict(found)
            for v in found:
                found[v] = self._from(v, of)
            if found == before:
                self._conclude(found)
                return
        self._conclude({value: None})

    def _conclude(self, found: dict[Value, Range | None]) -> None:
        """Keep what was found; what is not known may be asked for again."""
        self._found.update((v, r) for v, r in found.items() if r)

    def _behind(self, value: Value) -> list[Value] | None:
        """Return the values that bounds follow from, each after those before it but for loops; None if there are too many."""
        order: list[Value] = []
        seen, stack = {value}, [(value, self._sources(value))]
        while stack:
            at, sources = stack[-1]
            following = next((s for s in sources if s not in seen and s not in self._found and self._at_once(s) is None), None)
            if following is None:
                order.append(at)
                stack.pop()
            elif len(seen) == _MOST_VALUES:
                return None
            else:
                seen.add(following)
                stack.append((following, self._sources(following)))
        return order

    def _sources(self, value: Value) -> Iterator[Value]:
        if value in self.incoming:
            return (v for v in self.incoming[value] if isinstance(v, Value))
        maker = self.makers.get(value)
        return (v for v in maker.operands() if is_integer(v)) if isinstance(maker, TensorOp) and _rule(maker) else iter(())

    def _at_once(self, x: Any) -> Range | None:
        """Return bounds that need no search."""
        if isinstance(x, bool) or not isinstance(x, (int, Value)):
            return Range(int(x), int(x)) if isinstance(x, bool) else None
        if isinstance(x, int):
            return Range(x, x)
        if x in self.given:
            return Range(*self.given[x])
        if isinstance(x.type, TensorType) and (x.type.dtype == "bool" or not x.type.numel):
            return EITHER if x.type.numel else _NOTHING
        if isinstance(x, Constant) and x not in self._found and is_integer(x):
            self._found[x] = Range(int(x.data.min()), int(x.data.max()))
        return self._found.get(x)

    def _from(self, value: Value, of: Of) -> Range | None:
        found = _hull(map(of, self.incoming[value])) if value in self.incoming else self._computed(value, of)
        return _OF_BYTES.get(value.type.dtype) if found is None and isinstance(value.type, TensorType) else found

    def _computed(self, value: Value, of: Of) -> Range | None:
        maker = self.makers.get(value)
        rule = _rule(maker) if isinstance(maker, TensorOp) else None
        if rule is None or not isinstance(maker, TensorOp) or maker.outputs[0] is not value:
            return None

        def fitting(x: Any) -> Range | None:
            """What the operator computes with: it converts its operands first, and what does not fit wraps round."""
            operand = of(x)
            return operand if operand is None or not operand or fits(operand, value) else None

        found = rule(maker, fitting)
        return found if found is not None and (not found or fits(found, value)) else None


def is_integer(x: Value) -> bool:
    """Tell whether a value is a tensor of integers or bools."""
    return isinstance(x.type, TensorType) and x.type.dtype in _DTYPES


_DTYPES = {"int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool}


#: What elements of one byte are, whatever makes them. Those of more bytes may be too far from each other for a bound to be of use.
_OF_BYTES = {name: Range(torch.iinfo(_DTYPES[name]).min, torch.iinfo(_DTYPES[name]).max) for name in ("uint8", "int8")}


def fits(found: Range, value: Value) -> bool:
    """Tell whether no element of these bounds wraps round in a tensor."""
    assert isinstance(value.type, TensorType)
    if value.type.dtype == "bool":
        return True
    limits = torch.iinfo(_DTYPES[value.type.dtype]) if value.type.dtype in _DTYPES else None
    return limits is not None and limits.min <= found.low and found.high <= limits.max


def _hull(found: Iterator[Range | None]) -> Range | None:
    """Return the range around all that there is; None if one is not known."""
    around = _NOTHING
    for r in found:
        if r is None:
            return None
        around = around.join(r) if around and r else around or r
    return around


# -- operators -----------------------------------------------------------------------------------------------------------------
Rule = Callable[[TensorOp, Of], "Range | None"]


def _moved(step: TensorOp, of: Of) -> Range | None:
    """Elements of the first argument; ``view(dtype)`` takes their bytes otherwise."""
    made, given = step.outputs[0], step.args[0]
    alike = made is not None and made.type.dtype == given.type.dtype  # type: ignore[union-attr]  # tensors both
    return of(given) if alike else None


def _among_zeros(step: TensorOp, of: Of) -> Range | None:
    found = of(step.args[0])
    return Range(min(found.low, 0), max(found.high, 0)) if found else found


def _converted(step: TensorOp, of: Of) -> Range | None:
    return of(step.args[0])


def _extreme(step: TensorOp, of: Of) -> Range | None:
    """Elements of the first argument, or of the second if that is a tensor, and no dimension."""
    return _hull(map(of, [a for a in step.args[:2] if isinstance(a, Value)]))


def _quotient(step: TensorOp, of: Of) -> Range | None:
    if step.kwargs != {"rounding_mode": "floor"}:
        return None
    return _computed("floordiv")(TensorOp(step.op, step.args, {}, step.outputs), of)


def _one_of(*positions: int) -> Rule:
    """Each element is one of these arguments, which are tensors, lists of tensors or numbers."""

    def rule(step: TensorOp, of: Of) -> Range | None:
        chosen = [step.args[p] for p in positions if p < len(step.args)]
        return _hull(map(of, [x for c in chosen for x in (c if isinstance(c, (list, tuple)) else [c])]))

    return rule


def _computed(op: str, swapped: bool = False) -> Rule:
    def rule(step: TensorOp, of: Of) -> Range | None:
        known = [of(a) for a in step.args[:2]]
        if len(step.args) > 2 or step.kwargs or any(r is None for r in known):
            return None
        if not all(known):
            return _NOTHING
        ends = [r for r in known if r is not None]
        return _finite(apply(op, ends[::-1] if swapped else ends, _ANY))

    return rule


def _padded(step: TensorOp, of: Of) -> Range | None:
    return _hull(map(of, [step.args[0], step.args[2] if len(step.args) > 2 else 0]))


def _scattered(step: TensorOp, of: Of) -> Range | None:
    """Scatter: elements of the first argument or of the fourth, which may be a number."""
    return None if step.kwargs or len(step.args) != 4 else _hull(map(of, [step.args[0], step.args[3]]))


def _put(step: TensorOp, of: Of) -> Range | None:
    accumulates = step.kwargs.get("accumulate", step.args[3] if len(step.args) > 3 else False)
    return None if accumulates else _hull(map(of, [step.args[0], step.args[2]]))


def _and(step: TensorOp, of: Of) -> Range | None:
    known = [of(a) for a in step.args[:2]]
    if any(r is None for r in known):
        return None
    highs = [r.high for r in known if r is not None and r.low >= 0]
    return Range(0, min(highs)) if highs else None


def _clamped(step: TensorOp, of: Of) -> Range | None:
    found, args = of(step.args[0]), step.args
    if step.op.startswith("aten.clamp_max"):
        args = (args[0], None, *args[1:])
    low, high = [args[k] if k < len(args) else step.kwargs.get(n) for k, n in ((1, "min"), (2, "max"))]
    if not all(x is None or (isinstance(x, int) and of(x)) for x in (low, high)):
        return None
    found = Range(-torch.inf, torch.inf) if found is None else found
    if not found:
        return found
    low, high = -torch.inf if low is None else low, torch.inf if high is None else high
    return _finite(Range(min(max(found.low, low), high), min(max(found.high, low), high)))


def _finite(found: Range) -> Range | None:
    return found if abs(found.low) < 2**63 and abs(found.high) <= 2**63 else None


_ANY = Range(-torch.inf, torch.inf)
_MOVING = (
    "alias clone contiguous detach diagonal expand flatten flip gather index index_select lift_fresh movedim narrow permute repeat "
    "reshape roll select slice squeeze t tile transpose unfold unsqueeze view _unsafe_view amax amin sort topk cummax cummin"
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_MOVING.split(), _moved),
    "_to_copy": _converted,
    **dict.fromkeys(["max", "min"], _extreme),
    **dict.fromkeys(["cat", "stack"], _one_of(0)),
    **dict.fromkeys(["maximum", "minimum", "slice_scatter", "select_scatter", "diagonal_scatter"], _one_of(0, 1)),
    "where": _one_of(1, 2),
    "masked_fill": _one_of(0, 2),
    "masked_scatter": _one_of(0, 2),
    "index_copy": _one_of(0, 3),
    "index_fill": _one_of(0, 3),
    "constant_pad_nd": _padded,
    "scatter": _scattered,
    **dict.fromkeys(["index_put", "_unsafe_index_put"], _put),
    "add": _computed("add"),
    "sub": _computed("sub"),
    "rsub": _computed("sub", swapped=True),
    "mul": _computed("mul"),
    "neg": _computed("neg"),
    "abs": _computed("abs"),
    "remainder": _computed("mod"),
    "floor_divide": _computed("floordiv"),
    "div": _quotient,
    "bitwise_and": _and,
    **dict.fromkeys(["clamp", "clamp_min", "clamp_max"], _clamped),
}


def _rule(step: TensorOp) -> Rule | None:
    """Return how the bounds of a result follow from those of the operands."""
    space, name, *_ = step.op.split(".")
    return _RULES.get(name) if space == "aten" else _among_zeros if step.op in (TOGETHER, APART) else None
