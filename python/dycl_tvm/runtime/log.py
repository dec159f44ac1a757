# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Texts of a library, for a function of Python's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Literal

from dycl_tvm.errors import UsageError

Level = Literal["print", "warning"]

#: A ``DyclLogLevel`` is the place in this list.
_LEVELS: list[Any] = ["nothing", "print", "warning"]
#: What C may call, by the library's handle: it lives as long as that may be.
_kept: dict[int, Any] = {}
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


def set_log(library: ctypes.CDLL, function: Callable[[Level, str], None] | None, level: Level) -> None:
    """Send the texts of a library to ``function``; None: where they go at first."""
    if level not in _LEVELS[1:]:
        raise UsageError(f"level is 'print' or 'warning', not {level!r}")
    if function is None:
        library.dycl_set_log(None, None, 1)
        _kept.pop(library._handle, None)
        return
    given = function

    def called(_: int | None, what: int, text: int, size: int) -> None:
        given(_LEVELS[what], ctypes.string_at(text, size).decode("utf-8", "replace"))

    made = _FUNCTION(called)
    library.dycl_set_log(ctypes.cast(made, ctypes.c_void_p), None, _LEVELS.index(level))
    _kept[library._handle] = made
