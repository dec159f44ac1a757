# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operands of ``raise`` and ``except``."""

from __future__ import annotations

from typing import Any

from dycl_tvm.frontend.trace.join.poison import Poison, use


def caught(kinds: Any) -> Any:
    """What stands behind ``except``."""
    for kind in kinds if type(kinds) is tuple else (kinds,):
        if isinstance(kind, Poison):
            use(kind)
    return kinds


def cause(x: Any) -> Any:
    """What stands behind ``from`` in a ``raise``."""
    if isinstance(x, Poison):
        use(x)
    return x


def raising(error: Any) -> Any:
    """Mark an exception that the user's program raises itself."""
    if isinstance(error, Poison):
        use(error)
    made = error() if isinstance(error, type) and issubclass(error, BaseException) else error
    if isinstance(made, BaseException):
        made.__dycl_raised__ = True  # type: ignore[attr-defined]
    return made
