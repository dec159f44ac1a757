# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Finding what code that is not known has changed: what it can reach is taken down before, and compared afterwards.

What differs goes into the journal with its old contents, as if it had been saved before the change. State that cannot be put back, or
cannot be seen at all, is reported: it must not be shared with a path that waits, nor live on between calls.
"""

from __future__ import annotations

import gc
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.compiled import is_unknown
from dycl_tvm.frontend.trace.heap.heap import Heap
from dycl_tvm.frontend.trace.heap.keys import Remembered, have_code
from dycl_tvm.frontend.trace.heap.places import MISSING, Contents, Place, attribute_of, space_of
from dycl_tvm.frontend.trace.heap.reach import Reached, Step, has_attributes_only, places_in
from dycl_tvm.frontend.trace.heap.visible import Hidden, Seen, bytes_of
from dycl_tvm.frontend.trace.unrecorded import plainly

#: A call of code that is not known may reach no more objects than this.
LIMIT = 1 << 17
#: Tensors of more elements are not compared byte by byte.
SMALL = 4096
_MADE_ANEW = (tuple, Remembered)
#: Objects of these classes have no places; what small tensors hold is compared apart.
_WITHOUT_PLACES = frozenset([tuple, torch.Tensor, torch.nn.Parameter])


class Snapshot:
    """What can be reached from some objects, as it is now.

    Parameters
    ----------
    reached : Reached
        The objects.
    with_data : bool
        Whether what small tensors hold is taken down too.
    """

    def __init__(self, reached: Reached, with_data: bool = False) -> None:
        self._empty, self._empty_labels = reached.empty, reached.empty_labels
        #: Containers, their labels, and what they held: by far most of what there is, so no object is made for each but the last.
        self._containers: list[Any] = []
        self._labels: list[str] = []
        self._held: list[tuple[Any, ...]] = []
        self._known = set[int]()
        self._before: dict[Any, tuple[str, Place, Any]] = {}
        self._tensors: list[Step] = []
        self.owners: dict[int, Any] = {}
        for label, x in reached.steps:
            kind: Any = type(x)
            if kind is dict or kind is list:
                self._add_container(label, x)
                continue
            if kind in _WITHOUT_PLACES:
                if with_data and kind is not tuple:
                    self._tensors.append((label, x))
                continue
            if has_attributes_only(kind):
                space = x.__dict__
                self.owners[id(space)] = x
                self._add_container(label, space)
                continue
            if not isinstance(x, (type, types.ModuleType)):
                space = space_of(x)
                if type(space) is dict:
                    self.owners[id(space)] = x
            for place in places_in(x):
                if type(place) is Contents:
                    self._add_container(label, place.owner)
                elif place.key not in self._before:
                    self._before[place.key] = (label, place, place.read())
        self._data = _data_of(self._tensors)

    def _add_container(self, label: str, x: Any) -> None:
        if id(x) not in self._known:
            self._known.add(id(x))
            self._containers.append(x)
            self._labels.append(label)
            self._held.append(_held_by(x))

    def add_place(self, place: Place) -> None:
        """Take down a place that no object holds."""
        self._before[place.key] = (place.text, place, place.read())

    def changes(self) -> Iterator[tuple[str, Place, Any, Any]]:
        """Yield the places that hold something else now: name, place, what it held and what it holds."""
        for label, x in zip(self._empty_labels, self._empty):
            if x or (type(x) is OrderedDict and gc.get_referents(x)):
                for place in places_in(x):
                    now = place.read()
                    if now:
                        yield label, place, (), now
        for label, x, held in zip(self._labels, self._containers, self._held):
            holds = _held_by(x)
            if len(held) != len(holds) or not all(map(operator.is_, held, holds)):
                half = len(held) // 2
                pairs = isinstance(x, dict) and not isinstance(held, Remembered)
                before = tuple(zip(held[:half], held[half:])) if pairs else held
                contents = Contents(x)
                now = contents.read()
                if not same_contents(before, now):
                    yield label, contents, before, now
        for label, place, before in self._before.values():
            now = place.read()
            if not same_contents(before, now):
                yield label, place, before, now

    def written(self) -> list[str]:
        """Return the names of the small tensors that hold something else now."""
        return [label for (label, _), data, now in zip(self._tensors, self._data, _data_of(self._tensors)) if now != data]


class Watch:
    """What a call can reach.

    Parameters
    ----------
    heap : Heap
    snapshot : Snapshot
        Of the callee and its arguments.
    """

    def __init__(self, heap: Heap, snapshot: Snapshot) -> None:
        self._heap, self._snapshot = heap, snapshot

    def settle(self, changed: Callable[[Place], None], lost: Callable[[Place], None]) -> None:
        """Note what was changed; ``changed`` is called for what has surely changed, ``lost`` for what cannot be put back."""
        owners = self._snapshot.owners
        for _, place, before, now in self._snapshot.changes():
            if not isinstance(now, Seen) or now.tells or is_unknown(place.owner):
                changed(place)
            if isinstance(place, Hidden):
                if place.can_restore(before, now):
                    self._heap.journal.note(place, before)
                else:
                    lost(place)
            elif isinstance(place, Contents) and id(place.owner) in owners:
                self._note_attributes(owners[id(place.owner)], dict(before), dict(now))
            else:
                self._heap.journal.note(place, before)

    def _note_attributes(self, owner: Any, before: dict[str, Any], now: dict[str, Any]) -> None:
        for name in before.keys() | now.keys():
            old = before.get(name, MISSING)
            if old is not now.get(name, MISSING):
                self._heap.journal.note(attribute_of(owner, name), old)


def _held_by(x: Any) -> tuple[Any, ...]:
    """Return what a container holds in one tuple: a dict's keys, and then its values; the contents of one whose keys have code."""
    if isinstance(x, dict) and have_code(dict.__iter__(x)):
        remembered: tuple[Any, ...] = Contents(x).read()
        return remembered
    if isinstance(x, OrderedDict):
        return (*OrderedDict.keys(x), *OrderedDict.values(x))
    if isinstance(x, dict):
        return (*dict.keys(x), *dict.values(x))
    held: tuple[Any, ...] = Contents(x).read()
    return held


def _data_of(tensors: list[Step]) -> list[bytes]:
    """Return what tensors hold, if they are small."""
    with plainly():
        return [bytes_of(t) if t.numel() <= SMALL and t.layout == torch.strided else b"" for _, t in tensors]


def same_contents(a: Any, b: Any) -> bool:
    """Whether contents are the same objects: pairs and tuples are made anew by every reading."""
    if a is b:
        return True
    if type(a) in _MADE_ANEW and type(b) in _MADE_ANEW:
        return len(a) == len(b) and all(map(same_contents, a, b))
    return isinstance(a, (bytes, str, int, Seen)) and type(a) is type(b) and a == b
