# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operator behind ``while``."""

from __future__ import annotations

from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.flow.branches import begin_told, test_in
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.flow.loops import FEWEST_TRIPS, Loop, keep_their_lengths
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.trace.control_flow import Dead, Restart
from dycl_tvm.frontend.trace.join.captured import capture_path
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.number_tests import answers_by_bounds
from dycl_tvm.frontend.trace.values.recorder import truths_of_fills
from dycl_tvm.hcfg.nodes import Value

#: A loop with a plain condition and a symbolic exit is unrolled up to this many iterations before it is rolled.
UNROLL_LIMIT = 2048
#: A loop whose condition Python knows is rolled if paths part for good in all of so many trips, or in all but one.
_PARTING_TRIPS = 4
#: So many trips of an endless loop may part for good in a row: each is a run, and as long as all before it.
_MOST_PARTING_TRIPS = 64


class While(Loop):
    """One execution of a ``while`` loop."""

    def __init__(self, names: tuple[str, ...], barrier: bool, yields: bool, endless: bool) -> None:
        super().__init__(names, barrier, yields)
        self._endless = endless
        self._parted = self._parted_in_a_row = 0

    def next(self, variables: dict[str, Any]) -> bool:
        """Return whether the body is to be run (again)."""
        if self.completed or self.stop:
            return False
        if self._rolling:
            self._begin_round()
            self._loop.at_condition = True
            return True
        if self._endless and self._bounded() and self._trips >= self._loop.unroll:
            self._raise_bound()
            self._dead = self.stop = True
            return False
        self._leaves_before = exits().departures
        if 0 < self._trips <= _PARTING_TRIPS and self._has_parted():
            self._parted += 1
            if self._parted == _PARTING_TRIPS - 1 and not (self._yields or self.advanced):
                current().decisions.roll_at_once(self._loop)
        if self._endless and self._trips:
            self._refuse_parting()
        self._enter_rolled(variables)
        self._begin_iteration()
        self.restore = False
        self._truths, self._answers = truths_of_fills(), answers_by_bounds()
        return True

    def _refuse_parting(self) -> None:
        """Refuse a loop that only an exception leaves which is caught outside of it, once it has been left so often."""
        self._parted_in_a_row = self._parted_in_a_row + 1 if self._has_parted() else 0
        if self._parted_in_a_row >= (current().limits.loop_trips or _MOST_PARTING_TRIPS) and not self._bounded():
            refusal = UnsupportedError(
                f"paths part for good in each of the first {self._trips} trips of a loop that has no condition",
                current().origin() or self._loop.origin,
                "leave it by break, not by an exception that is caught outside of it, or give it a bound: build(..., max_loop_trips=N)",
            )
            current().decisions.unroll(self._loop, refusal)

    def test(self, cond: Any, variables: dict[str, Any]) -> bool:
        """Evaluate the loop's condition."""
        holds = truth(cond)
        self._loop.at_condition = False
        if isinstance(holds, Value):
            self._refuse_yields()
            if not self._rolling:
                runs = self._peel(holds, variables)
                if runs:
                    return True
                if runs is None and not self._bounded():
                    raise Restart(self)
                if runs is None:
                    self._end_at_bound(holds, variables)
                self.completed = True
                self._variables = self._own(variables)
                return False
            self._leave_rolled(holds, variables)
            self._check_trips()
            assert self._header is not None
            begin_told(self._header.begin_body(test_in(cond)), True)
            return True
        if self._rolling:
            if not holds:  # for a value of this kind: each has a run of its own
                if not current().builder.is_copied(self._outer.clock):
                    self._exits.append(capture_path(self._own(variables), self._outer.mark))
                current().builder.block = None
                raise Dead
            return True
        if not holds:
            self.completed = True
            self._variables = self._own(variables)
            return False
        if self._bounded() and self._early_exits and self._trips >= self._loop.unroll:
            self._raise_bound()  # no run comes here if bounds are right: paths have left the loop wherever it may end
            raise Dead
        begins_known = self._loop.unroll == 0 and truths_of_fills() > self._truths
        if self._trips == self._loop.unroll and not self._yields and (begins_known or self._loop.alike):
            raise Restart(self)  # it holds at first, as variables that begin with zeros have it: a trip of its own would be code twice
        if answers_by_bounds() > self._answers and not (self._yields or self.advanced or self._endless):
            current().decisions.roll_at_once(self._loop)  # it surely holds in the first trips, not in all: each would be code of its own
        self._trips += 1
        return True

    def _should_roll(self, departures: int, goes_on: bool) -> bool:
        symbolic = bool(self._breaks) or departures != self._leaves_before
        if self._bounded() or (self._endless and self._trips < self._loop.unroll):
            return False
        if self._endless:
            return symbolic
        if self._trips == FEWEST_TRIPS and goes_on and self._loop.alike is None and not (self._yields or self.advanced):
            changed = self._changed()
            if keep_their_lengths(changed) and self._has_grown(changed):
                current().decisions.roll_at_once(self._loop)
        return symbolic and self._trips > UNROLL_LIMIT
