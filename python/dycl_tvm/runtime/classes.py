# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects of the user's own classes among the results of an artefact.

A structure names the class. A class is looked for among those that the host's program gives, then in the modules that are loaded already;
nothing is imported, and no code of the class is run but ``__new__`` of a tuple. Where it is not found, a class made here takes its place:
it has the same name, fields, items and attributes, and what its base class of Python's can do.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

from dycl_tvm.errors import UsageError

#: The name under which the devices of PyTorch are found.
DEVICE = "torch:device"


def full_name(cls: type) -> str:
    """Return the module and the name of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def name_of(cls: type) -> str | None:
    """Return the name under which a class can be found again; None if there is none."""
    name = full_name(cls)
    return name if LOADED.find(name) is cls else None


def base_of(cls: type) -> Any:
    """Return the class of Python's own that a container is of."""
    return next(c for c in cls.__mro__ if c.__module__ in ("builtins", "collections"))


class Classes:
    """Where the classes of results are looked for.

    Parameters
    ----------
    given : iterable of type
        Classes of the host's program, in any module. They come before those of the modules that are loaded.
    """

    def __init__(self, given: Iterable[type] = ()) -> None:
        self.given = tuple(given)
        self._given: dict[str, type] = {}
        for cls in self.given:
            if not isinstance(cls, type):
                raise UsageError(f"classes: {cls!r} is not a class")
            self._given[full_name(cls)] = cls
            if self._given.setdefault(cls.__name__, cls) is not cls:
                raise UsageError(f"classes: two are named {cls.__name__}")

    def find(self, name: str) -> type | None:
        """Return the class of a name, if it was given or its module is loaded."""
        found = self._named(name)
        return found if isinstance(found, type) else None

    def constant(self, name: str, text: str) -> Any:
        """Return the class, member of an enum, dtype or device of a name; its text, if its module is not loaded."""
        found = self._named(name)
        if found is None:
            return text
        return found(text) if name == DEVICE else found

    def _named(self, name: str) -> Any:
        module, _, path = name.partition(":")
        parts = path.split(".")
        for given in (name, parts[-1]):
            if given in self._given:
                return self._given[given]
        found: Any = sys.modules.get(module)
        for part in parts:
            found = getattr(found, part, None)
        return found


#: Finds the classes of modules that are loaded.
LOADED = Classes()


def make_items(cls: type | None, name: str, base: Any, items: Sequence[Any], length: int | None = None) -> Any:
    """Return a tuple, a list, a set or a deque (of that length at most) of a class."""
    if cls is None or not issubclass(cls, base):
        cls = _look_alike(name, base)
    if base is tuple:
        try:
            return tuple.__new__(cls, items)
        except TypeError:  # those of C make themselves: shapes
            return cls(items)
    if base is frozenset:
        return frozenset.__new__(cls, items)
    made = base.__new__(cls)
    if base is set:
        set.update(made, items)
    elif base is collections.deque:
        collections.deque.__init__(made, items, length)
    else:
        list.extend(made, items)
    return made


def make_dict(cls: type | None, name: str, base: Any, pairs: Sequence[tuple[Any, Any]], factory: type | None = None) -> Any:
    """Return a dict of a class; ``factory`` makes what is missing of a ``defaultdict``."""
    if cls is None or not issubclass(cls, base):
        cls = _look_alike(name, base)
    made = base.__new__(cls)
    if base is collections.defaultdict:
        collections.defaultdict.__init__(made, factory)
    _fill(made, base, pairs)
    return made


def make_record(
    cls: type | None, name: str, fields: tuple[str, ...], items: Sequence[Any], keys: Sequence[str] | None, base: type = object
) -> Any:
    """Return a named tuple, or a dataclass (``keys`` is given), whose ``base`` may be a dict; these of its fields are its items then."""
    if keys is None:
        if cls is None or not issubclass(cls, tuple) or fields_of(cls) != fields:
            cls = _named_tuple(name, fields)
        return make_items(cls, name, tuple, items)
    if (
        cls is None
        or not dataclasses.is_dataclass(cls)
        or tuple(f.name for f in dataclasses.fields(cls)) != fields
        or not issubclass(cls, base)
    ):
        cls = _record(name, fields, base)
    made = base_of(cls).__new__(cls)
    values = dict(zip(fields, items))
    set_attributes(made, list(values.items()))
    if base is not object:
        _fill(made, base, [(k, values[k]) for k in keys])
    return made


def make_object(cls: type | None, name: str) -> Any:
    """Return an object of a class written in Python, without attributes yet."""
    return object.__new__(cls if cls is not None and cls.__new__ is object.__new__ else _look_alike(name, object))


def fields_of(cls: type) -> tuple[str, ...] | None:
    """Return the names of the items of a class of tuples, also of one of C (what ``torch.max(x, 1)`` gives); None if they have none."""
    named = getattr(cls, "_fields", None) or (getattr(cls, "__match_args__", None) if hasattr(cls, "n_sequence_fields") else None)
    return None if named is None else tuple(named)


def set_attributes(made: Any, attributes: Sequence[tuple[str, Any]]) -> None:
    """Set attributes, past what the class does of its own then; what has none stays as it is."""
    if hasattr(made, "__dict__") or dataclasses.is_dataclass(made):
        for name, value in attributes:
            object.__setattr__(made, name, value)


def _fill(made: Any, base: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    for key, value in pairs:
        base.__setitem__(made, key, value)


class _Fields(collections.OrderedDict[str, Any]):
    """Stands for a dataclass that is a dict too, such as the outputs of transformers: a field that is None is an attribute and no item."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            super().__setitem__(name, value)
        object.__setattr__(self, name, value)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the items without their names."""
        return tuple(self.values())


@functools.cache
def _look_alike(name: str, base: type) -> Any:
    return type(name, (base,), {})


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return type(name, (collections.namedtuple(name, fields),), {})  # type: ignore[misc]  # the fields are known at run time only


@functools.cache
def _record(name: str, fields: tuple[str, ...], base: type) -> Any:
    return cast(Any, dataclasses.make_dataclass(name, fields, bases=() if base is object else (_Fields,)))
