# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The objects of the program that is staged: when they were made, and what must be saved before they are changed."""

from __future__ import annotations

import array
import io
from typing import Any

import numpy as np
import torch

from dycl_tvm.frontend.trace.clock import Dated, clock
from dycl_tvm.frontend.trace.decisions import Decisions, Site
from dycl_tvm.frontend.trace.heap.journal import MUTABLE, Attribute, Contents, Journal

#: Objects whose contents are not saved before a change.
_UNSAVED = (bytearray, array.array, np.ndarray, io.IOBase)


class Heap:
    """What the program at hand may change, and how that is taken back."""

    def __init__(self, decisions: Decisions) -> None:
        self.journal = Journal()
        self._decisions = decisions
        self._births: dict[int, tuple[Any, int]] = {}
        #: Containers that two names share on one path only, by identity: the site at which the paths parted.
        self.guarded: dict[int, Any] = {}
        #: What may be undone around the place at hand: (moment of its beginning, site, or the loop that may yet be rolled).
        self.undoable: list[tuple[int, Any]] = []
        #: Where the journal and the clock stood at the beginning of the run at hand.
        self.run_mark = self.run_started = 0

    def begin_run(self) -> None:
        """Forget what belongs to the run before."""
        self.undoable = []
        self.guarded.clear()

    def born(self, x: Any) -> Any:
        """Note that an object is made now."""
        self._births[id(x)] = (x, next(clock))
        return x

    def is_newer(self, x: Any, moment: int) -> bool:
        """Whether an object is known to have been made after a moment."""
        if isinstance(x, Dated):
            return x.born > moment
        known = self._births.get(id(x))
        return known is not None and known[0] is x and known[1] > moment

    def changing(self, x: Any) -> None:
        """Save the contents of a container that is about to be changed."""
        if isinstance(x, MUTABLE):
            site = self.guarded.get(id(x))
            if site is not None:
                self._decisions.fork(site, f"a {type(x).__name__} that two variables share on one path only is changed")
            self.journal.touch(Contents(x))
        elif isinstance(x, _UNSAVED):
            self.check_undoable(x, f"a {type(x).__name__} made before a branch is changed in it")

    def changing_attribute(self, obj: Any, name: str) -> None:
        """Save an attribute that is about to be changed, wherever a module keeps it."""
        if isinstance(obj, torch.nn.Module):
            for table in (obj._parameters, obj._buffers, obj._modules):
                self.journal.touch(Contents(table))
        self.journal.touch(Attribute(obj, name))

    def check_undoable(self, x: Any, reason: str) -> None:
        """Fork if an object was not made on the path at hand: what is changed of it now cannot be undone."""
        for moment, owner in self.undoable:
            if not self.is_newer(x, moment):
                if isinstance(owner, Site):
                    self._decisions.fork(owner.target, reason)
                owner.advanced = True
