# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What stands in the place of a decision of the program's where what an earlier call has left is the reason for a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dycl_tvm.errors import StateError, UnsupportedError
from dycl_tvm.frontend.trace.control_flow import Again, with_others
from dycl_tvm.frontend.trace.session import current


@dataclass(eq=False)
class NoDecision:
    """Stands for the model's state in messages: using a poison of it has its kinds told apart in the next round, or is an error."""

    tell_apart: Callable[[], bool] = bool
    index: int = -1

    def refuse(self, reason: str, others: object = "") -> None:
        """Raise the error, if the kinds cannot be told apart."""
        if self.tell_apart():
            raise Again
        raise StateError(
            with_others(f"{reason}: what one call leaves behind is read by the next, and changes its type", others),
            current().origin(),
            "set it at the beginning of the forward, or give it its final type in __init__; where it is made once and kept (a cache), "
            "call the model once before it is built; give what has another length after every call a bound, build(..., max_length=1000), "
            "or a tensor of fixed shape with a number beside it: self.kept[: len(y)] = y; self.count = len(y)",
        )


@dataclass
class KeptInput:
    """In the place of a site: a tensor that an earlier call has kept, and an input, which may be one."""

    name: str

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse to read one after a change of the other."""
        raise UnsupportedError(
            f"`{self.name}` may be an input of an earlier call, which may be given again; it, or an input, is changed in place, "
            "and the other one read",
            current().origin(),
            "keep a copy: self.h = x.clone()",
        )


class TwoNames:
    """In the place of a decision: a container that an earlier call may have left under two names."""

    index = -1

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse a change of it, which may have to show under the other name."""
        raise UnsupportedError(
            with_others(f"{reason}: an earlier call may have left it so", others),
            current().origin(),
            "give each name a copy of its own (list(x), dict(x)), or change the container instead of assigning another",
        )
