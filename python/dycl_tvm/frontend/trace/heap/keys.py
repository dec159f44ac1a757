# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Keys of dicts and sets whose classes have Python code for ``==`` or ``hash``: a container is put back without running it.

That code is the program's: it may change what it likes, may ask what is known at run time only, and may find attributes that are not
there, because the object itself is being put back. A copy of a container has the hashes that the container has of its keys, so no code
is asked for them; ``==`` is asked of two keys with one hash, and is that of ``object`` meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.compiled import CODE, LIBRARY_PACKAGES, module_of

#: Most keys are of these classes.
_WITHOUT_CODE = frozenset([str, int, float, bool, bytes, complex, type(None), type])
_LIBRARIES = frozenset([*sys.stdlib_module_names, *LIBRARY_PACKAGES])


class Remembered(tuple[Any, ...]):
    """The contents of a dict or set some keys of which have code, and a copy of it."""

    copy: Any

    def with_values(self, values: Iterable[Any]) -> Remembered:
        """Return the contents of a dict with other values."""
        made = Remembered([(k, v) for (k, _), v in zip(self, values)])
        made.copy = self.copy
        return made


class Itself:
    """What is equal for two keys if they are one object."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return type(other) is Itself and self.key is other.key

    def __hash__(self) -> int:
        return id(self.key)


def have_code(keys: Iterable[Any]) -> bool:
    """Whether the classes of some keys have code of the program's for ``==`` or ``hash``."""
    found = list(keys)
    return not _WITHOUT_CODE.issuperset(map(type, found)) and any(map(has_code, found))


def has_code(key: Any) -> bool:
    """Whether code of the program's is run where a key is compared, or hashed."""
    kind: Any = type(key)
    if _with_code(kind):
        return True
    return isinstance(key, (tuple, frozenset)) and have_code(key)


@functools.cache
def _with_code(kind: Any) -> tuple[tuple[Any, str], ...]:
    """Return in which classes the methods lie that compare and hash objects of a class, if they are code of the program's."""
    found = []
    for name in ("__eq__", "__hash__"):
        base = next(c for c in kind.__mro__ if name in vars(c))
        method = vars(base)[name]
        if method is not None and type(method) not in CODE and module_of(method).split(".")[0] not in _LIBRARIES:
            found.append((base, name))
    return tuple(found)


def fields_of(key: Any) -> list[Any] | None:
    """Return what two keys of a frozen dataclass are compared by; None for all others, of which nothing is known."""
    kind: Any = type(key)
    made = [vars(base)[name].__code__.co_filename == "<string>" for base, name in _with_code(kind) if hasattr(vars(base)[name], "__code__")]
    parameters = kind.__dict__.get("__dataclass_params__")
    if made != [True, True] or not parameters or not parameters.frozen or any(base is not kind for base, _ in _with_code(kind)):
        return None
    fields = dataclasses.fields(key)
    if not all(f.compare for f in fields) or set(getattr(key, "__dict__", {})) - {f.name for f in fields}:
        return None
    return [getattr(key, f.name) for f in fields]


def remember(contents: Iterable[Any], container: Any) -> Remembered:
    """Return the contents of a dict or set, with a copy of it."""
    made = Remembered(contents)
    with unasked(set.__iter__(container) if isinstance(container, set) else dict.__iter__(container)):
        made.copy = set.copy(container) if isinstance(container, set) else dict.copy(container)
    return made


def put_back(contents: Remembered, container: Any) -> None:
    """Set the contents of a dict or set."""
    if isinstance(container, set):
        set.clear(container)
        set.update(container, contents.copy)  # no two keys are compared where nothing is in it
        return
    if isinstance(container, OrderedDict):
        now = list(OrderedDict.items(container))
        if len(now) != len(contents) or any(k is not old or v is not value for (k, v), (old, value) in zip(now, contents)):
            raise UnsupportedError(
                "an OrderedDict is changed whose keys have code of their own for `==` or `hash`", None, "use a dict, which is in order too"
            )
        return
    with unasked(dict.__iter__(contents.copy)):
        dict.clear(container)
        dict.update(container, contents.copy)
        others = [(k, v) for (k, v), held in zip(contents, dict.values(contents.copy)) if v is not held]
        alone = dict(_alone(frozenset(contents.copy))) if others else {}
        for key, value in others:
            dict.update(container, dict.fromkeys(alone[id(key)], value))


def _alone(keys: frozenset[Any]) -> Iterator[tuple[int, frozenset[Any]]]:
    """Yield a set of each key by itself. Sets and dicts that are made of each other take the hashes over."""
    if len(keys) == 1:
        yield from ((id(key), keys) for key in keys)
        return
    half = dict.fromkeys(keys)
    for _ in range(len(keys) // 2):
        half.popitem()
    yield from _alone(frozenset(half))
    yield from _alone(keys - frozenset(half))


@contextlib.contextmanager
def unasked(keys: Iterable[Any]) -> Iterator[None]:
    """Let keys be equal only if they are one object, as those of one container are."""
    bases = dict.fromkeys(base for kind in _kinds(keys) for base, name in _with_code(kind) if name == "__eq__")
    methods = [(base, vars(base)["__eq__"]) for base in bases]
    for base in bases:
        type.__setattr__(base, "__eq__", object.__eq__)
    try:
        yield
    finally:
        for base, method in methods:
            type.__setattr__(base, "__eq__", method)


def _kinds(keys: Iterable[Any]) -> set[Any]:
    """Return the classes of keys, and of those in them."""
    found, todo = set(), list(keys)
    while todo:
        key = todo.pop()
        found.add(type(key))
        todo += key if isinstance(key, (tuple, frozenset)) else ()
    return found
