# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Progress bars of tqdm, for whoever watches the program, and no part of what it computes: they are left out."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.messages import leave_out
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source import plain_progress
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.session import current


def substitute_of(callee: Any) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return what is called in place of ``tqdm``, ``trange`` and ``tqdm.write``; None if it is none of them."""
    bars: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bars is None:
        return None
    if isinstance(callee, type):
        return _make if issubclass(callee, bars) and _is_tqdms(callee) else None
    if isinstance(callee, types.FunctionType):
        return _make if _is_tqdms(callee) and callee.__name__ in ("trange", "tnrange") else None
    owner = getattr(callee, "__self__", None)
    return _write if isinstance(owner, type) and issubclass(owner, bars) and callee.__name__ == "write" else None


def _is_tqdms(x: Any) -> bool:
    return module_of(x).partition(".")[0] == "tqdm"


def _make(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    program().leave_out("a progress bar")
    if "file" in kwargs or "gui" in kwargs:
        raise UnsupportedError("a progress bar writes to a file of the program's", current().origin(), "leave `file` and `gui` out")
    made: Any = plain_progress.trange if isinstance(callee, types.FunctionType) else plain_progress.bar
    return program().run_function(made, args, kwargs)


def _write(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leave_out("a message of a progress bar", args, kwargs)
