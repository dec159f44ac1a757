# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls in which Python has to know how long a tensor is that they are given: the function is run once for each length, in place.

What it returns and leaves is joined behind the call, so that a list of as many items as the tensor has, which no graph can hold, need not
be joined, and the program after the call is staged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dycl_tvm.frontend.python.flow.branches import Scope
from dycl_tvm.frontend.python.flow.choices import explore
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.trace.control_flow import LengthNeeded
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.deciding import Deciding, can_be_tried
from dycl_tvm.frontend.trace.values.extents import decided
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.lengths import Counter, Length, forget

Run = Callable[[], Any]


def counters_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Counter]:
    """Return the counters of the tensors among arguments whose length is known only at run time, and may be tried."""
    lengths = [n for x in (*args, *kwargs.values()) if type(x) is Grown for n in x.lengths.values() if n.settled is None]
    counters = {id(n.counter): n.counter for n in lengths}
    return [c for c in counters.values() if can_be_tried(c)]


def tried_by_length(run: Run, counters: list[Counter]) -> Any:
    """Make a call: as it stands, or if Python needs one of these lengths in it, once for each that it may be."""
    attempt = Attempt(counters)
    try:
        return attempt.run(run)
    except LengthNeeded as needed:
        if not any(c is needed.counter for c in counters):
            raise
        if not attempt.can_be_taken_back:
            needed.refuse()
        attempt.take_back()
        counter = needed.counter
    if current().decisions.chosen_by_tests():  # what the call gives for one length and another cannot be joined
        decided(counter)
        return tried_by_length(run, [c for c in counters if c is not counter])
    lengths = range(counter.first, counter.last + 1)
    position = number(Length(counter, 1, 0)) - counter.first
    again = partial(tried_by_length, run, [c for c in counters if c is not counter])
    return explore(lengths, position, partial(_with_length, again, counter))


def _with_length(run: Run, counter: Counter, length: int) -> Any:
    """Make the call where a length is known."""
    before = counter.learn(length, length)
    current().journal.learn(lambda: forget(before))  # after what the call learns itself
    try:
        return run()
    finally:
        forget(before)


class Attempt:
    """A call that can be taken back."""

    def __init__(self, counters: Sequence[Counter] = ()) -> None:
        session = current()
        self._counters = counters
        self._scope = Scope()
        self._mark, self._start = session.builder.mark(), session.builder.cursor
        self._saved = session.decisions.checkpoint(), exits().checkpoint()
        #: Whether no run before has made it: it may be forgotten.
        self.is_first = session.builder.peek() is None
        #: What the call has changed that cannot be undone.
        self.advanced = ""

    def run(self, run: Run) -> Any:
        """Make the call."""
        session = current()
        tried, undoable = session.get(Deciding).tried, (self._scope.clock, self)
        tried += self._counters
        session.heap.undoable.append(undoable)
        try:
            made = run()
        finally:
            session.heap.undoable.remove(undoable)
            del tried[len(tried) - len(self._counters) :]
        self._scope.close()
        return made

    @property
    def can_be_taken_back(self) -> bool:
        """Whether all that the call has done can be undone."""
        builder = current().builder
        return not self.advanced and not any(key == ("decide",) for key, _, _ in builder.events[self._start : builder.cursor])

    def take_back(self) -> None:
        """Undo what the call did up to where it ended early; a run that repeats this one makes it up to there again."""
        self._undo()
        current().builder.truncate(self._mark)

    def forget(self) -> None:
        """Undo what the call did, as if it had never been made: a run that repeats this one does not make it."""
        self._undo()
        builder = current().builder
        builder.cut(self._start, self._start)
        builder.block = self._mark[0]

    def _undo(self) -> None:
        session = current()
        session.journal.close_to(self._scope.depth + 1)
        session.journal.rollback(self._scope.mark)
        self._scope.close()
        decisions, left = self._saved
        session.decisions.restore_checkpoint(decisions)
        exits().restore_checkpoint(left)
