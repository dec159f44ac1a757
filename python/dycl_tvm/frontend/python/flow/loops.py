# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What both kinds of loops have in common.

A loop whose condition is known only at run time is *rolled*: its body is
run with a header block whose parameters stand for what changes from one iteration to the next. Which places these are
is found by iteration: first none; whatever differs at the end of the body becomes a parameter and the body is run
again, until nothing new differs (a fixpoint: the set only grows, within the finite number of leaves of the state).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from dycl_tvm.errors import DyclError, StagingLimitError, UnsupportedError
from dycl_tvm.frontend.python.flow.branches import Scope, join_paths, raised_alone
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.flow.parted_trips import PartedTrips
from dycl_tvm.frontend.trace.control_flow import Dead, ForkRequired, Jump, Restart
from dycl_tvm.frontend.trace.decisions import Decision, Round
from dycl_tvm.frontend.trace.heap.places import Contents, Place
from dycl_tvm.frontend.trace.join.captured import PathState, capture_path
from dycl_tvm.frontend.trace.join.fixpoint import Header
from dycl_tvm.frontend.trace.join.growth import has_grown
from dycl_tvm.frontend.trace.join.kinds import OneOf, Settled
from dycl_tvm.frontend.trace.join.mismatch import Mismatches, between_paths
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.hcfg.nodes import Raise

#: A loop of fewer trips, of which Python knows how many, is unrolled: its code is small, and faster.
FEWEST_TRIPS = 8


class Loop:
    """One execution of a loop; the base of both kinds. See :mod:`.rewrite` for the code that drives it."""

    def __init__(self, names: tuple[str, ...], barrier: bool, yields: bool) -> None:
        session = current()
        self.names, self._barrier, self._yields = names, barrier, yields
        self._loop = session.decisions.loop()
        self._trips = 0
        self.env: dict[str, Any] = {}
        self.restore = self.stop = self.completed = False
        self._dead = False
        self._rolling = False
        self._breaks: list[PathState] = []
        self._continues: list[PathState] = []
        self._tokens: list[Any] = []
        self._handed_on: list[Any] = []
        self._outer = Scope()
        self._inner: Scope | None = None
        self._variables: dict[str, Any] = {}
        self._exits: list[PathState] = []
        self._early_exits: list[PathState] = []
        self._header: Header | None = None
        self._runs: PartedTrips | None = None
        #: The unrolled trip at hand, if paths may part in it and meet at its end, and whether its body is to be run again for another path.
        self._trip: Decision | None = None
        self._again = False
        self._at_header: dict[str, Any] = {}
        self._leaves_before = exits().departures
        self.modes = len(exits().modes)
        #: What an iteration has changed of something from outside, if that cannot be undone.
        self.advanced = ""

    # -- jumps ----------------------------------------------------------------------------------------------------------
    def jump(self, kind: str, variables: dict[str, Any]) -> Jump:
        """Make the exception for ``break`` or ``continue``."""
        return Jump(self, kind, None, self._own(variables))

    def receive(self, jump: Jump, token: Any) -> bool:
        """Take over a side that breaks or continues; it waits here to be joined."""
        if current().builder.is_copied(self._outer.clock):
            return True
        if jump.kind == "break":
            self._breaks.append(capture_path(jump.env, self._outer.mark))
        else:
            assert self._inner is not None
            self._continues.append(capture_path(jump.env, self._inner.mark))
        if token is not None:
            self._tokens.append(token)
            current().decisions.wait(token)
        return True

    def _own(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {n: variables[n] for n in self.names if n in variables}

    def began(self) -> int:
        """Return when the loop began."""
        return self._outer.clock

    def _decision(self) -> Any:
        if self._tokens:
            return min((t.target for t in self._tokens), key=lambda t: t.index)
        return self._loop

    def _differing(self) -> Mismatches:
        return between_paths(self._tokens or [self._loop])

    # -- iterations -------------------------------------------------------------------------------------------------------
    def _begin_iteration(self) -> None:
        current().budget.step()
        self._inner = Scope()

    def end(self, variables: dict[str, Any]) -> None:
        """Note the variables at the end of the body."""
        self._variables = self._own(variables)

    def __enter__(self) -> None:
        assert self._inner is not None
        self._undoable = (self._inner.clock, self)
        current().heap.undoable.append(self._undoable)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, GeneratorExit):
            return False
        session = current()
        session.heap.undoable.remove(self._undoable)
        if isinstance(error, Restart) and error.loop in (self, self._loop):
            self._start_rolling()
            return True
        if isinstance(error, ForkRequired) and self._runs is not None and self._runs.takes(error):
            self._end_run()
            self._runs.part(error)
            self._run_again()
            return True
        recorded = self._trip or (self._loop if self._rolling else None)
        if recorded is not None and recorded.is_tried and isinstance(error, DyclError) and not isinstance(error, StagingLimitError):
            session.decisions.unroll(recorded, error)
        if recorded is not None and isinstance(error, ForkRequired):
            session.decisions.refuse_in_loop(error, recorded)
        mine = isinstance(error, Jump) and error.target is self
        if error is not None and not mine and not isinstance(error, Dead):
            if not self._leave_others_waiting(error):
                return False
            error = Dead()
        assert self._inner is not None
        if isinstance(error, Jump) and error.kind == "break":
            if self._trip is not None:
                self._breaks.append(capture_path(error.env, self._outer.mark))
                self._tokens.append(self._trip)
                session.decisions.wait(self._trip)
                return self._close_trip(alive=False)
            if self._rolling:
                # every path through the body breaks here: the loop runs at most once
                self._breaks.append(capture_path(error.env, self._outer.mark))
                return self._close_rolled(alive=False)
            if self._early_exits and not self._continues:
                # the iteration is one of the first ones, unrolled, and on other paths the condition failed before it
                self._breaks.append(capture_path(error.env, self._outer.mark))
                self._inner.close()
                self._leave_normally([])
                return True
            self._variables = error.env
            self._finish_continues(alive=True, breaking=True)
            self.stop = True
            return True
        if isinstance(error, Jump):
            self._variables = error.env
        alive = not isinstance(error, Dead) and not (self.completed and self._rolling is False)
        if self._trip is not None:
            return self._close_trip(alive)
        if self._rolling:
            return self._close_rolled(alive=not isinstance(error, Dead))
        if self.completed:
            self._inner.close()
            self._leave_normally([capture_path(self._variables, self._outer.mark)] if self._early_exits else [])
            return True
        if self._should_roll(exits().departures, alive):
            self._start_rolling()
            return True
        self._finish_continues(alive, breaking=False)
        if self._dead and self._early_exits:
            self._dead = self.stop = False
            self._leave_normally([])
            return True
        if self._dead and not self._breaks:
            return False if error is not None else self._raise_dead()
        return True

    def _leave_others_waiting(self, error: BaseException) -> bool:
        """Let the path at hand leave the loop by ``return`` or an exception while others still have to go on after it."""
        session = current()
        if not (self._rolling or self._trip or self._breaks or self._continues or self._early_exits):
            return False
        if isinstance(error, Jump):
            if self._barrier:
                session.decisions.fork(self._decision(), "one path returns out of a loop inside of try or with, where others go on")
            token = min(self._tokens, key=lambda t: t.index) if self._tokens else None
            with exits().beyond(error.target.modes):
                error.target.receive(error, token)
            self._handed_on.append(token)
            return True
        return raised_alone(error, self._decision)

    def orelse(self) -> Else:
        """Return the context in which the loop's ``else`` runs."""
        return Else(self)

    def _raise_dead(self) -> bool:
        raise Dead

    def _should_roll(self, departures: int, goes_on: bool) -> bool:
        return False

    # -- unrolled trips in which paths part, and meet at the end -----------------------------------------------------------
    def _begin_trip(self, variables: dict[str, Any]) -> None:
        """Begin an unrolled trip that is run once for each path through it that cannot be joined before its end."""
        session = current()
        builder = session.builder
        self._trip = session.decisions.trip(self._loop)
        self._at_header = self._own(variables)
        self._save()
        block = builder.new_block("trip")
        builder.jump(block, [])
        builder.block = block
        self._begin_iteration()
        assert self._inner is not None
        session.decisions.rolling.append(Round(builder.cursor, self._trip, self._inner.clock))
        self._runs = PartedTrips(self._trip, block, (self._breaks, self._tokens, self._continues, self._exits), self._inner.clock)
        self._settle_kinds()

    def _settle_kinds(self) -> None:
        """Set the variables to what they are on the path that begins now: a value of several kinds parts the paths of this trip."""
        settled = Settled([x for x in self._at_header.values() if type(x) is OneOf])
        self.env, self.restore = {name: settled(x) for name, x in self._at_header.items()}, True

    def _run_again(self) -> None:
        """Run the body of an unrolled trip for another path."""
        if self._trip is not None:
            self._begin_path()
            self._again = True
            self._settle_kinds()

    def _close_trip(self, alive: bool) -> bool:
        """End a path through an unrolled trip: run its body for another one, or join all that go on."""
        session, scope, trip = current(), self._inner, self._trip
        assert scope is not None and trip is not None and self._runs is not None
        self._refuse_advanced()
        if alive:
            self._continues.append(capture_path(self._variables, scope.mark))
        if self._runs.another():
            self._end_run()
            self._run_again()
            return True
        paths, self._continues, self._runs, self._trip = self._continues, [], None, None
        self._end_run()
        session.decisions.end_rolled(self._saved[2], trip)
        if paths:
            self.env, _ = join_paths(paths, scope, trip, "continue", between_paths([trip]), of_loop=True)
            self.restore, self._variables = True, self.env
        self._dead = self.stop = not paths
        return bool(paths or self._breaks) or self._raise_dead()

    def _finish_continues(self, alive: bool, breaking: bool) -> None:
        """Join the paths that end an iteration."""
        session, scope = current(), self._inner
        assert scope is not None
        self.restore = False
        if self._continues and breaking:
            # this path breaks while others continue: they part here
            session.decisions.fork(self._decision(), "one path breaks out of a loop where others continue")
        if self._continues:
            if alive:
                self._continues.append(capture_path(self._variables, scope.mark))
            session.journal.rollback(scope.mark)
            scope.close()
            self.env, _ = join_paths(self._continues, scope, self._decision(), "continue", self._differing())
            self.restore = True
            self._continues = []
            self._variables = self.env
            return
        scope.close()
        if not alive:
            self._dead = self.stop = True

    def finish(self, variables: dict[str, Any]) -> None:
        """Join the paths that leave the loop."""
        session, scope = current(), self._outer
        self.restore = False
        if not self._breaks:
            scope.close()
            self._release()
            if self._dead:
                raise Dead
            return
        if not self._dead:
            self._breaks.append(capture_path(self._own(variables), scope.mark))
        session.journal.rollback(scope.mark)
        scope.close()
        decision, differing = self._decision(), self._differing()
        self._release()
        self.env, _ = join_paths(self._breaks, scope, decision, "after_loop", differing, self._header is not None)
        self.restore = True

    def _release(self) -> None:
        for token in self._tokens:
            if token not in self._handed_on:
                current().decisions.close(token)

    # -- rolled loops -----------------------------------------------------------------------------------------------------
    def _enter_rolled(self, variables: dict[str, Any]) -> None:
        """Remember the state at the header, before anything of the loop has been recorded."""
        session = current()
        self._entry, self._around = self._own(variables), dict(variables)
        self._mark = session.builder.mark()
        self._start = session.builder.cursor
        self._save()

    def _save(self) -> None:
        """Remember what waits to be joined."""
        self._saved = (len(self._breaks), len(self._tokens), current().decisions.checkpoint(), exits().checkpoint())

    def _start_rolling(self) -> None:
        """Take back the iteration at hand, or all rounds, and begin the first round."""
        session, header = current(), self._header
        self._refuse_yields()
        self._refuse_advanced()
        if not header and self._has_parted():
            session.decisions.roll_at_once(self._loop)
            session.decisions.part_in_loop(
                "a truth test stands where both sides cannot be explored in place", session.origin(), loop=self._loop
            )
        self._undo_round()
        self._rolling = True
        self._header = header.anew() if header else Header(self._entry, self._loop, self._hidden(), self._around, self._outer.clock)

    def _has_parted(self) -> bool:
        """Whether paths have parted for good in the trip at hand, which is unrolled."""
        return bool(self._parting_answers())

    def _parting_answers(self) -> list[bool]:
        """Return how the tests were answered at which paths have parted for good in the trip at hand, which is unrolled."""
        builder = current().builder
        return [result[0] for key, result, _ in builder.events[self._start : builder.cursor] if key == ("decide",)]

    def _changed(self) -> list[tuple[Place, Any, Any]]:
        """Return which places that are older than the trip it has changed, what they held before it, and what they hold now."""
        session, scope = current(), self._inner
        assert scope is not None
        before = session.journal.before(scope.mark)
        changes = session.journal.changes(scope.mark).items()
        return [(place, before[key], place.read()) for key, place in changes if not session.heap.is_newer(place.owner, scope.clock)]

    def _has_grown(self, changed: list[tuple[Place, Any, Any]]) -> bool:
        """Whether a tensor is longer than before the trip at hand."""
        grown = any(has_grown(self._entry.get(name), value) for name, value in self._variables.items())
        return grown or any(has_grown(before, after) for _, before, after in changed)

    def _refuse_yields(self) -> None:
        """Whoever takes what the loop yields runs between its trips, and would run once for all numbers of them."""
        if self._yields:
            raise UnsupportedError(
                "a generator yields in a loop whose trip count is known only at run time",
                current().origin(),
                "use a `for` of fixed length with `if ...: break`, or append to a list instead of yield",
            )

    def _refuse_advanced(self) -> None:
        if self.advanced:
            refusal = UnsupportedError(
                f"{self.advanced.replace('branch', 'loop')}, and the loop's trip count is known only at run time",
                current().origin(),
                "index a list or tensor by a counter instead of next(), assign y = y.t() instead of y.t_(), or give the loop a bound: "
                "build(..., max_loop_trips=N)",
            )
            current().decisions.unroll(self._trip or self._loop, refusal)

    def _undo_round(self) -> None:
        session = current()
        self._end_run()
        self._runs = None
        breaks, tokens, decisions, left = self._saved
        del self._breaks[breaks:]
        for token in self._tokens[tokens:]:
            session.decisions.close(token)
        del self._tokens[tokens:]
        self._continues = []
        self._exits = []
        session.decisions.restore_checkpoint(decisions)
        exits().restore_checkpoint(left)
        session.builder.truncate(self._mark)

    def _begin_round(self) -> None:
        """Run the body once more: with the header's parameters as they are known now, or to go on with another path."""
        assert self._header is not None
        current().budget.step()
        self.restore = True
        if self._runs is not None:
            self._begin_path()
            self._header.reopen()
            self._header.end_trip()
            self.env = self._header.settle_kinds(self._at_header)
            return
        self._inner = Scope()
        current().decisions.rolling.append(Round(current().builder.cursor, self._loop, self._inner.clock))
        self.env = self._header.open({n for n in self.names if n not in self._entry})
        self._at_header = dict(self.env)
        waiting = (self._breaks, self._tokens, self._continues, self._exits)
        self._runs = PartedTrips(self._loop, self._header.block, waiting, self._inner.clock)
        self.env = self._header.settle_kinds(self._at_header)

    def _begin_path(self) -> None:
        """Begin another path through the body, as old as the first."""
        assert self._inner is not None
        began, self._inner = self._inner.clock, Scope()
        self._inner.clock = began

    def _end_run(self) -> None:
        """Take back what a path through the body has changed."""
        session = current()
        assert self._inner is not None
        session.journal.close_to(self._inner.depth + 1)
        session.journal.rollback(self._inner.mark)
        self._inner.close()

    def _record_exit(self, cond: Any, variables: dict[str, Any]) -> PathState:
        """Record the loop's condition; return the path that leaves here, which goes on after the loop."""
        session = current()
        body, leave = session.builder.new_block("body"), session.builder.new_block("exit")
        session.builder.branch(cond, body, leave)
        session.builder.block = leave
        path = capture_path(self._own(variables), self._outer.mark)
        session.builder.block = body
        return path

    def _leave_rolled(self, cond: Any, variables: dict[str, Any]) -> None:
        """Record the condition of a rolled loop, on each of the paths that part before it."""
        path = self._record_exit(cond, variables)
        if not current().builder.is_copied(self._outer.clock):
            self._exits.append(path)

    def _close_rolled(self, alive: bool) -> bool:
        """End a round: either the header was general enough, or another round is needed."""
        session, scope, header = current(), self._inner, self._header
        assert scope is not None and header is not None and self._runs is not None
        if alive:
            self._continues.append(capture_path(self._variables, scope.mark))
        if self._runs.another():
            self._end_run()
            return True
        paths, self._continues, self._runs = self._continues, [], None
        if paths:
            session.journal.rollback(scope.mark)
            header.reopen()
            env, _ = join_paths(paths, scope, self._decision(), "continue", self._differing())
            header.end_trip()
            env = self._next_trip(env)
            self._refuse_advanced()
            journal = session.journal
            if not header.close(env, journal.changes(scope.mark), journal.before(scope.mark)):
                self._undo_round()
                return True
        self._end_run()
        session.decisions.end_rolled(self._saved[2], self._loop)
        self._rolling = False
        if self._loop.most is not None and len(self._breaks) == self._saved[0]:
            header.settle()
        last, self._exits = self._exits, []
        self._leave_normally(last)
        return True

    def _leave_normally(self, last: list[PathState]) -> None:
        """Join the paths on which the loop's condition fails, and go on there."""
        exits = [*self._early_exits, *last]
        if self._early_exits:
            current().journal.rollback(self._outer.mark)
        self._early_exits = []
        if self.completed and not exits:
            return
        self.completed = bool(exits)
        if not exits:
            self._dead = self.stop = True
            return
        decision, differing = self._decision(), self._differing()
        if not self._breaks:
            self._release()
        self.env, _ = join_paths(exits, self._outer, decision, "exit", differing, self._header is not None)
        self._variables = self.env
        self.restore = True

    # -- unrolled iterations of loops with a run-time condition ------------------------------------------------------
    def _peel(self, cond: Any, variables: dict[str, Any]) -> bool | None:
        """Record one more unrolled iteration. Return whether it runs; None if the loop has no more of them."""
        session = current()
        if self._trips >= self._loop.unroll:
            return None
        self._trips += 1
        decided = session.decisions.decide_exit(cond) if self._bounded() else session.decisions.decided(cond)
        if decided is None:
            self._tokens.append(session.decisions.open(cond))
            path = self._record_exit(cond, variables)
            session.decisions.wait(self._tokens[-1])
            self._early_exits.append(path)
        return decided is not False

    def _end_at_bound(self, cond: Any, variables: dict[str, Any]) -> None:
        """After the last unrolled iteration of a bounded loop: one more is a run-time error."""
        session = current()
        path = self._record_exit(cond, variables)
        self._raise_bound()
        session.builder.block = path.block

    def _raise_bound(self) -> None:
        session = current()
        if self._loop.refusal is not None:
            raise self._loop.refusal
        message = f"a loop runs more than max_loop_trips = {session.limits.loop_trips} times"
        session.builder.terminate(Raise("RuntimeError", message, session.origin(), limit=True))
        exits().departures += 1

    def _bounded(self) -> bool:
        return self._loop.unroll > 1

    def _check_trips(self) -> None:
        """Record the bound's check in the body of a rolled loop."""
        session = current()
        if session.limits.loop_trips is None:
            return
        assert self._header is not None
        over = scalars.operand_of(self._header.extra["<trips>"] >= session.limits.loop_trips)
        bad, fine = session.builder.new_block("bound"), session.builder.new_block("body")
        session.builder.branch(over, bad, fine)
        session.builder.block = bad
        self._raise_bound()
        session.builder.block = fine

    def _hidden(self) -> dict[str, Any]:
        return {} if current().limits.loop_trips is None else {"<trips>": self._trips}

    def _next_trip(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return what the header's variables are for the next trip: those at the end of this one, and the hidden ones."""
        assert self._header is not None
        trips = self._header.extra.get("<trips>")
        return variables if trips is None else {**variables, "<trips>": trips + 1}


def keep_their_lengths(changed: list[tuple[Place, Any, Any]]) -> bool:
    """Whether no container has more items than before a trip, or fewer: a header has no form for that."""
    return not any(isinstance(place, Contents) and len(before) != len(after) for place, before, after in changed)


class Else:
    """The ``else`` of a loop: a path that leaves it by a jump or an exception does not take along those that broke out of the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        loop = self._loop
        if error is None or isinstance(error, GeneratorExit) or not loop._breaks:
            return False
        loop._dead = isinstance(error, Dead) or loop._leave_others_waiting(error)
        return loop._dead
