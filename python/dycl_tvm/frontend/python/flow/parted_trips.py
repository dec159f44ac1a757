# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Paths through the body of a loop that cannot be joined before its end: each goes on by itself to the end of the trip.

The body is run once a path. The first run goes on with one side of the decision; at its end the body is run again, repeats the events up
to the decision, and goes on with the other side. At the end of the trip all are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.trace.control_flow import ForkRequired
from dycl_tvm.frontend.trace.decisions import Decision
from dycl_tvm.frontend.trace.record import Event
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.hcfg.nodes import Block

#: So many paths may part in one trip.
MOST_PATHS = 16


@dataclass
class _Run:
    """One run of the body.

    Attributes
    ----------
    start : int
        The number of its first event.
    saved : object
        What waits to be joined, as it was then.
    copied : int
        How many of its first events are those of another run.
    pending : list
        The events with which the runs begin that were still to be made.
    """

    start: int
    saved: Any
    copied: int
    pending: list[list[Event]]


class OtherSides:
    """By the block of the first side of a decision: the loop that parted there, and the events with which the other side's run begins."""

    def __init__(self) -> None:
        self.events: dict[int, tuple[Block, Decision, list[Event]]] = {}


class PartedTrips:
    """The runs of the body in one round of a rolled loop, or in one unrolled trip.

    Parameters
    ----------
    loop : Decision
        That of the loop, or of the trip.
    block : Block
        The header, or the block in which the trip begins.
    waiting : tuple of list
        The paths of the loop that wait to be joined, and their tokens.
    since : int
        The moment at which the round began.
    """

    def __init__(self, loop: Decision, block: Block, waiting: tuple[list[Any], ...], since: int) -> None:
        self._loop = loop
        self._block, self._waiting, self._since = block, waiting, since
        self._pending: list[list[Event]] = []
        self._runs: list[_Run] = []
        self._parted = 0
        self._begin(0)

    def _begin(self, copied: int) -> None:
        session = current()
        session.decisions.rolling[-1].facts.clear()
        if self._runs:  # what waits of other runs is joined with this one at the end of the trip only
            session.decisions.opened = list(self._runs[0].saved[1][0])
        saved = [len(w) for w in self._waiting], session.decisions.checkpoint(), exits().checkpoint()
        self._runs.append(_Run(session.builder.cursor, saved, copied, list(self._pending)))

    def takes(self, fork: ForkRequired) -> bool:
        """Whether a decision is one of the body at hand that can be forked here."""
        decision = fork.decision
        if decision.is_loop or decision.choice or decision.index < self._runs[0].start:
            return False
        self._parted += 1
        return self._parted < MOST_PATHS and not self._loop.simply

    def part(self, fork: ForkRequired) -> None:
        """Take back what came after the decision: the next run goes on with one side of it, a later one with the other."""
        session, decision = current(), fork.decision
        builder, self._loop.tried = session.builder, True
        at = max(i for i, run in enumerate(self._runs) if run.start <= decision.index)
        del self._runs[at + 1 :]
        run = self._runs[at]
        own = builder.cut(run.start, decision.index)
        then, orelse = builder.part(decision.block, decision.cond, decision.origin)
        self._pending = list(run.pending)
        session.get(OtherSides).events[id(then[1][1])] = then[1][1], self._loop, [(key, result, None) for key, result, _ in (*own, orelse)]
        counts, decisions, left = run.saved
        for paths, count in zip(self._waiting, counts):
            del paths[count:]
        session.decisions.restore_checkpoint(decisions)
        session.decisions.rolling[-1].facts.clear()
        exits().restore_checkpoint(left)
        builder.block = self._block
        builder.repeat([*own, then], run.copied, self._since)

    def another(self) -> bool:
        """Begin another run of the body, if one is still to be made."""
        builder, others = current().builder, current().get(OtherSides).events
        run = self._runs[-1]
        for key, result, _ in builder.events[run.start + run.copied : builder.cursor]:
            if key == ("decide",) and id(result[1]) in others and others[id(result[1])][1] is self._loop:
                self._pending.append(others[id(result[1])][2])
        if not self._pending:
            return False
        events = self._pending.pop()
        repeats = builder.peek() is not None
        builder.event(("another path",), lambda: None)
        self._begin(len(events) - 1)
        builder.block = self._block
        builder.repeat([] if repeats else events, len(events) - 1, self._since)
        return True
