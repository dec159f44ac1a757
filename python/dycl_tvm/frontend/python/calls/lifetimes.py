# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Questions for the lifetime of objects: staging keeps all of them alive, so they are refused."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

from dycl_tvm.frontend.python.finalizers import CONTAINERS, refuse_lifetime
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.locate import is_library_file

_OF_AN_OBJECT = (weakref.ref, weakref.proxy, weakref.finalize, weakref.WeakMethod)
_COUNTS = (sys.getrefcount, weakref.getweakrefcount, weakref.getweakrefs, gc.get_referrers, gc.get_objects, gc.get_count)
_MODULES = frozenset(["weakref", "_weakref", "_weakrefset", "sys", "gc"])
_PACKAGE = str(Path(__file__).parents[3]) + "/"


def check_lifetime(callee: Any, args: tuple[Any, ...]) -> None:
    """Refuse a call of the user's that asks when, or whether, an object is given up."""
    if isinstance(callee, weakref.ref):
        referent = weakref.ref.__call__(callee)
        if referent is not None and is_users() and not program().state.finalizers.is_alive(referent):
            refuse_lifetime("a weak reference is followed, which")
        return
    if getattr(callee, "__module__", None) not in _MODULES or not is_users():
        return
    weak = any(callee is x for x in _OF_AN_OBJECT) and args and not program().state.lives_on(getattr(args[0], "__self__", args[0]))
    if weak or any(callee is x for x in (*CONTAINERS, *_COUNTS)):
        refuse_lifetime(f"{callee.__name__}()")


def is_users() -> bool:
    """Whether the code that calls is the user's."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return not is_library_file(frame.f_code.co_filename)
