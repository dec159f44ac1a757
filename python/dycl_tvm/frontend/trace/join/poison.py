# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a variable holds after a join of values that cannot be one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.join.captured import Form
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.hcfg.nodes import Block


class Unset(str):
    """The reason of a poison that may not be set at all: a question for whether it is there must not be answered."""

    __slots__ = ()


class Poison(OwnValue):
    """What a variable holds after a join of values that cannot be one. Any use of it forks ``decision``; see also :mod:`.parting`."""

    __slots__ = ("_decision", "_forms", "_reason")

    def __init__(self, decision: Any, reason: str, block: Block | None = None, forms: tuple[Form | None, ...] = ()) -> None:
        object.__setattr__(self, "_decision", decision)
        object.__setattr__(self, "_reason", reason)
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


def count_unset(reasons: Mapping[Any, str]) -> int:
    """Return how many of the reasons say that something may not be set."""
    return sum(isinstance(reason, Unset) for reason in reasons.values())


def is_unbound(poison: Poison) -> bool:
    """Whether the variable may not be set at all."""
    return isinstance(object.__getattribute__(poison, "_reason"), Unset)


def forms_at(poison: Poison, block: Block) -> tuple[Form | None, ...]:
    """Return what a poison is on each of the paths that parted at a test and were joined in ``block``; nothing if it is another's."""
    decision = object.__getattribute__(poison, "_decision")
    made_in, forms = object.__getattribute__(poison, "_forms")
    return forms if made_in is block and not (decision.is_loop or decision.choice) else ()


def use(poison: Poison) -> Any:
    """Fork the decision that made the poison."""
    current().decisions.fork(object.__getattribute__(poison, "_decision"), object.__getattribute__(poison, "_reason"))


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
