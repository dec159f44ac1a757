# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The stage that is under way in this thread, and the control flow exceptions of staging.

The exceptions derive from BaseException so that a user's ``except Exception`` does not swallow them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dycl_tvm.frontend.python.explore import Stage

_local = threading.local()


def current() -> Stage:
    """Return the stage under way in this thread."""
    stage: Stage | None = getattr(_local, "stage", None)
    if stage is None:
        raise RuntimeError("converted code runs outside of a stage")
    return stage


def staging() -> bool:
    """Whether a stage is under way in this thread."""
    return getattr(_local, "stage", None) is not None


def set_current(stage: Stage | None) -> None:
    """Make ``stage`` the one under way in this thread."""
    _local.stage = stage


class ControlFlow(BaseException):
    """Base of the exceptions that steer staging; never an error."""


class ForkRequired(ControlFlow):
    """The two sides of ``site`` cannot share their continuation: re-run with its decision fixed."""

    def __init__(self, site: Any, reason: str, unroll: int = 0) -> None:
        super().__init__(reason)
        self.site, self.reason, self.unroll = site, reason, unroll


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
