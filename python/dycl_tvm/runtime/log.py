# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Texts of a library, for a function of Python's."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from typing import Any, Literal

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi

Level = Literal["print", "warning"]

#: A ``DyclLogLevel`` is the place in this list.
_LEVELS: list[Any] = ["nothing", "print", "warning"]
#: The libraries that call a function, or did once, by their handles, and the function. None is taken out before its library is: another
#: thread may be about to call it, or to set it.
_functions: dict[int, tuple[ctypes.CDLL, Callable[[Level, str], None]]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)
def _called(handle: int, what: int, text: int, size: int) -> None:
    _functions[handle][1](_LEVELS[what], ctypes.string_at(text, size).decode("utf-8", "replace"))


def set_log(library: ctypes.CDLL, function: Callable[[Level, str], None] | None, level: Level) -> None:
    """Send the texts of a library to ``function``; None: where they go at first."""
    if level not in _LEVELS[1:]:
        raise UsageError(f"level is 'print' or 'warning', not {level!r}")
    capi.demand(library, "dycl_set_log")
    tell = library.dycl_set_log
    if function is None:
        tell(None, None, 1)
        return
    if not callable(function):
        raise UsageError(f"texts go to a function, or with None where they go at first, not to a {type(function).__name__}")
    _functions[library._handle] = library, function
    tell(ctypes.cast(_called, ctypes.c_void_p), library._handle, _LEVELS.index(level))


def forget_log(library: ctypes.CDLL) -> None:
    """Forget the function of a library that is unloaded, and calls nobody any more."""
    _functions.pop(library._handle, None)


@atexit.register
def _no_more_calls() -> None:
    # Python ends a thread that wants to go on when the interpreter has ended: in the middle of the library's code this aborts the process.
    for library, _ in list(_functions.values()):
        library.dycl_set_log(None, None, 1)
