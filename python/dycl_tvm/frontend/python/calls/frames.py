# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Questions for the frames of calls: while a model is staged there are others, between those of the program and in place of them."""

from __future__ import annotations

import inspect
import sys
import traceback
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.lifetimes import is_users
from dycl_tvm.frontend.trace.session import current

_OF_FRAMES = (
    *(sys._getframe, sys._current_frames, inspect.currentframe, inspect.stack),
    *(traceback.extract_stack, traceback.format_stack, traceback.print_stack, traceback.walk_stack),
)


def _refuse(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not is_users():
        return callee(*args, **kwargs)
    raise UnsupportedError(
        f"{callee.__name__}() asks for the frames of calls, which are others while a model is staged",
        current().origin(),
        "pass in what is wanted of the caller; locals() gives the variables of a function",
    )


TABLE = dict.fromkeys(_OF_FRAMES, _refuse)
