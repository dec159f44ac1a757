# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a variable holds after a join of values that cannot be one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.decisions import Decision
from dycl_tvm.frontend.trace.heap.places import MISSING, Place
from dycl_tvm.frontend.trace.join.captured import Captured, Form
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.hcfg.nodes import Block, Origin


@dataclass
class Why:
    """Why a value is a poison.

    Attributes
    ----------
    reason : str
        In one sentence.
    is_ : str
        What the value may be.
    unset : bool
        Whether it may not be set at all: a question for whether it is there must not be answered.
    others : object
        The values that could not be one at the same place, as a text that messages show below.
    """

    reason: str
    is_: str = "one of several values"
    unset: bool = False
    others: Any = ""


class Poison(OwnValue):
    """What a variable holds after a join of values that cannot be one. Any use of it forks ``decision``; see also :mod:`.parting`."""

    __slots__ = ("_decision", "_forms", "_why")

    def __init__(self, decision: Any, why: Why, block: Block | None = None, forms: tuple[Form | None, ...] = ()) -> None:
        object.__setattr__(self, "_decision", decision)
        object.__setattr__(self, "_why", why)
        object.__setattr__(self, "_forms", (block, forms))

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Poison
        use(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fork when a tensor function is given a poison."""
        for a in torch.utils._pytree.tree_leaves((args, kwargs or {})):
            if isinstance(a, Poison):
                use(a)


class Refusing:
    """In the place of a decision: no run with another side of it would help."""

    #: Paths of a decision are parted first: on one of them the variable may hold another value.
    index = sys.maxsize

    def __init__(self, origin: Origin | None, instead: str) -> None:
        self._origin, self._instead = origin, instead

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse the use of the value."""
        raise UnsupportedError(reason, self._origin, self._instead)


def is_unbound(x: Any) -> bool:
    """Whether a variable that holds ``x`` may not be set at all."""
    return isinstance(x, Poison) and of_poison(x).unset


def may_be_unset(c: Captured) -> bool:
    """Whether a value may not be set at all."""
    return c.obj is MISSING or (isinstance(c.obj, Poison) and is_unbound(c.obj))


def count_unset(whys: Mapping[Any, Why]) -> int:
    """Return how many of the values may not be set."""
    return sum(why.unset for why in whys.values())


def of_poison(poison: Poison) -> Why:
    """Return why a value is a poison."""
    why: Why = object.__getattribute__(poison, "_why")
    return why


def forms_at(poison: Poison, block: Block) -> tuple[Form | None, ...]:
    """Return what a poison is on each of the paths that parted at a test and were joined in ``block``; nothing if it is another's."""
    decision = object.__getattribute__(poison, "_decision")
    made_in, forms = object.__getattribute__(poison, "_forms")
    if made_in is not block or not isinstance(decision, Decision):  # what an earlier call has left is of no decision
        return ()
    return () if decision.is_loop or decision.choice else forms


def use(poison: Poison) -> Any:
    """Fork the decision that made the poison."""
    why = of_poison(poison)
    current().decisions.fork(object.__getattribute__(poison, "_decision"), why.reason, why.others)


def filled(place: Place, contents: Any, items: Sequence[Any]) -> Any:
    """Return contents of the same structure with other values, for a place that can hold them: else the paths part."""
    if place.holds_anything:
        return place.unflatten(contents, items)
    items = [scalars.known(item) if scalars.is_symbolic(item) else item for item in items]
    todo = list(items)
    while todo:
        item = todo.pop()
        if isinstance(item, Poison):
            use(item)
        todo += item if isinstance(item, tuple) else ()
    return place.unflatten(contents, items)


def _trap(self: Any, *_args: Any, **_kwargs: Any) -> Any:
    use(self)


for _name in [
    "add",
    "radd",
    "iadd",
    "sub",
    "rsub",
    "isub",
    "mul",
    "rmul",
    "imul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "matmul",
    "rmatmul",
    "neg",
    "pos",
    "abs",
    "invert",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "bool",
    "int",
    "float",
    "index",
    "len",
    "iter",
    "next",
    "getitem",
    "setitem",
    "delitem",
    "contains",
    "call",
    "enter",
    "exit",
    "hash",
    "str",
    "repr",
    "format",
    "round",
    "trunc",
    "floor",
    "ceil",
    "setattr",
]:
    setattr(Poison, f"__{_name}__", _trap)
