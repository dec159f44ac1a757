# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects of the user's own classes among the results of an artefact.

A structure names the class. A class is looked for among the modules that are loaded already; nothing is imported, and no code of the
class is run but ``__new__`` of a tuple. Where it is not found, a look-alike takes its place: a named tuple, or a plain container.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Sequence
from typing import Any

#: The name under which the devices of PyTorch are found.
DEVICE = "torch:device"


def name_of(cls: type) -> str | None:
    """Return the name under which a class can be found again; None if there is none."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if find(name) is cls else None


def find(name: str) -> type | None:
    """Return the class of a name, if its module is loaded."""
    found = _named(name)
    return found if isinstance(found, type) else None


def find_constant(name: str, text: str) -> Any:
    """Return the class, member of an enum, dtype or device of a name; its text, if its module is not loaded."""
    found = _named(name)
    if found is None:
        return text
    return found(text) if name == DEVICE else found


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def make_tuple(cls: type | None, items: Sequence[Any]) -> Any:
    """Return a tuple of a class."""
    if cls is None or not issubclass(cls, tuple):
        return tuple(items)
    try:
        return tuple.__new__(cls, items)
    except TypeError:  # those of C make themselves: shapes, and what torch.max() returns
        return cls(items)  # type: ignore[call-arg]


def make_list(cls: type | None, items: Sequence[Any]) -> Any:
    """Return a list of a class."""
    if cls is None or not issubclass(cls, list):
        return list(items)
    made = list.__new__(cls)
    list.extend(made, items)
    return made


def make_dict(cls: type | None, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return a dict of a class."""
    if cls is None or not issubclass(cls, dict):
        return dict(pairs)
    made = cls.__new__(cls)
    _fill(made, pairs)
    return made


def make_record(cls: type | None, name: str, fields: tuple[str, ...], items: Sequence[Any], keys: Sequence[str] = ()) -> Any:
    """Return a named tuple or a dataclass, the latter perhaps a dict of some of its fields too."""
    if cls is not None and issubclass(cls, tuple) and getattr(cls, "_fields", None) == fields:
        return tuple.__new__(cls, items)
    if cls is not None and dataclasses.is_dataclass(cls) and tuple(f.name for f in dataclasses.fields(cls)) == fields:
        made = cls.__new__(cls)
        values = dict(zip(fields, items))
        set_attributes(made, list(values.items()))
        if isinstance(made, dict):
            _fill(made, [(k, values[k]) for k in keys])
        return made
    return _look_alike(name, fields)(*items)


def make_object(cls: type | None, name: str) -> Any:
    """Return an object of a class written in Python, without attributes yet."""
    if cls is not None and cls.__new__ is object.__new__:
        return object.__new__(cls)
    return type(name, (types.SimpleNamespace,), {})()


def set_attributes(made: Any, attributes: Sequence[tuple[str, Any]]) -> None:
    """Set attributes, past what the class does of its own then; a look-alike has none."""
    if hasattr(made, "__dict__") or dataclasses.is_dataclass(made):
        for name, value in attributes:
            object.__setattr__(made, name, value)


def _fill(made: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    base: Any = collections.OrderedDict if isinstance(made, collections.OrderedDict) else dict
    for key, value in pairs:
        base.__setitem__(made, key, value)


@functools.cache
def _look_alike(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)  # type: ignore[misc]  # the fields are known at run time only
