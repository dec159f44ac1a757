# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operator behind ``for``.

A loop over ``range`` with a bound known only at run time is rolled. One over a range that Python knows is unrolled, unless it has enough
trips, these are alike, and a path leaves the loop in one of them or its state grows. Whether they are alike is found by trying. What asks
Python for the number of the trip, and whatever else fails because the loop is rolled, runs the program again with one trip unrolled, then
with all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.flow.iteration import in_turn, iterate
from dycl_tvm.frontend.python.flow.loops import FEWEST_TRIPS, Loop, keep_their_lengths
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.source.plain_progress import shown_items
from dycl_tvm.frontend.trace.join.captured import capture_path
from dycl_tvm.frontend.trace.join.fixpoint import Header
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extents import ends_of
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.grown_parts import row_of
from dycl_tvm.hcfg.nodes import Value

#: If an unrolled trip is begun by so many paths that have parted in trips before it, paths meet at the end of each: where both sides go on,
#: each trip doubles the code. A path that leaves by an exception where it parts doubles nothing.
_MOST_WAYS = 3


class SymbolicRange:
    """``range(...)`` with a bound known only at run time."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        for bound in (start, stop, step):
            if (loop := scalars.counted_by(bound)) is not None:
                current().decisions.unroll(loop, UnsupportedError("a range depends on the number of a trip", current().origin()))
        if scalars.is_symbolic(step):
            raise UnsupportedError("range() with a step known only at run time", current().origin(), "use a while loop")
        self.start, self.stop, self.step = start, stop, step


def is_rolled(items: Any) -> bool:
    """Whether a loop over something is rolled because the run says how many trips it has."""
    if isinstance(items, SymbolicRange) or in_turn(items) is not None:
        return True
    return isinstance(items, Grown) and 0 in items.lengths


class For(Loop):
    """One execution of a ``for`` loop."""

    def __init__(self, iterable: Any, names: tuple[str, ...], barrier: bool, yields: bool) -> None:
        super().__init__(names, barrier, yields)
        self._iterable = shown_items(iterable)
        #: What is left of a range that Python knows, from a trip on that may be rolled.
        self._left = range(0)
        self._index: Any = None
        #: How the tests were answered at which paths have parted for good in its trips.
        self._answers: list[bool] = []
        #: Gives the item of a number, where the loop goes over numbers of items.
        self._item_of: Callable[[Any], Any] | None = None

    def item(self, x: Any) -> Any:
        """Return the item of a trip, given what :meth:`iterate` yields for it: inside of the trip, as code of the program may make it."""
        return x if self._item_of is None else self._item_of(x)

    def iterate(self, variables: dict[str, Any]) -> Iterator[Any]:
        """Yield what :meth:`item` makes the items of."""
        items = self._iterable
        if isinstance(items, SymbolicRange):
            yield from self._iterate_rolled(items, variables)
            return
        if (turns := in_turn(items)) is not None:
            self._item_of = turns.item
            with turns.under_way():
                yield from self._iterate_rolled(SymbolicRange(0, turns.count, 1), variables)
            return
        if isinstance(items, Grown) and 0 in items.lengths:
            self._item_of = functools.partial(row_of, items)
            yield from self._iterate_rolled(SymbolicRange(0, items.sizes()[0], 1), variables)
            return
        unrolled = self._loop.begin_counted() if type(items) is range else 0
        self._variables, self._start = self._own(variables), current().builder.cursor
        is_long = type(items) is range and len(items) >= FEWEST_TRIPS and not self._yields
        for number, item in enumerate(iterate(items)):
            if self._dead:
                break
            self.restore = False
            may_roll = is_long and number - unrolled in (0, 1)
            self._left = items[number:] if may_roll else range(0)
            self._note_parting(number, is_long)
            if self._loop.meets and not self._yields:
                self._begin_trip(self._variables)
                self._again = True
                while self._again:
                    self._again = False
                    yield item
                if self.stop:
                    return
                continue
            if may_roll:
                self._enter_rolled(self._variables if number else variables)
                self._leaves_before = exits().departures
            self._begin_iteration()
            if may_roll and self._loop.alike:
                self._start_rolling()
            else:
                yield item
            if self._rolling:
                yield from self._iterate_counted()
                return
            if self.stop:
                return
        self.completed = not self._dead

    def _note_parting(self, number: int, is_long: bool) -> None:
        """Let paths that part in trips meet at the end of each, once a trip is recorded on several that have parted in those before it.

        Where they cannot (a list is longer on some of them), the trips of a long loop are tried as one.
        """
        self._answers += self._parting_answers()
        self._start = current().builder.cursor
        if self._answers:
            ways = self._loop.ways.setdefault(number, set())
            ways.add(tuple(self._answers))
            if len(ways) >= _MOST_WAYS and not (self._yields or self.advanced):
                current().decisions.meet_in_trips(self._loop)
                if is_long and self._loop.meets is False:
                    current().decisions.roll_at_once(self._loop)

    def _should_roll(self, departures: int, goes_on: bool) -> bool:
        if not self._left or self.advanced or not (goes_on or self._continues):
            return False
        parted, changed = self._has_parted(), self._changed()
        if parted and self._loop.alike is False:
            return False
        if not keep_their_lengths(changed):
            return False
        if parted:
            current().decisions.roll_at_once(self._loop)
        if departures != self._leaves_before or len(self._breaks) > self._saved[0]:
            return True
        return self._has_grown(changed)

    def _iterate_counted(self) -> Iterator[Any]:
        """Roll what is left of a range that Python knows: the last trip leaves at its end."""
        left, self._step = self._left, self._left.step
        ends = min(left), max(left)
        while self._rolling:
            self._begin_round()
            assert self._header is not None
            self._index = self._header.extra["<index>"]
            yield scalars.counted(self._index, ends, self._loop)

    def _start_rolling(self) -> None:
        self._loop.most = len(self._left) or None
        super()._start_rolling()

    def _hidden(self) -> dict[str, Any]:
        return {"<index>": self._left[0]} if self._left else super()._hidden()

    def _next_trip(self, variables: dict[str, Any]) -> dict[str, Any]:
        following = self._index + self._step
        if self._left:
            more = scalars.operand_of(following < self._left.stop if self._step > 0 else following > self._left.stop)
            if isinstance(more, Value):
                self._leave_rolled(more, variables)
        return {**super()._next_trip(variables), "<index>": following}

    def _iterate_rolled(self, counted: SymbolicRange, variables: dict[str, Any]) -> Iterator[Any]:
        self._refuse_yields()
        self._step = counted.step
        self._variables = self._own(variables)
        index = counted.start
        while self._trips < self._loop.unroll:
            cond = self._in_range(index, counted)
            if not cond:
                break
            if not isinstance(cond, Value):
                self._trips += 1  # so many there are on all paths
            elif not self._peel(cond, self._variables):
                self.completed = True
                self._leave_normally([capture_path(self._variables, self._outer.mark)])
                return
            self.restore = False
            self._begin_iteration()
            yield index
            if self.stop or self.completed:
                return
            index = index + counted.step
        cond = self._in_range(index, counted) if self._loop.unroll else True
        if self._bounded() or not cond:
            if isinstance(cond, Value):
                self._end_at_bound(cond, self._variables)
            elif cond:
                self._raise_bound()
                self._dead = True
                return
            self.completed = True
            self._leave_normally([capture_path(self._variables, self._outer.mark)])
            return
        self._enter_rolled(self._variables)
        self._loop.trips = _most_trips(index, counted)
        self._header = Header(self._entry, self._loop, {"<index>": index, **self._hidden()}, self._around, self._outer.clock)
        self._rolling = True
        while self._rolling:
            self._begin_round()
            self._index = self._header.extra["<index>"]
            cond = self._in_range(self._index, counted)
            assert isinstance(cond, Value)
            self._leave_rolled(cond, self.env)
            self._check_trips()
            self._header.begin_body()
            yield self._index

    def _in_range(self, index: Any, counted: SymbolicRange) -> Any:
        bounds = scalars.bounds_of(counted.stop)
        if bounds is not None and not scalars.is_symbolic(index) and (index >= bounds[1] if counted.step > 0 else index <= bounds[0]):
            return False
        return truth(index < counted.stop if counted.step > 0 else index > counted.stop)


#: What grows in a loop of no more trips is a buffer for all of them.
_MOST_TRIPS = 1024


def _most_trips(first: Any, counted: SymbolicRange) -> int | None:
    """Return how many trips a loop makes at most; None if that is not known, or they are many."""
    (least, _), (_, end) = [ends_of(x) for x in ((first, counted.stop) if counted.step > 0 else (counted.stop, first))]
    trips = max(-(-(end - least) // abs(counted.step)), 0)
    return trips if trips <= _MOST_TRIPS else None
