# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The objects of the program that is staged: when they were made, and what must be saved before they are changed."""

from __future__ import annotations

import array
import io
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import Dated, OwnValue, clock
from dycl_tvm.frontend.trace.decisions import Decision, Decisions
from dycl_tvm.frontend.trace.heap.journal import Journal
from dycl_tvm.frontend.trace.heap.places import BUFFERS, MISSING, MUTABLE, Bytes, Cell, Contents, attribute_of, space_of

#: Objects whose contents are not saved before a change.
_UNSAVED = (array.array, io.IOBase)


class Heap:
    """What the program at hand may change, and how that is taken back."""

    def __init__(self, decisions: Decisions, origin: Callable[[], Any]) -> None:
        self._origin = origin
        self.journal = Journal()
        self._decisions = decisions
        self._births: dict[int, tuple[Any, int]] = {}
        #: Containers that two names share on one path only, by identity: the decision at which the paths parted.
        self.guarded: dict[int, Any] = {}
        self._generators: dict[int, tuple[Any, types.FunctionType]] = {}
        self._namespaces: dict[int, tuple[dict[str, Any], Any]] = {}
        self._lent: dict[int, Any] = {}
        #: What may be undone around the place at hand: (moment of its beginning, decision, or the loop that may yet be rolled).
        self.undoable: list[tuple[int, Any]] = []
        #: Where the journal and the clock stood at the beginning of the run at hand.
        self.run_mark = self.run_started = 0

    def begin_run(self) -> None:
        """Forget what belongs to the run before."""
        self.undoable = []
        self.guarded.clear()
        self._namespaces.clear()
        self._generators.clear()
        self._lent.clear()

    def born(self, x: Any) -> Any:
        """Note that an object is made now."""
        self._births[id(x)] = (x, next(clock))
        return x

    def birth(self, x: Any) -> int:
        """Return when an object was made; 0 if that is not known."""
        if isinstance(x, Dated):
            return x.born
        known = self._births.get(id(x))
        return known[1] if known is not None and known[0] is x else 0

    def is_newer(self, x: Any, moment: int) -> bool:
        """Whether an object is known to have been made after a moment."""
        return self.birth(x) > moment

    def is_held_by_newer(self, x: Any, moment: int) -> bool:
        """Whether an object that was made after a moment holds ``x`` in its attributes, or as one of its items."""
        for holder, born in self._births.values():
            if born > moment and holder is not x:
                items = holder.values() if issubclass(type(holder), dict) else holder if issubclass(type(holder), (list, deque)) else ()
                if any(item is x for item in (*items, *(space_of(holder) or {}).values())):
                    return True
        return False

    def changing(self, x: Any) -> None:
        """Save the contents of a container that is about to be changed."""
        known = self._namespaces.get(id(x)) if type(x) is dict else None
        if known is not None and known[0] is x:
            self._changing_namespace(*known)
        elif isinstance(x, MUTABLE):
            if isinstance(x, OwnValue):
                len(x)  # what stands for a container is told that it is used
            decision = self.guarded.get(id(x))
            if decision is not None:
                self._decisions.fork(decision, f"a {type(x).__name__} that two variables share on one path only is changed")
            self.journal.touch(Contents(x))
        elif isinstance(x, BUFFERS) and not isinstance(x, OwnValue):
            self.check_lent(x)
            self.journal.touch(Bytes(x))
            if isinstance(x, np.ndarray) and not x.flags.owndata:
                if not isinstance(x.base, (*BUFFERS, memoryview)):
                    raise UnsupportedError(
                        "an array is changed that lies in the memory of another object", self._origin(), "copy it: a.copy()"
                    )
                self.changing(x.base)  # whose memory it is
        elif isinstance(x, memoryview):
            self.changing(x.obj)
        elif isinstance(x, _UNSAVED):
            self.check_undoable(x, f"a {type(x).__name__} made before a branch is changed in it")

    def lend(self, x: Any) -> None:
        """Note that a tensor of staging's was made of an object's memory, or the other way: neither may be changed any more."""
        self._lent[id(x)] = x

    def check_lent(self, x: Any) -> None:
        """Refuse a change of memory that a tensor and another object share."""
        if id(x) in self._lent:
            raise UnsupportedError(
                "memory is changed that a tensor shares with an array or a buffer", self._origin(), "copy it: torch.tensor(a), t.tolist()"
            )

    def changing_cells(self, function: types.FunctionType) -> None:
        """Save all variables that a function closes over."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self.journal.touch(Cell(cell, name))

    def born_generator(self, generator: Any, function: types.FunctionType) -> Any:
        """Note that a generator is made now, and by which function."""
        self._generators[id(generator)] = (generator, function)
        return self.born(generator)

    def cells_of(self, generator: Any) -> list[types.FunctionType]:
        """Return the function that made a generator: its cells may change whenever the generator goes on."""
        known = self._generators.get(id(generator))
        return [known[1]] if known is not None and known[0] is generator else []

    def is_namespace(self, space: dict[str, Any], owner: Any) -> dict[str, Any]:
        """Note that a dict holds the attributes of an object, or the globals of a module: its items are these."""
        self._namespaces[id(space)] = (space, owner)
        return space

    def changing_item(self, x: Any, key: Any) -> None:
        """Save one item of a container that is about to be changed."""
        known = self._namespaces.get(id(x))
        if known is not None and known[0] is x and type(key) is str:
            self.changing_attribute(known[1], key)
        else:
            self.changing(x)

    def _changing_namespace(self, space: dict[str, Any], owner: Any) -> None:
        """Save all attributes of an object; those that come to be are found by comparison afterwards."""
        before = set(space)
        for name in before:
            self.changing_attribute(owner, name)

        def settle() -> None:
            for name in space.keys() - before:
                before.add(name)
                self.journal.note(attribute_of(owner, name), MISSING)

        self.journal.defer(settle)

    def changing_attribute(self, obj: Any, name: str) -> None:
        """Save an attribute that is about to be changed, wherever a module keeps it."""
        if isinstance(obj, torch.nn.Module):
            for table in ("_parameters", "_buffers", "_modules"):
                if table in obj.__dict__:  # not yet while the module is made
                    self.journal.touch(Contents(obj.__dict__[table]))
        self.journal.touch(attribute_of(obj, name))

    def check_undoable(self, x: Any, reason: str) -> None:
        """Fork if an object was not made on the path at hand: what is changed of it now cannot be undone."""
        for moment, owner in (*self._decisions.waiting, *self.undoable):
            if not self.is_newer(x, moment):
                if isinstance(owner, Decision):
                    self._decisions.fork(owner.target, reason)
                owner.advanced = reason
