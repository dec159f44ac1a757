# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the program is told when Python gives an object of the model up: callbacks of weak references, finalizers, weak containers.

Staging keeps all objects alive, so these would never run: a forward that lets go of such an object is refused.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source.ownership import code_of, is_library
from dycl_tvm.frontend.trace.heap.reach import Step, reach
from dycl_tvm.frontend.trace.session import current

#: Containers that let go of what nothing else holds.
CONTAINERS: tuple[Any, ...] = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


@functools.lru_cache(maxsize=4096)
def _is_container(kind: Any) -> bool:
    """Whether objects of a class hold what they hold weakly. To ask ``isinstance`` of each object takes long: the classes are abstract."""
    return issubclass(kind, CONTAINERS)


class Finalizers:
    """The objects of the model whose end the program would be told of."""

    def __init__(self) -> None:
        self._roots: list[Step] = []
        self._told: list[Step] = []
        self._containers: list[Step] = []

    def reached_from(self, roots: list[Step]) -> None:
        """Take down where the model's objects are reached from."""
        self._roots += roots

    def note(self, label: str, x: Any) -> None:
        """Take down an object, if the program would be told of its end."""
        kind: Any = type(x)
        if _is_container(kind):
            self._containers.append((label, x))
        elif not isinstance(x, type) and any(map(_tells_user, weakref.getweakrefs(x))):
            self._told.append((label, x))

    def check(self) -> None:
        """Refuse a path that lets go of such an object."""
        if self._told or self._containers:
            held = [(label, x) for label, container in self._containers for x in _items(container)]
            alive = self._alive()
            for label, x in (*self._told, *held):
                if id(x) not in alive:
                    refuse_lifetime(f"`{label}` is weakly referenced, and let go of: what happens then")

    def is_alive(self, x: Any) -> bool:
        """Whether the model surely holds an object now."""
        return id(x) in self._alive()

    def _alive(self) -> set[int]:
        found = reach(self._roots, is_library, code_of)
        return {*map(id, found.unopened), *(id(x) for _, x in found)}


def refuse_lifetime(what: str) -> None:
    """Refuse what depends on the lifetime of objects."""
    raise UnsupportedError(
        f"{what} depends on when Python gives an object up", current().origin(), "hold the object, and drop it by a flag"
    )


def _tells_user(reference: Any) -> bool:
    if isinstance(reference, weakref.ProxyTypes):
        return True
    told = reference.__callback__
    if isinstance(told, weakref.finalize):
        found = told.peek()
        told = found[1] if found is not None else None
    while isinstance(told, (types.MethodType, functools.partial)):
        told = told.__func__ if isinstance(told, types.MethodType) else told.func
    return told is not None and not (isinstance(told, types.FunctionType) and is_library(told))


def _items(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, weakref.WeakValueDictionary) else container)
