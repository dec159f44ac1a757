# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``str.format``, ``str.join`` and ``bytes.join``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.python.flow.iteration import unpacked
from dycl_tvm.frontend.trace.join.formats import formatted, glued


def make_text(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any], native: Callable[..., Any]) -> Any:
    """Call one of them; what ``native`` does is left to it."""
    if callee.__name__ == "join" and len(args) == 1 and hasattr(type(args[0]), "__next__"):
        args = ([*unpacked(args[0])],)  # texts that depend on the path part it
    of_text = type(callee.__self__) is str
    if of_text and callee.__name__ == "format":
        return formatted(callee.__self__, args, kwargs)
    if of_text and len(args) == 1 and type(args[0]) in (list, tuple):
        return glued(callee.__self__, args[0])
    return native(callee, args, kwargs)
