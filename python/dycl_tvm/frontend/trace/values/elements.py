# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Between which numbers the elements of integer tensors of the graph under construction lie (:mod:`dycl_tvm.hcfg.elements`).

It is asked for where such an element becomes a number of Python's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.hcfg.elements import ElementRanges, is_integer
from dycl_tvm.hcfg.nodes import HostOp, Operand, TensorOp, Value

#: Operators that add a number, or none, and their sign; and how much they may add together.
_STEPS = {"aten.add.Tensor": 1, "aten.sub.Tensor": -1, "aten.clone.default": 1}
_NEAR = 1 << 31


class Elements(OfOneRun, ElementRanges):
    """What is known of the elements of integer tensors; ``given`` has results of operators that are positions, or count."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0
        self._last: Any = None

    def of(self, value: Value) -> tuple[int, int] | None:
        """Return the least and the largest element that a tensor may have; None if that is not known."""
        self._look_at_events()
        with plainly():
            return super().of(value)

    def enter(self, params: Sequence[Value], ways: Sequence[Sequence[Operand]]) -> None:
        """Note what parameters of a block are on all ways that lead there."""
        for param, operands in zip(params, zip(*ways)):
            if is_integer(param):
                self.incoming[param] = operands

    def base_of(self, value: Value) -> tuple[Value, int]:
        """Return the tensor of rank 0 from which another one was made by adding numbers, and how much was added: little enough that
        two such tensors are so far from each other unless the larger one has wrapped round."""
        self._look_at_events()
        more = 0
        while isinstance(maker := self.makers.get(value), TensorOp) and str(maker.op) in _STEPS and not maker.kwargs:
            given, by = (*maker.args, 0)[:2]
            added = _STEPS[str(maker.op)] * by if type(by) is int else None
            alike = isinstance(given, Value) and given.type == value.type and value.type.dtype == "int64"  # type: ignore[union-attr]
            if not alike or added is None or abs(more + added) > _NEAR:
                break
            value, more = given, more + added
        return value, more

    def maker_of(self, value: Value) -> TensorOp | None:
        """Return the operation on tensors that makes a value, if one does."""
        self._look_at_events()
        maker = self.makers.get(value)
        return maker if isinstance(maker, TensorOp) else None

    def computed_as(self, value: Value, steps: int = 6) -> Any:
        """Return what a tensor is computed of, some steps back, as something that is equal for tensors that surely hold the same."""
        self._look_at_events()

        def of(x: Any, left: int) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x), *[of(y, left) for y in x]
            if not isinstance(x, Value):
                return type(x), repr(x) if isinstance(x, (float, complex)) else x  # zeros have signs
            maker = self.makers.get(x) if left else None
            if not isinstance(maker, TensorOp):
                return x
            given = [(name, of(y, left - 1)) for name, y in maker.kwargs.items()]
            return str(maker.op), maker.results().index(x), *[of(y, left - 1) for y in maker.args], *given

        return of(value, steps)

    def _look_at_events(self) -> None:
        events = current().builder.events
        if len(events) < self._seen or (self._seen and events[self._seen - 1] is not self._last):  # some were taken back
            self._seen = 0
        for _, made, _ in events[self._seen :]:
            if isinstance(made, (TensorOp, HostOp)):
                self.makers.update((v, made) for v in made.results())
        self._seen, self._last = len(events), events[-1] if events else None


def elements() -> Elements:
    """Return what is known of the elements of the graph under construction."""
    return current().get(Elements)
