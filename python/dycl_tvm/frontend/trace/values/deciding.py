# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of the run that Python needs to know: those that are decided on the path at hand, and those of which each may be tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.trace.control_flow import LengthNeeded
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.lengths import Counter, Length, Told
from dycl_tvm.hcfg.nodes import Operand, Origin

#: As many lengths are tried, each of which is a path.
MOST_LENGTHS = 64
#: Where Python needs an int that is one of so many, each of them is a path.
FEW = 17


class Deciding(OfOneRun):
    """What is known on the path at hand.

    Attributes
    ----------
    tried : list of Counter
        Those of which each number may be tried in a call around the place at hand.
    tested : dict
        Where something was tested last of which a number that stands for others tells the answer; None if that number was tested.
    """

    def __init__(self) -> None:
        self.tried: list[Counter] = []
        self.tested: dict[Any, Origin | None] = {}
        self._told: dict[Any, Told] = {}

    def of(self, root: Any) -> Told:
        """Return what is known of a number that stands for all that are so far from it (:attr:`Counter.root`).

        What is computed alike of a loop's state is one number in a trip, and may be another behind the loop.
        """
        return self._told.setdefault((root, *[r.loop for r in current().decisions.rolling]), Told())


class Tests:
    """The tests of a program that are to be tests of a number that Python needs behind them.

    Attributes
    ----------
    of_counts : set of Origin
        Where they are.
    begin_anew : callable
        Stages the program from its beginning.
    """

    def __init__(self, begin_anew: Callable[[], object] = lambda: None) -> None:
        self.of_counts: set[Origin | None] = set()
        self.begin_anew = begin_anew

    def need(self, counter: Counter) -> None:
        """Begin anew where something was tested before that would have told of a number which Python needs."""
        place = current().get(Deciding).tested.get(counter.root[0])
        if place is not None:
            self.of_counts.add(place)
            self.begin_anew()


def can_be_tried(counter: Counter) -> bool:
    """Whether each number that a counter may be can be a path of its own: it counts no trips of a loop around the place at hand."""
    return counter.last - counter.first < MOST_LENGTHS and all(r.loop is not counter.loop for r in current().decisions.rolling)


def known_length(length: Length, refuse: Callable[[], Any]) -> int | None:
    """Return a length that Python needs, if it is known; where a call around tries each length, begin to."""
    counter = length.counter
    if length.settled is not None:
        return length.settled
    current().get(Tests).need(counter)
    if any(c is counter for c in current().get(Deciding).tried):
        raise LengthNeeded(counter, refuse)
    return None


def one_of_few(base: tuple[Any, int], least: int, most: int, is_it: Callable[[int], Operand]) -> int:
    """Return what a number is on the path at hand, of a few that it may be: each of them is a path of its own."""
    decisions, told = current().decisions, current().get(Deciding).of(base[0])
    if told.decided is None and decisions.waiting and not decisions.parts_in_trip():
        # a path that is joined with the one at hand may have another number
        decisions.fork(decisions.waiting[0][1], "a number is needed at build time")
    return told.decide(base[1], least, most, is_it)
