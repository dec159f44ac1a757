# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Generators that wait within a ``try`` or ``with``.

Python runs what is still to come of these (a ``finally``, ``__exit__``, a handler) when the last reference to the generator goes away.
Staging cannot tell when: it holds references itself, and runs both sides of a branch. So such a generator must come to its end, or be
closed, on every path.
"""

from __future__ import annotations

import contextlib
import sys
import types
from types import TracebackType
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.control_flow import ControlFlow
from dycl_tvm.frontend.trace.heap.places import Indivisible
from dycl_tvm.frontend.trace.session import OfOneRun, current, staging
from dycl_tvm.hcfg.nodes import Origin


class Suspended(OfOneRun, Indivisible):
    """The blocks of a ``try`` or ``with`` in generators that have been entered and not left, on the path at hand."""

    def __init__(self) -> None:
        self._entered: tuple[Block, ...] = ()

    @property
    def owner(self) -> Suspended:
        return self

    @property
    def key(self) -> Any:
        return ("suspended",)

    @property
    def text(self) -> str:
        return "a generator within a `try` or `with`"

    def read(self) -> Any:
        return self._entered

    def write(self, contents: Any) -> None:
        self._entered = contents

    def is_manager(self, manager: Any) -> None:
        """Note a manager that a ``with`` has entered: if it is made of a generator (``contextlib.contextmanager``), an exception that is
        raised in the ``with`` is raised where the generator waits, so it passes what is around that.
        """
        if getattr(type(manager), "__exit__", None) is contextlib._GeneratorContextManager.__exit__:
            frame = getattr(manager.gen, "gi_frame", None)
            for block in self._entered:
                if block.frame is frame is not None:
                    block.handler.yields = False

    def refuse(self) -> None:
        """Refuse a path that ends while generators wait within a block, and no ``with`` comes back to them."""
        for block in [b for b in self._entered if b.handler.yields]:
            raise UnsupportedError(
                "a generator is left within a `try` or `with`: Python runs the rest of it when the generator is given up",
                block.origin,
                "go over it to its end, or close it: contextlib.closing(generator)",
            )


class Abandoned(ControlFlow, GeneratorExit):
    """A generator of an earlier stage is given up: nothing of the rest is run."""


class Block:
    """One execution of a block of a ``try`` or ``with`` that yields."""

    def __init__(self) -> None:
        self._session = current()
        self._suspended = self._session.get(Suspended)
        self.origin: Origin | None = self._session.origin()
        self.frame: types.FrameType | None = sys._getframe(1)

    def __enter__(self) -> None:
        self.handler = self._session.handlers[-1]
        self.handler.yields = True
        self._session.journal.touch(self._suspended)
        self._suspended.write((*self._suspended.read(), self))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.frame = None  # which holds this object
        if not staging() or current() is not self._session:
            raise Abandoned
        self._session.journal.touch(self._suspended)
        self._suspended.write(tuple([b for b in self._suspended.read() if b is not self]))
