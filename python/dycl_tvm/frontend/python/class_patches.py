# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's classes while a model is staged: their methods run rewritten, whoever calls them.

Python itself calls methods: for operators, properties, iteration, ``with``, truth tests; and libraries do
(``nn.Sequential`` calls ``forward``). So the functions in the namespace of a user's class are replaced, while a stage is under
way, by ones that run the rewritten code, and put back afterwards.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.python.source.locate import is_library_file
from dycl_tvm.frontend.trace.session import current

#: Methods that stay as they are: they are part of how objects and classes work, and staging itself uses them.
_KEPT = frozenset(
    {
        "__new__",
        "__getattribute__",
        "__init_subclass__",
        "__class_getitem__",
        "__set_name__",
        "__del__",
        "__repr__",
        "__hash__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__deepcopy__",
        "__copy__",
        "__sizeof__",
        "__dir__",
        "__subclasshook__",
    }
)

Run = Callable[[types.FunctionType, tuple[Any, ...], dict[str, Any]], Any]


def users_function(function: Any) -> types.FunctionType | None:
    """Return the user's function behind a function, seen through replacements and ``torch.no_grad()``; None if it is a library's."""
    while isinstance(function, types.FunctionType):
        original = getattr(function, "__dycl_original__", None)
        if original is not None:
            function = original
        elif is_library_file(function.__code__.co_filename) or _is_generated(function):
            wrapped = getattr(function, "__wrapped__", None)
            if wrapped is None or not function.__code__.co_filename.endswith("_contextlib.py"):
                return None
            function = wrapped  # the whole stage runs without gradients
        else:
            return function
    return None


def _is_generated(function: types.FunctionType) -> bool:
    """Whether a function was made by a class decorator such as ``dataclass``."""
    return function.__code__.co_filename.startswith("<") and function.__name__.startswith("__")


class ClassPatches:
    """Replaces the functions of classes, and puts them back.

    Parameters
    ----------
    run : callable
        ``run(function, args, kwargs)`` calls the rewritten form of a function.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: set[type] = set()
        self._saved: list[tuple[type, str, Any]] = []

    def patch(self, cls: type) -> None:
        """Replace the functions of a user's class and of its bases."""
        for base in cls.__mro__:
            if base not in self._seen:
                self._seen.add(base)
                if not is_library_class(base):
                    self._patch_one(base)

    def restore(self) -> None:
        """Put everything back."""
        while self._saved:
            cls, name, value = self._saved.pop()
            setattr(cls, name, value)
        self._seen.clear()

    def _patch_one(self, cls: type) -> None:
        for name, value in list(vars(cls).items()):
            made = None if name in _KEPT else self._replacement(value)
            if made is not None:
                try:
                    setattr(cls, name, made)
                except (AttributeError, TypeError):  # a class that lets nobody change it: its methods run as they are
                    return
                self._saved.append((cls, name, value))

    def _replacement(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._wrap(value)
        if isinstance(value, (staticmethod, classmethod)):
            inner = self._wrap(value.__func__)
            return None if inner is None else type(value)(inner)
        if type(value) is property:
            parts: list[Any] = [value.fget, value.fset, value.fdel]
            get, put, delete = (None if f is None else self._wrap(f) or f for f in parts)
            return property(get, put, delete, value.__doc__)
        if isinstance(value, functools.cached_property):
            return self._cached(value)
        return None

    def _wrap(self, function: Any) -> Any:
        users = users_function(function)
        if users is None:
            return None

        @functools.wraps(users)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self._run(users, args, kwargs)

        replacement.__dycl_original__ = users  # type: ignore[attr-defined]
        return replacement

    def _cached(self, value: Any) -> Any:
        name, function = value.attrname, users_function(value.func)
        if name is None or function is None:
            return None

        def get(obj: Any) -> Any:
            if name not in obj.__dict__:
                result = self._run(function, (obj,), {})
                current().heap.changing_attribute(obj, name)
                obj.__dict__[name] = result
            return obj.__dict__[name]

        return property(get)


def is_library_class(cls: type) -> bool:
    """Whether a class is Python's or a library's, so that its methods are not rewritten."""
    if cls.__module__.split(".")[0] in sys.stdlib_module_names:
        return True
    if not all(not isinstance(v, types.FunctionType) for v in vars(cls).values()):
        files = {v.__code__.co_filename for v in vars(cls).values() if isinstance(v, types.FunctionType)}
        return all(is_library_file(f) or f.startswith("<") for f in files)
    return issubclass(cls, torch.nn.Module) and cls.__module__.startswith("torch.")


def is_library(x: Any) -> bool:
    """Whether a class, module or function is Python's or a library's."""
    if isinstance(x, type):
        return is_library_class(x)
    if isinstance(x, types.ModuleType):
        return not getattr(x, "__file__", None) or is_library_file(str(x.__file__))
    return users_function(x) is None or getattr(x, "__dycl_original__", None) is not None
