# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Containers that calls fill and that no call reads: nobody can tell what they hold, so it is left out.

While a model is staged something stands for such a container that takes items and keeps none; that of a ``defaultdict`` of containers gives
others of this kind (``log["loss"].append(...)``). Any other use of it is a read: staging then
begins anew with the container itself. So it is found in the runs of the whole program, on every path.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from dycl_tvm.frontend.python.calls.sealed import Sealed, sealed_kind
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.control_flow import Again
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars


class Unread:
    """The containers of a model that are taken for unread, until a use of one shows that it is not."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, tuple[Any, Any]] = {}
        self._read: dict[int, Any] = {}
        self._filled, self._tried = list[Any](), list[Any]()
        #: Where the program first writes to one, by what stands for it.
        self._places: dict[int, str] = {}

    @property
    def size(self) -> tuple[int, int]:
        """Differs with everything found."""
        return len(self._stand_ins), len(self._read)

    @property
    def containers(self) -> list[Any]:
        """The containers that nothing has read so far."""
        return [x for x, _ in self._stand_ins.values()]

    def place_of(self, x: Any) -> str:
        """Return where the program first writes to a container."""
        return self._places.get(id(self._stand_ins[id(x)][1]), "")

    def note_place(self, made: Any) -> None:
        """Note that the program writes, at the place at hand, to what stands for a container."""
        if id(made) not in self._places:
            self._places[id(made)] = f" at {current().origin()}"

    def note_filled(self, x: Any) -> None:
        """Note that the program writes to a container of the model."""
        if self._may_be(x):
            self._filled.append(x)

    def try_otherwise(self) -> bool:
        """Take other containers for unread in the next round, as the program was refused; whether there are others."""
        tried = [self.try_one(x) for x in self._filled]
        if any(tried):
            return True
        stood_for = self.containers
        for x in stood_for:
            self.forget(x)
        return bool(stood_for)

    def try_one(self, x: Any) -> bool:
        """Take a container that calls leave with other contents for unread in the next round; whether it may be."""
        if self._may_be(x):
            self._tried.append(x)
        return self._may_be(x)

    def begin_round(self) -> list[Any]:
        """Return the containers that are taken for unread from now on."""
        tried, self._tried, self._filled = self._tried, [], []
        for x in tried:
            if type(x) is collections.defaultdict and x:  # what it holds already may have other names
                self.forget(x)
        return list({id(x): x for x in tried if not self.is_read(x)}.values())

    def _may_be(self, x: Any) -> bool:
        known = type(x) in _WRITES and (type(x) is not collections.defaultdict or x.default_factory in _MADE)
        return known and id(x) not in self._read and id(x) not in self._stand_ins

    def stand_in(self, x: Any) -> Any:
        """Return what stands for a container from now on."""
        kind: Any = type(x)
        made = _kind_of(kind)(kind, lambda: self._note(x))
        if kind is collections.defaultdict:
            object.__setattr__(made, "_items", (x.default_factory, {}))
        self._stand_ins[id(x)] = (x, made)
        return made

    def is_read(self, x: Any) -> bool:
        """Whether an object is a container that was found to be read."""
        return id(x) in self._read

    def forget(self, x: Any) -> None:
        """Take a container for one that is read."""
        self._read[id(x)] = x
        self._stand_ins.pop(id(x), None)

    def doubt(self, error: Exception) -> None:
        """Begin anew with the containers themselves where compiled code has raised such an error: it may have looked for a real one."""
        if self._stand_ins and isinstance(error, (TypeError, SystemError)):
            for x in self.containers:
                self.forget(x)
            self._begin_anew()

    def _note(self, x: Any) -> None:
        self.forget(x)
        self._begin_anew()

    def _begin_anew(self) -> NoReturn:
        again = Again()
        program().trampolines.passing = again  # a handler may swallow it
        raise again


class _Method(OwnValue):
    """A method that writes; it does not lead to the container that it is of."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[..., object]) -> None:
        self._take = take

    def __call__(self, *given: Any, **named: Any) -> None:
        """Take one item, or a number of them."""
        self._take(*given, **named)


def _nothing(item: Any) -> None:
    """Take an item that may be of any kind."""


def _all(items: Any) -> None:
    collections.deque(items, maxlen=0)


def _insert(index: Any, item: Any) -> None:
    operator.index(index)


def _key(key: Any, item: Any) -> None:
    if not scalars.is_symbolic(key):  # a number has a hash, whichever it is
        hash(key)


def _keys(items: Any = (), **named: Any) -> None:
    dict(items)


def _note_written(self: Any) -> None:
    program().state.unread.note_place(self)


def _set_item(self: Any, key: Any, item: Any) -> None:
    _note_written(self)
    _key(key, item)


def _item(self: Any, key: Any) -> Any:
    """Return what stands for an item that a ``defaultdict`` makes: it is read if that is."""
    _note_written(self)
    used = object.__getattribute__(self, "_used")
    if scalars.is_symbolic(key):
        used()
    factory, items = object.__getattribute__(self, "_items")
    if key not in items:
        items[key] = _kind_of(factory)(factory, used)
    return items[key]


def _set_same_item(self: Any, key: Any, item: Any) -> None:
    """Take the item that is there already (``d[key] += ...``); others may have other names."""
    if item is not _item(self, key):
        object.__getattribute__(self, "_used")()


def _in_place(take: Callable[[Any], object]) -> Callable[[Any, Any], Any]:
    def method(self: Any, items: Any) -> Any:
        _note_written(self)
        take(items)
        return self

    return method


#: What only writes, by the class of the container.
_WRITES: dict[type, dict[str, Callable[..., object]]] = {
    list: {"append": _nothing, "extend": _all, "insert": _insert, "__iadd__": _all},
    collections.deque: {"append": _nothing, "appendleft": _nothing, "extend": _all, "extendleft": _all, "__iadd__": _all},
    set: {"add": hash, "update": set, "__ior__": set},
    dict: {"__setitem__": _key, "update": _keys, "__ior__": dict},
    collections.defaultdict: {"__getitem__": _nothing, "__setitem__": _nothing},
}


#: What a ``defaultdict`` may make.
_MADE = frozenset(_WRITES) - {collections.defaultdict}


def only_writes(obj: Any, method: str) -> bool:
    """Whether an object stands for a container that is taken for unread, and its special method only writes."""
    kind: Any = type(obj)
    return issubclass(kind, Sealed) and method in kind.written_by


_kinds: dict[type, Any] = {}


def _kind_of(kind: type) -> Any:
    """Return the class of what stands for containers of a class."""
    if kind not in _kinds:
        methods = {name: _in_place(take) if name.startswith("__i") else _Method(take) for name, take in _WRITES[kind].items()}
        slots = ("_items",) if kind is collections.defaultdict else ()
        special = {"__slots__": slots, "written_by": frozenset(methods), "note_written": _note_written}
        made: Any = type(f"unread {kind.__name__}", (sealed_kind(kind),), {**special, **methods})
        if kind is collections.defaultdict:
            made.__getitem__, made.__setitem__ = _item, _set_same_item
        elif "__setitem__" in methods:
            made.__setitem__ = _set_item
        _abstract[kind].register(made)  # `case [first, *rest]` asks
        _kinds[kind] = made
    return _kinds[kind]


_abstract: dict[type, Any] = {
    list: collections.abc.MutableSequence,
    collections.deque: collections.abc.MutableSequence,
    set: collections.abc.MutableSet,
    dict: collections.abc.MutableMapping,
    collections.defaultdict: collections.abc.MutableMapping,
}
