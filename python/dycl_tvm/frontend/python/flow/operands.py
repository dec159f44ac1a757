# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operands that are evaluated only if they are needed: functions without arguments, which the rewriting makes of them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.trace.values.blame import of_program


def evaluated(operand: Callable[[], Any]) -> Any:
    """Return the value of an operand; a variable of the function around it that is not set is a local one there, as in eager."""
    try:
        return operand()
    except NameError as error:
        unset = _as_local(error, operand)
        if unset is None:
            raise
    raise of_program(unset)


def _as_local(error: NameError, operand: Any) -> UnboundLocalError | None:
    """Return the error that Python raises where the operand stands; None if that is the same."""
    read = error.__traceback__.tb_next if error.__traceback__ is not None else None
    code: types.CodeType = operand.__code__
    if type(error) is not NameError or read is None or read.tb_next is not None or read.tb_frame.f_code is not code:
        return None
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        around = frame.f_code
        if code in around.co_consts and error.name in code.co_freevars:
            if error.name in around.co_cellvars:
                return _unset(error.name)
            code = around
        frame = frame.f_back
    return None


def _unset(name: str) -> UnboundLocalError:
    """Return what this version of Python raises for a local variable that is not set."""
    space: dict[str, Any] = {}
    exec(f"def read():\n    {name}\n    {name} = None", space)
    try:
        space["read"]()
    except UnboundLocalError as error:
        return error.with_traceback(None)
    raise AssertionError(name)
