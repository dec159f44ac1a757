# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Modules that the forward imports: their code runs as if no stage were under way, and what they hold lives on between calls."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.session import current, set_current
from dycl_tvm.frontend.trace.unrecorded import plainly


def importing(space: dict[str, Any], name: str, parts: tuple[str, ...], level: int) -> None:
    """Import what an ``import`` statement is about to import; if that fails, the statement itself says so."""
    found = []
    try:
        with _Outside():
            module = builtins.__import__(name, space, None, parts or ("",), level)
            found = [module, *(getattr(module, part, None) for part in parts)]
    except Exception:
        return
    for x in found:
        note_module(x)


def import_by_call(callee: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``importlib.import_module`` and ``__import__``."""
    with _Outside():
        made = callee(*args, **kwargs)
    return note_module(made)


def note_module(x: Any) -> Any:
    """Take down a module that the program came to: what it holds lives on."""
    if isinstance(x, types.ModuleType):
        program().state.add_module(x)
    return x


class _Outside:
    """Runs code as if no stage were under way. Not by :mod:`contextlib`, whose code may run rewritten itself."""

    def __enter__(self) -> None:
        self._session = current()
        set_current(None)
        self._plainly = plainly()
        self._plainly.__enter__()

    def __exit__(self, *error: object) -> None:
        self._plainly.__exit__(None, None, None)
        set_current(self._session)
