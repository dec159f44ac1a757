# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What code under staging may ask for: the session under way in this thread, and its parts.

Each part does one thing: ``builder`` appends to the graph, ``journal`` takes changes of objects back, ``heap`` knows when
objects were made and what may be changed, ``decisions`` says which side of a branch is run, ``limits`` how far staging may go.
What a layer above remembers of a session it keeps there as an object of a class of its own (:meth:`Session.get`), so that
this file need not know the layers above.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.budget import Budget
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.decisions import Decisions
from dycl_tvm.frontend.trace.heap.heap import Heap
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.frontend.trace.record import Builder, Event
from dycl_tvm.hcfg.nodes import Origin

Kept = TypeVar("Kept")


#: What Python itself catches of the methods that it calls: a property has no value, a sequence ends, or has no length.
PYTHON_CATCHES = (AttributeError, IndexError, StopIteration, TypeError)


class Handler(Protocol):
    """What surrounds code and sees its exceptions: a ``try`` or a ``with``.

    Attributes
    ----------
    passes_on : bool
        Whether all that it does where it sees one is to raise that, or another.
    yields : bool
        Whether a generator gives values in it, so that it may wait while exceptions are raised elsewhere.
    """

    passes_on: bool
    yields: bool

    def catches(self, error: Exception) -> bool:
        """Whether an exception may end here."""

    def lets_pass(self, error: Exception) -> bool:
        """Whether an exception surely goes on from here, and :meth:`passing` does all that the program does here before."""

    def passing(self, error: Exception) -> None:
        """Do what the program does here when an exception passes."""

    def is_for_libraries(self) -> bool:
        """Whether exceptions of Python's or a library's classes may end here, and not only such as the user's code raises."""


class OfOneRun:
    """Base of what is kept for one run of the program only."""


class Session(OwnValue):
    """One staging of one program.

    Parameters
    ----------
    origin : callable
        Returns the place in the user's code that is being run.
    limits : Limits
    budget : Budget, optional
        What is left to spend, if not all that ``limits`` say.
    decisions : class
        How branches are decided.
    """

    def __init__(
        self,
        origin: Callable[[], Origin | None],
        limits: Limits | None = None,
        decisions: type[Decisions] = Decisions,
        budget: Budget | None = None,
    ) -> None:
        self.origin = origin
        self.limits = limits or Limits()
        self.budget = budget or Budget(self.limits, origin)
        self.builder = Builder(origin, self.budget.step)
        self.decisions = decisions(self.builder, self.limits, origin)
        self.heap = Heap(self.decisions, self.origin)
        self.journal = self.heap.journal
        #: The handlers of the user's around the place at hand.
        self.handlers: list[Handler] = []
        #: How many calls of code that is not rewritten are around it, and of functions that Python or such code calls.
        self.native_depth = self.called_depth = 0
        #: PyTorch's mode that sees the functions that the program calls; within such a function it is off.
        self.functions: AbstractContextManager[Any] = nullcontext()
        #: Whether the program at hand has tensors that grow from trip to trip of a loop.
        self.growing = False
        #: Whether the program runs rewritten, so that all it does with arrays in the memory of tensors is seen.
        self.arrays = False
        #: What the program did that is refused, if other code may have swallowed the error.
        self.refused: UnsupportedError | None = None
        self._kept = _ByClass()

    def begin_run(self, prefix: list[Event]) -> None:
        """Start a run of the program that repeats ``prefix`` and then goes on by itself."""
        self.builder.begin_run(prefix)
        self.decisions.begin_run()
        self.heap.begin_run()
        self.handlers, self.native_depth, self.called_depth, self.growing = [], 0, 0, False
        self._kept = _ByClass({kind: kept for kind, kept in self._kept.items() if not isinstance(kept, OfOneRun)})

    def leave(self, handler: Handler) -> None:
        """Note that the place at hand is outside of a handler; that of a generator which is given up may be of an earlier run."""
        if handler in self.handlers:
            self.handlers.remove(handler)

    def may_be_caught(self, kind: type[BaseException] | None = None) -> bool:
        """Whether an exception, of a class, that is raised now may be caught on its way out of the program."""
        by_python = self.called_depth > 0 and kind is not None and issubclass(kind, PYTHON_CATCHES)
        return bool(self.handlers) or self.native_depth > 0 or by_python

    def all_pass_on(self) -> bool:
        """Whether an exception that is raised now ends the call, whichever handler of the user's sees it on its way."""
        return all(handler.passes_on for handler in self.handlers)

    def keep(self, kept: Any) -> None:
        """Keep an object, under its class."""
        self._kept[type(kept)] = kept

    def get(self, kind: type[Kept]) -> Kept:
        """Return the object of a class that is kept here; it is made when it is first asked for."""
        kept: Kept = self._kept[kind]
        return kept


class _ByClass(dict[type, Any]):
    """An object for each class, made when it is first asked for."""

    def __missing__(self, kind: type) -> Any:
        made = self[kind] = kind()
        return made


class _Local(threading.local):
    """What a thread has of its own: the session under way."""

    session: Session | None = None


_local = _Local()


def current() -> Session:
    """Return the session under way in this thread."""
    session = _local.session
    if session is None:
        raise RuntimeError("converted code runs outside of staging")
    return session


def staging() -> bool:
    """Whether a session is under way in this thread."""
    return _local.session is not None


class apart:  # noqa: N801  (used like a function; as one with contextlib it takes twice as long)
    """Let what staging runs for itself be no part of the program: functions of the user's run as they are written."""

    __slots__ = ("_session",)

    def __enter__(self) -> None:
        self._session = _local.session
        _local.session = None

    def __exit__(self, *error: object) -> None:
        _local.session = self._session


def set_current(session: Session | None) -> None:
    """Make ``session`` the one under way in this thread."""
    _local.session = session
