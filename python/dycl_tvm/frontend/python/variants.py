# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that is of one kind in some calls and of another in others: None and then a tensor, an attribute that comes to be, two modules.

A state variable says which it is, and each kind with contents has a variable of its own. The network begins with a test of the first,
so every run of the forward knows what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.places import MISSING
from dycl_tvm.frontend.trace.join.captured import Captured, NumberLeaf, Plain, TensorLeaf, same_plain
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import unrecorded
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.storage import Stale, tensor_type
from dycl_tvm.hcfg.nodes import Constant, Operand, Origin, Value
from dycl_tvm.hcfg.types import ScalarType, Type

#: How many kinds one place may have: each is a way through the network of its own.
_MOST = 4
_EMPTY = {"int": 0, "float": 0.0, "bool": False}


@dataclass(frozen=True)
class Layout:
    """How tensors of one kind lie in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(t: torch.Tensor) -> Layout:
        return Layout(tuple(t.shape), t.stride(), t.dtype)

    def meta(self) -> torch.Tensor:
        """Return a tensor without data."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


@dataclass
class Variant:
    """One kind of value: an object that is the same in every call, or a type.

    Attributes
    ----------
    obj : object
        The object; the layout of tensors; None for numbers.
    type : Type or None
        That of tensors and numbers.
    initial : Constant or number
        What the variable of this kind holds before the first call.
    """

    obj: Any
    type: Type | None = None
    initial: Constant | int | float | bool = 0

    def is_of(self, c: Captured) -> bool:
        """Whether a value is of this kind."""
        if isinstance(c, TensorLeaf):
            return self.type == tensor_type(c.obj) and self.obj == Layout.of(c.obj)
        if isinstance(c, NumberLeaf):
            return self.type == _number_type(c)
        return self.type is None and (self.obj is c.obj or same_plain([self.obj, c.obj]))


class Variants:
    """The kinds of one place, the first of them what it holds before the first call; ``origin`` is where the program asks for it."""

    def __init__(self, first: Captured, origin: Origin | None) -> None:
        self._origin = origin
        made = _variant(first, first.obj if isinstance(first, TensorLeaf) else None)
        assert made is not None
        self.known = [made]

    def which(self, c: Captured, lives_on: Callable[[Any], bool]) -> int | None:
        """Return the number of a value's kind, which may be a new one; None if no variable can keep it."""
        if isinstance(c.obj, Poison):
            use(c.obj)
        if (isinstance(c, TensorLeaf) and isinstance(c.value, Stale)) or scalars.mixed_of(c.obj) is not None:
            return None
        found = next((i for i, v in enumerate(self.known) if v.is_of(c)), None)
        if found is None and can_vary(c, lives_on) and len(self.known) < _MOST:
            self.known.append(_variant(c))
            found = len(self.known) - 1
        return found

    def at_entry(self, kind: Operand) -> int:
        """Decide of which kind the place is in the run at hand."""
        session = current()
        for i in range(1, len(self.known)):
            if session.decisions.decide(session.builder.host_op("eq", (kind, i), ScalarType("bool")), self._origin):
                return i
        return 0


def can_vary(c: Captured, lives_on: Callable[[Any], bool]) -> bool:
    """Whether a value is of a kind that a place can have beside others."""
    if isinstance(c, (NumberLeaf, TensorLeaf)):
        return True
    return isinstance(c, Plain) and (c.obj is MISSING or same_plain([c.obj, c.obj]) or lives_on(c.obj)) and not isinstance(c.obj, Poison)


def _variant(c: Captured, real: torch.Tensor | None = None) -> Variant:
    if isinstance(c, TensorLeaf):
        type_ = tensor_type(c.obj)
        return Variant(Layout.of(c.obj), type_, constants().of(_zeros(c.obj) if real is None else real))
    if isinstance(c, NumberLeaf):
        first = not isinstance(c.operand, Value)
        return Variant(None, _number_type(c), c.operand if first else _EMPTY[scalars._kind(c.operand)])  # type: ignore[arg-type]
    return Variant(c.obj)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """Return a real tensor: what a variable holds before there is anything to hold."""
    with unrecorded():
        return torch.zeros(like.shape, dtype=like.dtype)


def _number_type(c: NumberLeaf) -> ScalarType:
    return ScalarType(scalars._kind(c.operand))  # type: ignore[arg-type]  # the kinds are those of ScalarType
