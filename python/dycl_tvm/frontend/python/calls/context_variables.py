# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Context variables: ``set`` and ``reset``. What they hold is a place of the heap, and whether a token was used an attribute of it."""

from __future__ import annotations

import contextvars
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.settings import CONTEXT
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program

_Variable = contextvars.ContextVar[Any]


class OwnToken:
    """Stands for a token of a context variable, of which Python keeps to itself whether it was used."""

    MISSING = contextvars.Token.MISSING

    def __init__(self, var: _Variable, old_value: Any) -> None:
        self.var, self.old_value, self.used = var, old_value, False

    __class__ = property(lambda self: contextvars.Token)  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise UnsupportedError("the text of a token of a context variable is used", current().origin(), "show the variable's value")


def changes_variable(callee: Any) -> bool:
    """Whether a builtin method is ``set`` or ``reset`` of a context variable."""
    return type(getattr(callee, "__self__", None)) is contextvars.ContextVar and callee.__name__ in ("set", "reset")


def change_variable(callee: Any, args: tuple[Any, ...]) -> Any:
    """Call ``set`` or ``reset`` of a context variable."""
    variable: _Variable = callee.__self__
    if len(args) != 1:
        return callee(*args)
    if callee.__name__ == "set":
        return _set(variable, args[0])
    return _reset(variable, args[0])


def _set(variable: _Variable, value: Any) -> OwnToken:
    heap = current().heap
    heap.journal.touch(CONTEXT)
    old = contextvars.copy_context().get(variable, contextvars.Token.MISSING)
    variable.set(value)
    token: OwnToken = heap.born(OwnToken(variable, old))
    return token


def _reset(variable: _Variable, token: Any) -> None:
    if type(token) is not OwnToken:
        variable.reset(token)
        raise UnsupportedError("a token of a context variable that was made before the forward is used in it", current().origin())
    if scalars.known(token.used) if scalars.is_symbolic(token.used) else token.used:
        raise of_program(RuntimeError("a token of a context variable has already been used once"))
    if token.var is not variable:
        raise of_program(ValueError("a token of a context variable was created by a different ContextVar"))
    heap = current().heap
    heap.changing_attribute(token, "used")
    heap.journal.touch(CONTEXT)
    token.used = True
    CONTEXT.restore(variable, token.old_value)
