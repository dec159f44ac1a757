# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Places: everything that a program can change, behind one interface.

A place is named by the memory that it is, not by the way there: ``o.h`` and ``o.__dict__["h"]`` are one place. Its contents are
flattened into a *structure* (what has to be equal on all paths) and *items* (Python values, which are joined one by one), and
made again from these; so joins, loops and the state between calls know no kind of place by name.
"""

from __future__ import annotations

import contextlib
import functools
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.keys import Itself, Remembered, fields_of, has_code, have_code, put_back, remember

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()

#: Containers whose contents are places.
MUTABLE = (list, dict, set, deque)
#: Objects whose bytes are places.
BUFFERS = (bytearray, np.ndarray)


class Place(ABC):
    """Something that can be changed. A kind without one of these methods cannot be made."""

    __slots__ = ()
    #: Whether any object can be put here. Where it cannot, paths that leave values which cannot be one part.
    holds_anything = True

    @property
    @abstractmethod
    def owner(self) -> Any:
        """The object that is changed."""

    @property
    @abstractmethod
    def key(self) -> Any:
        """Equal for equal places."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What the place is called in messages."""

    @abstractmethod
    def read(self) -> Any:
        """Return the contents, as a value that later changes do not touch."""

    @abstractmethod
    def write(self, contents: Any) -> None:
        """Set the contents."""

    @abstractmethod
    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        """Return the structure of contents, and the values in it."""

    @abstractmethod
    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        """Return contents of the same structure with other values."""

    def labels(self, contents: Any) -> Sequence[str]:
        """Return how each value is written after the name of the place."""
        return [f"[{i}]" for i in range(len(self.flatten(contents)[1]))]


class Indivisible(Place):
    """A place without values that can be joined one by one: paths that leave other contents there part."""

    __slots__ = ()

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return contents, ()

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return contents


class Owned(Place):
    """A place that is all of an object, or all of one kind in it."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    @property
    def owner(self) -> Any:
        return self._owner

    @property
    def text(self) -> str:
        return f"a {type(self._owner).__name__}"


class Contents(Owned):
    """The contents of a list, dict, set or deque: a tuple of items (of pairs for a dict)."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return (id(self._owner),)

    def read(self) -> Any:
        owner = self._owner  # the methods of the base classes: those of a user's subclass may do more
        if isinstance(owner, dict):
            # an OrderedDict has an order of its own, which is not that of the dict below
            pairs = tuple(OrderedDict.items(owner) if isinstance(owner, OrderedDict) else dict.items(owner))
            return remember(pairs, owner) if have_code(dict.__iter__(owner)) else pairs
        if isinstance(owner, set):
            keys = tuple(set.__iter__(owner))
            return remember(keys, owner) if have_code(keys) else keys
        return tuple((list if isinstance(owner, list) else deque).__iter__(owner))

    def write(self, contents: Any) -> None:
        owner = self._owner
        if isinstance(owner, list):
            list.__setitem__(owner, slice(None), contents)
        elif isinstance(owner, deque):
            deque.clear(owner)
            deque.extend(owner, contents)
        elif isinstance(contents, Remembered):
            put_back(contents, owner)
        elif isinstance(owner, OrderedDict):
            OrderedDict.clear(owner)
            for k, v in contents:
                OrderedDict.__setitem__(owner, k, v)
        elif isinstance(owner, dict):
            dict.clear(owner)
            dict.update(owner, contents)
        else:
            set.clear(owner)
            set.update(owner, contents)

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        if isinstance(self._owner, dict):
            return tuple([exact(k) for k, _ in contents]), [v for _, v in contents]
        if isinstance(self._owner, set):
            return frozenset([exact(k) for k in contents]), ()
        return len(contents), contents

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        if isinstance(contents, Remembered):
            return contents.with_values(items) if isinstance(self._owner, dict) else contents
        if isinstance(self._owner, dict):
            return tuple([(k, item) for (k, _), item in zip(contents, items)])
        return contents if isinstance(self._owner, set) else tuple(items)

    def labels(self, contents: Any) -> Sequence[str]:
        return [f"[{k!r}]" for k, _ in contents] if isinstance(self._owner, dict) else super().labels(contents)


class One(Place):
    """A place that holds one value, or none."""

    __slots__ = ()

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return (), (contents,)

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return items[0]

    def labels(self, contents: Any) -> Sequence[str]:
        return ("",)


class Attribute(One):
    """One attribute of an object: in its ``__dict__``, in a slot, or on a class; or a global variable of a module."""

    __slots__ = ("_owner", "_space", "name")

    def __init__(self, owner: Any, name: str, space: dict[str, Any] | None) -> None:
        self._owner, self.name, self._space = owner, name, space

    @property
    def owner(self) -> Any:
        return self._owner

    @property
    def key(self) -> Any:
        return (id(self._owner if self._space is None else self._space), self.name)

    @property
    def text(self) -> str:
        return f"`{self.name}`"

    @property
    def holds_anything(self) -> bool:  # type: ignore[override]  # compiled code says what it takes for an attribute of its own
        if self._space is not None:
            return True
        kind: Any = type(self._owner)
        base: Any = next((vars(c) for c in kind.__mro__ if self.name in vars(c)), {})
        return self.name in base and "__slots__" in base if not isinstance(self._owner, type) else not base

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return (MISSING, ()) if self._is_not_there(contents) else super().flatten(contents)

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return MISSING if self._is_not_there(contents) else super().unflatten(contents, items)

    def labels(self, contents: Any) -> Sequence[str]:
        return () if self._is_not_there(contents) else super().labels(contents)

    def _is_not_there(self, contents: Any) -> bool:
        """Whether the attribute is missing from an object whose attributes compiled code compares: that cannot be left open."""
        return contents is MISSING and isinstance(self._owner, types.SimpleNamespace)

    def read(self) -> Any:
        if self._space is not None:
            return self._space.get(self.name, MISSING)
        if isinstance(self._owner, type) and self.name not in vars(type):
            return vars(self._owner).get(self.name, MISSING)
        kind: Any = type(self._owner)
        slot = slots_of(kind).get(self.name)
        try:
            return getattr(self._owner, self.name, MISSING) if slot is None else slot.__get__(self._owner)
        except AttributeError:
            return MISSING

    def write(self, contents: Any) -> None:
        if self._space is not None:
            if contents is MISSING:
                self._space.pop(self.name, None)
            else:
                self._space[self.name] = contents
            return
        kind: Any = type(self._owner)
        put, drop = _setters(kind)
        if contents is not MISSING:
            if self.read() is not contents:
                put(self._owner, self.name, contents)
        elif self.read() is not MISSING:
            drop(self._owner, self.name)


@functools.cache
def _setters(cls: Any) -> tuple[Any, Any]:
    """Return what stores, and what deletes, an attribute of objects of a class, past the methods of the user's."""
    base = next(c for c in cls.__mro__ if isinstance(vars(c).get("__setattr__"), types.WrapperDescriptorType))
    return base.__setattr__, base.__delattr__


class Cell(One):
    """One closure cell: a variable of an outer function."""

    __slots__ = ("_owner", "name")

    def __init__(self, owner: types.CellType, name: str = "a variable of an outer function") -> None:
        self._owner, self.name = owner, name

    @property
    def owner(self) -> Any:
        return self._owner

    @property
    def key(self) -> Any:
        return (id(self._owner), "cell")

    @property
    def text(self) -> str:
        return f"`{self.name}`"

    def read(self) -> Any:
        try:
            return self._owner.cell_contents
        except ValueError:
            return MISSING

    def write(self, contents: Any) -> None:
        if contents is not MISSING:
            self._owner.cell_contents = contents
        elif self.read() is not MISSING:
            del self._owner.cell_contents


class Bytes(Indivisible, Owned):
    """The bytes of an array, with its shape and dtype. Paths that leave other bytes part."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return (id(self._owner), "bytes")

    def read(self) -> Any:
        if isinstance(self._owner, np.ndarray):
            plain = np.ndarray.view(self._owner, np.ndarray)  # a subclass may have methods of its own
            items = tuple(plain.ravel().tolist()) if plain.dtype.hasobject else plain.tobytes()
            return (plain.shape, plain.strides, plain.dtype, items)
        return bytes(self._owner)

    def write(self, contents: Any) -> None:
        if isinstance(self._owner, bytearray):
            self._owner[:] = contents
            return
        shape, strides, dtype, items = contents
        owner = self._owner
        if owner.dtype != dtype:
            owner.dtype = dtype
        if (owner.shape, owner.strides) != (shape, strides):
            owner.shape = shape
        plain = np.ndarray.view(owner, np.ndarray)
        if dtype.hasobject:
            plain.flat[:] = items
        elif plain.tobytes() != items:
            writeable = owner.flags.writeable
            if not writeable:
                try:
                    owner.flags.writeable = True
                except ValueError:
                    raise UnsupportedError(
                        "an array that cannot be written was changed", None, "change the array that it is a part of"
                    ) from None
            np.ndarray.view(owner, np.ndarray)[...] = np.frombuffer(items, dtype).reshape(shape)
            if not writeable:
                owner.flags.writeable = False


def space_of(x: Any) -> dict[str, Any] | None:
    """Return the ``__dict__`` of an object, if it has one. No code of the program runs."""
    try:
        space = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return space if isinstance(space, dict) else None


@functools.cache
def slots_of(cls: Any) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of a class and its bases, by their names: a property of a class may hide what its base keeps in a slot."""
    spaces = [vars(base) for base in reversed(cls.__mro__) if "__slots__" in vars(base)]
    found = {k: v for space in spaces for k, v in space.items() if isinstance(v, types.MemberDescriptorType)}
    return {k: v for k, v in found.items() if k not in ("__dict__", "__weakref__")}


def in_slots(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds in slots, with their names. No code of the program runs."""
    kind: Any = type(x)
    for name, slot in slots_of(kind).items():
        with contextlib.suppress(AttributeError):  # nothing was stored there
            yield name, slot.__get__(x)


def attribute_of(owner: Any, name: str) -> Attribute:
    """Return the place of an attribute; of a global variable, if ``owner`` is the dict that holds a module's."""
    return Attribute(owner, name, owner if type(owner) is dict else namespace_of(owner, name))


def namespace_of(owner: Any, name: str) -> dict[str, Any] | None:
    """Return the dict that an attribute of an object lies in; None if it lies in a slot, or on a class."""
    if isinstance(owner, type):
        return None
    for base in type(owner).__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                return None
            break
    return space_of(owner)


def exact(key: Any) -> Any:
    """Return what is equal for two keys exactly if they are the same to every program: 1, 1.0 and True are not.

    No code of the program's is asked: what that calls equal may differ in all else.
    """
    if isinstance(key, (tuple, frozenset)):
        parts = map(exact, key)
        return (type(key), frozenset(parts)) if isinstance(key, frozenset) else (type(key), *parts)
    if type(key) in (float, complex):
        return (type(key), repr(key))
    if has_code(key):
        fields = fields_of(key)
        return Itself(key) if fields is None else (type(key), *map(exact, fields))
    return (type(key), key)
