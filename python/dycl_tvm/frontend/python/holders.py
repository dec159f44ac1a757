# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How many names of the model's have a container: one that a call leaves behind is a copy at the entry of the next."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dycl_tvm.frontend.trace.heap.places import Place, in_slots, space_of

#: What a container holds directly, by its class.
_CONTAINERS = (list, set, frozenset, deque)


class Holders:
    """Counts who holds an object among the objects that live on.

    Parameters
    ----------
    owners : mapping
        These objects, by identity.
    """

    def __init__(self, owners: Mapping[int, Any]) -> None:
        self._owners = owners
        self._known = 0
        self._first = Counter[int]()

    def count(self, changed: Iterable[tuple[Place, Any]]) -> tuple[Counter[int], Counter[int]]:
        """Return how many hold each object before the first call, and now; ``changed`` are places, and what they held then."""
        change = Counter[int]()
        for place, before in changed:
            change.update(_in(place.flatten(place.read())[1]))
            change.subtract(_in(place.flatten(before)[1]))
        if self._known != len(self._owners):
            self._known = len(self._owners)
            self._first = Counter(i for owner in list(self._owners.values()) for i in _in(_held_by(owner)))
            self._first.subtract(change)
        now = self._first.copy()
        now.update(change)
        return self._first, now


def _in(items: Iterable[Any]) -> Iterator[int]:
    """Yield which objects are among items, and in the tuples among these."""
    for x in items:
        yield id(x)
        if isinstance(x, tuple):
            yield from _in(x)


def _held_by(owner: Any) -> Iterable[Any]:
    if isinstance(owner, tuple):
        return ()  # what it holds is held by what holds it
    if isinstance(owner, dict):
        return dict.values(owner)
    if isinstance(owner, _CONTAINERS):
        return tuple(owner)
    if isinstance(owner, type):
        return vars(owner).values()
    if isinstance(owner, types.FunctionType):
        return owner.__defaults__ or ()
    if space_of(owner) is not None:  # which is one of the owners itself
        return [v for _, v in in_slots(owner)]
    return gc.get_referents(owner)
