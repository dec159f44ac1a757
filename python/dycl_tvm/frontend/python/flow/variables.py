# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The variables of a function as the dict that ``locals()`` gives, without those that the rewriting adds.

Up to Python 3.12 all calls in one function give one dict, which keeps what the program writes to it and is brought up to date by every
call; since 3.13 each gives a dict of its own. In the body of a class it is the namespace itself.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source.syntax import OWN_NAME
from dycl_tvm.frontend.trace.join.poison import is_unbound, use
from dycl_tvm.frontend.trace.session import OfOneRun, current

_ONE_DICT = sys.version_info < (3, 13)


class _Spaces(OfOneRun):
    """The dicts of functions that are under way, by the identity of their frame, which is kept."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[types.FrameType, dict[str, Any]]] = {}


def bound(x: Any) -> Any:
    """Return what a variable holds; whether it is set at all may depend on the path."""
    if is_unbound(x):
        use(x)
    return x


def shows_locals() -> None:
    """Begin a function that asks for its variables: its dict is one on all paths."""
    if _ONE_DICT:
        _space_of(sys._getframe(1))


def users_locals(variables: dict[str, Any]) -> dict[str, Any]:
    """``locals()``."""
    return _shown(variables, sys._getframe(1))


def users_names(variables: dict[str, Any]) -> list[str]:
    """``dir()``."""
    return sorted(_shown(variables, sys._getframe(1)))


def _shown(variables: dict[str, Any], frame: types.FrameType) -> dict[str, Any]:
    shown = {name: bound(x) for name, x in variables.items() if not OWN_NAME.fullmatch(name)}
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        if len(shown) < len(variables):
            raise UnsupportedError("the names of a class are asked for while its body runs", current().origin(), "ask for them behind it")
        return variables
    if not _ONE_DICT:
        return current().heap.born(shown)
    space = _space_of(frame)
    current().heap.changing(space)
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name not in shown:
            space.pop(name, None)
    space.update(shown)
    return space


def _space_of(frame: types.FrameType) -> dict[str, Any]:
    known = current().get(_Spaces).known
    if id(frame) not in known:
        known[id(frame)] = (frame, current().heap.born({}))
    return known[id(frame)][1]
