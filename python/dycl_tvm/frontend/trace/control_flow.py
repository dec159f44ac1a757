# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The exceptions that steer staging.

They derive from BaseException so that a user's ``except Exception`` does not swallow them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ControlFlow(BaseException):
    """Base of the exceptions that steer staging; never an error."""


class ForkRequired(ControlFlow):
    """The two sides of ``decision`` cannot share their continuation: re-run with its decision fixed."""

    def __init__(
        self,
        decision: Any,
        reason: str,
        unroll: int = 0,
        others: object = "",
        refusal: Any = None,
        simply: bool = False,
        alike: bool | None = None,
        meets: bool | None = None,
    ) -> None:
        super().__init__(reason)
        self.decision, self.unroll, self.refusal, self.others, self.simply = decision, unroll, refusal, others, simply
        self.alike, self.meets = alike, meets

    def __str__(self) -> str:
        return with_others(self.args[0], self.others)


def with_others(text: str, others: object) -> str:
    """Return a message, and below it what else a join or loop could not make one; ``others`` is a text, or has one."""
    below = str(others)
    return f"{text}\n{below}" if below else text


class Again(ControlFlow):
    """More is known of the program, or of what calls leave behind: it is staged once more."""


class Dead(ControlFlow):
    """No path comes to this place: all have left by a jump."""


class Jump(ControlFlow):
    """A ``return``, ``break`` or ``continue`` on its way to its target."""

    def __init__(self, target: Any, kind: str, value: Any = None, env: dict[str, Any] | None = None, origin: Any = None) -> None:
        super().__init__(kind)
        self.target, self.kind, self.value, self.env, self.origin = target, kind, value, env or {}, origin


class Restart(ControlFlow):
    """The body of a loop is to be run again, with a more general state at its header."""

    def __init__(self, loop: Any) -> None:
        super().__init__("restart")
        self.loop = loop


class LengthNeeded(ControlFlow):
    """Python needs to know how long a tensor is that a function was called with: the function is to be run once for each length.

    ``refuse`` says that it cannot be.
    """

    def __init__(self, counter: Any, refuse: Callable[[], Any]) -> None:
        super().__init__("a length is needed")
        self.counter, self.refuse = counter, refuse
