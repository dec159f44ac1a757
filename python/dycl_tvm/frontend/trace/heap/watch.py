# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Finding what code that is not known has changed: what it can reach is taken down before, and compared afterwards.

What differs goes into the journal with its old contents, as if it had been saved before the change. State that cannot be put back, or
cannot be seen at all, is reported: it must not be shared with a path that waits, nor live on between calls.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.heap import Heap
from dycl_tvm.frontend.trace.heap.places import MISSING, Contents, Place, attribute_of
from dycl_tvm.frontend.trace.heap.reach import Step, places_in, reach
from dycl_tvm.frontend.trace.heap.visible import Hidden, Seen

#: A call that reaches more objects than this is compared no further.
LIMIT = 1 << 17
#: Tensors of more elements are not compared byte by byte.
SMALL = 4096


class Snapshot:
    """What can be reached from some objects, as it is now.

    Parameters
    ----------
    roots : list of (label, object)
    is_library : callable
        What belongs to Python or a library, and is no state of the program.
    with_data : bool
        Whether what small tensors hold is taken down too.
    """

    def __init__(
        self, roots: list[Step], is_library: Callable[[Any], bool], code_of: Callable[[Any], Any], with_data: bool = False
    ) -> None:
        self._code_of = code_of
        self._is_library = is_library
        self._before: dict[Any, tuple[str, Place, Any]] = {}
        self._with_data = with_data
        self._data: dict[int, tuple[str, torch.Tensor, bytes]] = {}
        self.owners: dict[int, Any] = {}
        self.add(roots)

    def add(self, roots: list[Step]) -> None:
        """Take down what more roots reach."""
        for label, x in reach(roots, self._is_library, self._code_of, LIMIT):
            if not isinstance(x, (type, types.ModuleType)):
                space = getattr(x, "__dict__", None)
                if type(space) is dict:
                    self.owners[id(space)] = x
            if type(x) in (torch.Tensor, torch.nn.Parameter):
                if id(x) not in self._data:
                    self._data[id(x)] = (label, x, _data_of(x) if self._with_data else b"")
            for place in places_in(x):
                if place.key not in self._before:
                    self._before[place.key] = (label, place, place.read())

    def add_place(self, place: Place) -> None:
        """Take down a place that no object holds."""
        self._before[place.key] = (place.text, place, place.read())

    def changes(self) -> Iterator[tuple[str, Place, Any, Any]]:
        """Yield the places that hold something else now: name, place, what it held and what it holds."""
        for label, place, before in self._before.values():
            now = place.read()
            if not _same(before, now):
                yield label, place, before, now

    def written(self) -> list[str]:
        """Return the names of the small tensors that hold something else now."""
        return [label for label, t, data in self._data.values() if _data_of(t) != data]


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

    def settle(self, lost: Callable[[Place], None]) -> None:
        """Note what was changed; ``lost`` is called for what cannot be put back."""
        owners = self._snapshot.owners
        for _, place, before, now in self._snapshot.changes():
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


def _data_of(t: torch.Tensor) -> bytes:
    """Return what a tensor holds, if it is small."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
        if t.numel() > SMALL or t.layout != torch.strided or t.device.type == "meta":
            return b""
        return bytes(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if t.numel() else b""


def _same(a: Any, b: Any) -> bool:
    """Whether contents are the same objects: pairs and tuples are made anew by every reading."""
    if a is b:
        return True
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, (bytes, str, int, Seen)) and type(a) is type(b) and a == b
