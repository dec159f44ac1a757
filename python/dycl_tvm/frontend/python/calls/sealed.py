# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What stands for an object of compiled code that is not known, while a model that holds it is staged: any use of it is refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.trampolines import FOR_THE_PROGRAM
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.compiled import CODE, is_unknown, module_of
from dycl_tvm.frontend.trace.session import current, staging

_STAGING = str(Path(__file__).parents[2])
#: What every object has, and what is not asked for by the program.
_PLAIN = frozenset(
    ["__class__", "__del__", "__delattr__", "__dir__", "__getattribute__", "__getstate__", "__init__", "__init_subclass__", "__new__"]
    + ["__reduce__", "__reduce_ex__", "__setattr__", "__sizeof__", "__subclasshook__", "__set_name__"]
)


def seal(x: Any) -> Any:
    """Return what stands for an object if its code is compiled and not known; any other object, class or function as it is."""
    if not is_unknown(x) or isinstance(x, (type, *CODE, Sealed)):
        return x
    kind: Any = type(x)
    return sealed_kind(kind)(kind, lambda: refuse_unknown(kind))


def refuse_unknown(x: Any) -> NoReturn:
    """Refuse a call or use of compiled code that is not known."""
    kind = x if isinstance(x, type) else type(x)
    name = getattr(x, "__qualname__", None) if isinstance(x, CODE) else f"{kind.__name__}"
    error = UnsupportedError(
        f"`{name}` is compiled code of {module_of(x) or module_of(kind) or 'a module'}, which may keep state that cannot be seen",
        current().origin(),
        "call it outside of the forward, and pass in what it gives",
    )
    program().trampolines.passing = error  # a handler may swallow it
    raise error


class Sealed(OwnValue):
    """Base of what stands for such objects. Staging itself may compare them, and ask for their class."""

    __slots__ = ("__weakref__", "_kind", "_used")
    #: What may be done with it.
    written_by: frozenset[str] = frozenset()

    def __init__(self, kind: type, used: Callable[[], NoReturn]) -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_used", used)

    def note_written(self) -> None:
        """Take note that the program asks for a method that writes."""

    @staticmethod
    def shown(method: Any) -> Any:
        """Return what the program gets that asks for a method of what may be done with it."""
        return method

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, "_kind")
        if name in type(self).written_by:
            type(self).note_written(self)
            return type(self).shown(object.__getattribute__(self, name))
        if is_stagings(sys._getframe(1)):
            raise AttributeError(name)
        _refuse(self)

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(self)

    def __delattr__(self, name: str) -> None:
        _refuse(self)

    def __eq__(self, other: object) -> Any:
        own = object.__getattribute__(self, "_kind").__eq__ is not object.__eq__
        return _refuse(self) if own and not is_stagings(sys._getframe(1)) else self is other

    def __hash__(self) -> int:
        own = object.__getattribute__(self, "_kind").__hash__ is not object.__hash__
        return _refuse(self) if own else object.__hash__(self)


def _refuse(x: Sealed, *_args: Any, **_kwargs: Any) -> Any:
    if not staging():
        raise RuntimeError("a model is used by another thread while it is staged")
    object.__getattribute__(x, "_used")()


def is_stagings(frame: Any) -> bool:
    """Whether a frame is of staging's own code, and does nothing for the program."""
    return frame.f_code.co_filename.startswith(_STAGING) and frame.f_code not in FOR_THE_PROGRAM


@functools.cache
def sealed_kind(kind: Any) -> Any:
    """Return a class of what stands for objects of a class: it has the same special methods, and refuses each."""
    names = [n for n in dir(kind) if n.startswith("__") and n not in _PLAIN and n not in ("__eq__", "__hash__")]
    return type(f"sealed {kind.__name__}", (Sealed,), {"__slots__": (), **{n: _refuse for n in names if callable(getattr(kind, n, None))}})
