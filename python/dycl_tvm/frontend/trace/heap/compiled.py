# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compiled code that is not known: it may keep state that nothing shows, so the forward cannot be followed through it."""

from __future__ import annotations

import ctypes
import datetime
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

#: Packages whose code is known to keep no state but what their objects show.
LIBRARY_PACKAGES = ("torch", "numpy", "tvm", "tvm_ffi", "functorch", "sympy")
#: Where classes that are bound by pybind11 and nanobind have their metaclass from.
_BINDINGS = ("pybind11_builtins", "nanobind")
_KNOWN = frozenset([*sys.stdlib_module_names, *sys.builtin_module_names, *LIBRARY_PACKAGES, *_BINDINGS, "Token", "ml_dtypes", "dycl_tvm"])
_FOREIGN: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]
_CAPSULE: Any = type(datetime.datetime_CAPI)  # type: ignore[attr-defined]
#: Functions and methods in C.
CODE = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes of a `class` statement have it, and some that are compiled


def module_of(x: Any) -> str:
    """Return the name of the module that an object says it is of; nothing if it does not."""
    module = getattr(x, "__module__", None)
    return module if isinstance(module, str) else ""


def owner_of(x: Any) -> Any:
    """Return what a compiled function is a method of; None if it is bound to nothing but what its binding notes of it.

    That record (a capsule, or a class of pybind11's own) is made once and tells how the function is called.
    """
    owner = x.__self__
    return None if isinstance(owner, (type, types.ModuleType, _CAPSULE)) or module_of(type(owner)) in _BINDINGS else owner


def is_unknown(x: Any) -> bool:
    """Whether an object, class or function is worked by compiled code that is not known."""
    kind: Any = type(x)
    answer = _by_kind(kind)
    return answer if isinstance(answer, bool) else answer(x)


@functools.cache
def _by_kind(kind: Any) -> bool | Callable[[Any], bool]:
    """Whether all objects of a class are; or how it is found for one of them."""
    if kind in CODE:
        return _is_unknown_code
    if issubclass(kind, type):
        return is_unknown_class
    if not isinstance(kind.__module__, str) or kind.__module__.startswith("_cython_"):  # a function says itself where it is from
        return lambda x: not _is_known(module_of(x) or "Cython")
    return is_unknown_class(kind)


def _is_unknown_code(x: Any) -> bool:
    owner: Any = getattr(x, "__objclass__", None) or getattr(x, "__self__", None)
    if module_of(x) or isinstance(owner, types.ModuleType):
        return not _is_known(module_of(x) or owner.__name__)
    return is_unknown_class(owner if isinstance(owner, type) else type(owner))


@functools.cache
def is_unknown_class(cls: Any) -> bool:
    """Whether objects of a class are worked by compiled code that is not known."""
    return issubclass(cls, _FOREIGN) or any(not is_python(base) and not _is_known_class(base) for base in cls.__mro__)


def _is_known_class(cls: Any) -> bool:
    module = module_of(cls)
    return _is_known(module) and not (module == "builtins" and cls.__flags__ & _HEAP_TYPE)  # this is what it says if it says nothing


def _is_known(module: str) -> bool:
    return not module or module.split(".")[0] in _KNOWN


@functools.cache
def is_python(cls: Any) -> bool:
    """Whether a class was made by a ``class`` statement: it adds nothing but ``__dict__`` and slots to its base."""
    if not cls.__flags__ & _HEAP_TYPE or module_of(type(cls)) in _BINDINGS:
        return False
    base = cls.__base__
    assert base is not None
    own = vars(cls).values()
    if any(getattr(v, "__objclass__", None) is cls and type(v) in CODE for v in own):
        return False
    slots = [v for v in own if isinstance(v, types.MemberDescriptorType)] if "__slots__" in vars(cls) else []
    added = len(slots) + (cls.__weakrefoffset__ != base.__weakrefoffset__) + (cls.__dictoffset__ != base.__dictoffset__)
    return bool(cls.__basicsize__ <= base.__basicsize__ + 8 * added)
