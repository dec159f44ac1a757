# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Putting what stands for an object while a model is staged where the object is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.compiled import is_python
from dycl_tvm.frontend.trace.heap.places import Contents, Place
from dycl_tvm.frontend.trace.heap.reach import places_in


class _Keys:
    """The keys of a dict, which are told apart by what they are: no place that a program's values are kept in."""

    def __init__(self, owner: dict[Any, Any]) -> None:
        self._contents = Contents(owner)
        self.read, self.write = self._contents.read, self._contents.write

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return tuple([v for _, v in contents]), [k for k, _ in contents]

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return tuple([(k, v) for k, (_, v) in zip(items, contents)])


class Twins:
    """Where twins stand, and in whose place."""

    def __init__(self) -> None:
        self._put: list[tuple[Place | _Keys, Any, Any]] = []

    def put(self, reachable: Iterable[Any], twins: dict[int, tuple[Any, Any]]) -> None:
        """Put twins wherever one of some objects holds what they stand for."""
        holders = [h for h in reachable if not (isinstance(h, type) and not is_python(h))]
        for holder in holders:
            check_replaceable(holder, twins)
        for holder in holders:
            places: list[Place | _Keys] = [*places_in(holder), *([_Keys(holder)] if type(holder) is dict else [])]
            for place in places:
                self._put += [(place, x, made) for x, made in replace_in(place, twins)]

    def put_back(self, wanted: Callable[[Any], bool]) -> None:
        """Put back the objects of which ``wanted`` says so."""
        put, self._put = self._put, []
        for place, x, made in reversed(put):
            if wanted(x):
                replace_in(place, {id(made): (made, x)})
            else:
                self._put.insert(0, (place, x, made))


def replace_in(place: Place | _Keys, twins: dict[int, tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Put the twins of objects where a place holds these, in tuples too; return what was replaced, and by what."""
    raw = place.read()
    items = place.flatten(raw)[1]
    made = [_twin_of(item, twins) for item in items]
    changed = [(old, new) for old, new in zip(items, made) if old is not new]
    if changed:
        place.write(place.unflatten(raw, made))
    return changed


def _twin_of(x: Any, twins: dict[int, tuple[Any, Any]]) -> Any:
    if id(x) in twins:
        return twins[id(x)][1]
    if type(x) is not tuple:
        return x
    made = tuple([_twin_of(item, twins) for item in x])
    return made if any(a is not b for a, b in zip(x, made)) else x


def check_replaceable(holder: Any, twins: dict[int, tuple[Any, Any]]) -> None:
    """Refuse an object that stands in what cannot be changed, or in a place of no order."""
    fixed = isinstance(holder, (set, frozenset, dict)) or (isinstance(holder, tuple) and type(holder) is not tuple)
    for x in holder if fixed else ():
        if id(x) in twins and not (type(holder) is dict and _is_told_by_identity(x)):
            raise UnsupportedError(
                f"a {type(holder).__name__} holds a {type(x).__name__}, whose state cannot be kept",
                None,
                "keep it in an attribute, a list or a tuple",
            )


def _is_told_by_identity(x: Any) -> bool:
    kind = type(x)
    return kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__
