# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The undo log of everything that the user's program changes while it is staged.

Both sides of a branch run on the same Python objects, one after the other. Before an object is changed, its contents are
saved here once per scope; :meth:`Journal.rollback` restores them in place, so that identity holds. The log also says
which places a side changed, which is what a join has to merge. The cost is that of the changes, not of the state.

A *place* is one of: the contents of a list, dict, set or deque; one attribute of an object; one closure cell; the
value of a tensor storage.
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any, Protocol

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()


class Place(Protocol):
    """Something that can be changed."""

    @property
    def owner(self) -> Any:
        """The object that is changed."""

    @property
    def key(self) -> Any:
        """Equal for equal places."""

    def read(self) -> Any:
        """Return the contents, as a value that later changes do not touch."""

    def write(self, contents: Any) -> None:
        """Set the contents."""


class Contents:
    """The contents of a list, dict, set or deque: a tuple of items (of pairs for a dict)."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @property
    def key(self) -> Any:
        return (id(self.owner),)

    def read(self) -> Any:
        if isinstance(self.owner, dict):
            return tuple(dict.items(self.owner))
        return tuple(list.__iter__(self.owner)) if isinstance(self.owner, list) else tuple(self.owner)

    def write(self, contents: Any) -> None:
        owner = self.owner  # the methods of the base classes: those of a user's subclass may do more
        if isinstance(owner, list):
            list.__setitem__(owner, slice(None), contents)
        elif isinstance(owner, deque):
            deque.clear(owner)
            deque.extend(owner, contents)
        elif isinstance(owner, dict):
            dict.clear(owner)
            dict.update(owner, contents)
        else:
            set.clear(owner)
            set.update(owner, contents)


class Attribute:
    """One attribute of an object, in its ``__dict__`` or slots."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    @property
    def key(self) -> Any:
        return (id(self.owner), self.name)

    def read(self) -> Any:
        space = getattr(self.owner, "__dict__", None)
        if space is not None and self.name in space:
            return space[self.name]
        if space is not None and not _is_slot(type(self.owner), self.name):
            return MISSING
        return getattr(self.owner, self.name, MISSING)

    def write(self, contents: Any) -> None:
        if isinstance(self.owner, type):
            if contents is MISSING:
                type.__delattr__(self.owner, self.name)
            else:
                type.__setattr__(self.owner, self.name, contents)
        elif _is_slot(type(self.owner), self.name) or not hasattr(self.owner, "__dict__"):
            if contents is MISSING:
                object.__delattr__(self.owner, self.name)
            else:
                object.__setattr__(self.owner, self.name, contents)
        elif contents is MISSING:
            self.owner.__dict__.pop(self.name, None)
        else:
            self.owner.__dict__[self.name] = contents


class Cell:
    """One closure cell."""

    __slots__ = ("owner",)

    def __init__(self, owner: types.CellType) -> None:
        self.owner = owner

    @property
    def key(self) -> Any:
        return (id(self.owner), "cell")

    def read(self) -> Any:
        try:
            return self.owner.cell_contents
        except ValueError:
            return MISSING

    def write(self, contents: Any) -> None:
        if contents is MISSING:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = contents


def _is_slot(cls: type, name: str) -> bool:
    return any(name == s or name in s for c in cls.__mro__ for s in [c.__dict__.get("__slots__", ())] if s)


MUTABLE = (list, dict, set, deque)


class Journal:
    """The undo log. Scopes nest: a branch side, a loop, a call."""

    def __init__(self) -> None:
        self._log: list[tuple[Place, Any]] = []
        self._seen: list[set[Any]] = [set()]
        self._marks = [0]
        #: How often something was about to be changed.
        self.touches = 0

    def touch(self, place: Place) -> None:
        """Save the contents of a place that is about to be changed."""
        self.touches += 1
        seen = self._seen[-1]
        key = place.key
        if key not in seen:
            seen.add(key)
            self._log.append((place, place.read()))

    def open(self) -> int:
        """Open a scope; return the mark to give to the other methods."""
        self._seen.append(set())
        self._marks.append(len(self._log))
        return len(self._log)

    def close(self) -> None:
        """Close the innermost scope; its changes stay and count to the scope around it."""
        inner = self._seen.pop()
        self._marks.pop()
        self._seen[-1] |= inner

    def depth(self) -> int:
        """Return how many scopes are open."""
        return len(self._seen)

    def close_to(self, depth: int) -> None:
        """Close scopes until ``depth`` are open."""
        while len(self._seen) > depth:
            self.close()

    def changes(self, mark: int) -> dict[Any, Place]:
        """Return the places changed since ``mark``, by key, in order of first change."""
        found: dict[Any, Place] = {}
        for place, _ in self._log[mark:]:
            found.setdefault(place.key, place)
        return found

    def before(self, mark: int) -> dict[Any, Any]:
        """Return what the places changed since ``mark`` held then, by key."""
        found: dict[Any, Any] = {}
        for place, contents in self._log[mark:]:
            found.setdefault(place.key, contents)
        return found

    def rollback(self, mark: int) -> None:
        """Undo all changes since ``mark``; the scopes stay as they are."""
        while len(self._log) > mark:
            place, contents = self._log.pop()
            place.write(contents)
        for seen, opened in zip(reversed(self._seen), reversed(self._marks)):
            if opened < mark:  # an exception may have left scopes open that began after the mark
                break
            seen.clear()
