# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of the run that Python needs to know: those that are decided on the path at hand, and those of which each may be tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.trace.control_flow import LengthNeeded
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.hcfg.nodes import Operand, Value

#: As many lengths are tried, each of which is a path.
MOST_LENGTHS = 64
#: Where Python needs an int that is one of so many, each of them is a path.
FEW = 17


class Deciding(OfOneRun):
    """The counters of which each number may be tried in a call around the place at hand."""

    def __init__(self) -> None:
        self.tried: list[Counter] = []


def can_be_tried(counter: Counter) -> bool:
    """Whether each number that a counter may be can be a path of its own: it counts no trips of a loop around the place at hand."""
    return counter.last - counter.first < MOST_LENGTHS and all(r.loop is not counter.loop for r in current().decisions.rolling)


def known_length(length: Length, refuse: Callable[[], Any]) -> int | None:
    """Return a length that Python needs, if it is known; where a call around tries each length, begin to."""
    counter = length.counter
    if length.settled is not None:
        return length.settled
    known = current().decisions.number(counter.value)
    if known is not None:
        return length.at(known)
    if any(c is counter for c in current().get(Deciding).tried):
        raise LengthNeeded(counter, refuse)
    return None


def one_of_few(value: Value, least: int, most: int, is_it: Callable[[int], Operand]) -> int:
    """Return what a number is on the path at hand, of a few that it may be: each of them is a path of its own."""
    decisions = current().decisions
    known = decisions.number(value)
    if known is None:
        known = next((n for n in range(least, most) if decisions.decide(is_it(n))), most)
        decisions.note_number(value, known)
    return known
