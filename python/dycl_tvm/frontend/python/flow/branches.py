# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operators behind ``if``, ``return`` and function bodies: exploring both sides in place.

A symbolic ``if`` runs its body, takes down the state that it leaves, undoes it, runs the other side, and joins the two. A side
that leaves by ``return``, ``break`` or ``continue`` hands its state to the target of the jump, where it is joined with the
others that come there; at the outermost function it is a return site of its own, and nothing is joined. So early
exits and skipped layers are both staged in one run, in time linear in their number.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dycl_tvm.errors import DyclError
from dycl_tvm.frontend.python.flow.exits import exits, is_users, own_errors
from dycl_tvm.frontend.python.flow.operands import evaluated
from dycl_tvm.frontend.python.flow.truth import answers_by_code, truth
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import ControlFlow, Dead, Jump
from dycl_tvm.frontend.trace.join.captured import PathState, capture_path
from dycl_tvm.frontend.trace.join.join import Join
from dycl_tvm.frontend.trace.join.kinds import go_on
from dycl_tvm.frontend.trace.join.mismatch import Mismatches, between_paths
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import counts
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import is_of_program
from dycl_tvm.frontend.trace.values.number_tests import Several
from dycl_tvm.hcfg.nodes import Operand, Value


class Scope:
    """What is joined at one place: the paths that wait there, and where the journal stood at its beginning."""

    def __init__(self) -> None:
        session = current()
        self.depth = session.journal.depth()
        self.mark = session.journal.open()
        self.clock = next(clock)
        if exits().frames:  # what its variables were is known here: assignments to them are not seen until an inner function runs
            exits().frames[-1].save_cells()

    def close(self) -> None:
        """Close the journal's scope, and those left open inside by an exception."""
        current().journal.close_to(self.depth)


def join_paths(
    paths: list[PathState], scope: Scope, decision: Any, name: str, differing: Mismatches, of_loop: bool = False
) -> tuple[dict[str, Any], Any]:
    """Go on where several paths meet, which may have left a rolled loop; return the joined variables and value."""
    if len(paths) == 1:
        return go_on(paths[0])
    return Join(paths, scope.clock, decision, name, differing, of_loop).run()


class If:
    """One execution of an ``if`` statement. See :mod:`.rewrite` for the code that drives it."""

    _told: Any = None
    _stays = True

    def __init__(self, test: Any, names: tuple[str, ...], fork: bool, variables: dict[str, Any]) -> None:
        session = current()
        self.symbolic = self.restore = self.merged = False
        self.side = True
        self.names = names
        self.env: dict[str, Any] = {}
        self._round = 0
        test = counts.tested(test)
        cond = truth(test)
        self._told = test_in(test)
        if isinstance(cond, Value) and fork:
            cond = session.decisions.decide(cond)
        elif isinstance(cond, Value):
            decided = session.decisions.answer(cond)
            if decided is None:
                self._begin(cond, variables)
            else:
                learn(self._told, decided, session.decisions.is_answered_for_good(cond))
                cond = decided
        if not self.symbolic:
            self.side = bool(cond)

    def _begin(self, cond: Operand, variables: dict[str, Any]) -> None:
        session = current()
        self.symbolic = True
        self._entry = {n: variables[n] for n in self.names if n in variables}
        self._token = session.decisions.open(cond)
        self._scope = Scope()
        self._sides = (session.builder.new_block("then"), session.builder.new_block("else"))
        session.builder.branch(cond, *self._sides)
        self._paths: list[PathState] = []
        self._kept = False

    def next(self) -> bool:
        """Return whether a side is to be run."""
        self._round += 1
        if not self.symbolic:
            return self._round == 1
        session = current()
        if self._round <= 2:
            begin_told(self._told, self._round == 1)
            self.side, self.restore, self.env = self._round == 1, self._round == 2, self._entry
            session.builder.block = self._sides[self._round - 1]
            if self._round == 2 and not self._paths:
                self._end_joining()  # the first side has left for good: nothing is joined with it
            return True
        self._scope.close()
        self._end_joining()
        if not self._paths:
            raise Dead
        differing = between_paths([self._token], ("if the test holds", "if not"))
        self.env, _ = join_paths(self._paths, self._scope, self._token.target, "join", differing)
        self.merged = True
        if len(self._paths) == 1 and not _is_of_loop(self._told):  # the other side has left
            begin_told(self._told, self._stays)
        return False

    def _end_joining(self) -> None:
        """No side waits any more to be joined with the other where they end."""
        self._token.joins = False
        if not self._kept:
            current().decisions.close(self._token)

    def leave(self, variables: dict[str, Any]) -> None:
        """Take down the state at the end of a side."""
        self._stays = self._round == 1
        self._paths.append(capture_path({n: variables[n] for n in self.names if n in variables}, self._scope.mark))

    def __enter__(self) -> None:
        if self.symbolic:
            current().heap.undoable.append((self._scope.clock, self._token))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not self.symbolic or (isinstance(error, ControlFlow) and isinstance(error, GeneratorExit)):
            return False
        session = current()
        session.heap.undoable.remove((self._scope.clock, self._token))
        if isinstance(error, Jump):
            with exits().beyond(error.target.modes):
                self._kept |= error.target.receive(error, self._token)
            self._token.bound_for = max(self._token.bound_for, error.target.began())
        elif isinstance(error, ControlFlow) and not isinstance(error, Dead):
            return False
        elif error is not None and _is_the_programs(error):
            if isinstance(error, DyclError):
                return False
            if not (isinstance(error, Exception) and exits().may_raise(error)):
                if self._round == 1 and session.decisions.follow(self._token):
                    self._scope.close()
                    learn(self._told, True, for_good=True)  # as a run does that begins with this decision
                    return False
                session.decisions.fork(self._token.target, f"one side raises {type(error).__name__}")
            else:
                exits().leave_by_raise(error)
        elif error is not None and not isinstance(error, Dead):
            return False
        session.journal.rollback(self._scope.mark)
        return True


def _is_the_programs(error: BaseException) -> bool:
    """Whether an exception may be one that the program raises, and goes on from in a handler: an interrupt of the build is none.

    Python raises GeneratorExit in a generator that the program closes; the program may raise that again.
    """
    return isinstance(error, (Exception, GeneratorExit)) or is_of_program(error)


def raised_alone(error: BaseException, decision: Callable[[], Any]) -> bool:
    """End the path at hand by an exception while others go on; return whether that could be done.

    If a handler may catch it, the paths part at ``decision`` instead.
    """
    if isinstance(error, DyclError) or not _is_the_programs(error):
        return False
    if isinstance(error, Exception) and exits().may_raise(error):
        exits().leave_by_raise(error)
        return True
    if not isinstance(error, Exception) or is_users(error) or current().may_be_caught(type(error)):
        current().decisions.fork(decision(), f"one path raises {type(error).__name__}")
    return False


class Frame:
    """One execution of a function body that has ``return`` in it.

    Parameters
    ----------
    cells : function, optional
        Closes over the variables of the body that live longer than it, or belong to a function around it, and are assigned in it.
    own : tuple of str
        Those that belong to the body itself: their cells are made for this call.
    """

    def __init__(self, cells: types.FunctionType | None = None, own: tuple[str, ...] = ()) -> None:
        self._cells = cells
        if cells is not None and own:
            for name, cell in zip(cells.__code__.co_freevars, cells.__closure__ or ()):
                if name in own:
                    current().heap.born(cell)
        self.root = exits().take_root()
        self.value: Any = None
        self._paths: list[PathState] = []
        self._tokens: list[Any] = []

    def jump(self, value: Any) -> Jump:
        """Make the exception that returns ``value``."""
        return Jump(self, "return", value, origin=current().origin())

    def receive(self, jump: Jump, token: Any) -> bool:
        """Take over a side that returns; return whether it waits here to be joined."""
        if self.root:
            if current().builder.block is not None:  # else a function that was called last has left the network
                exits().leave_by_return(jump.value, jump.origin)
            return False
        exits().departures += 1
        if current().builder.is_copied(self._scope.clock):
            return True
        self._paths.append(capture_path({}, self._scope.mark, jump.value, has_value=True))
        if token is not None:
            self._tokens.append(token)
            current().decisions.wait(token)
        return True

    def began(self) -> int:
        """Return when the body began to run."""
        return self._scope.clock

    def __enter__(self) -> None:
        self._scope = Scope()
        self.modes = len(exits().modes)
        self.save_cells()
        exits().frames.append(self)

    def save_cells(self) -> None:
        """Save the variables of the body that inner functions may have too."""
        if self._cells is not None:
            current().heap.changing_cells(self._cells)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, GeneratorExit):
            return False
        session = current()
        exits().frames.remove(self)
        if error is not None and self._paths and raised_alone(error, self._decision):
            error = Dead()
        mine = isinstance(error, Jump) and error.target is self
        if error is not None and not mine and not isinstance(error, Dead):
            return False
        value = error.value if isinstance(error, Jump) else None
        alive = not isinstance(error, Dead)
        if self.root:
            self._scope.close()
            if alive and session.builder.block is not None:
                exits().leave_by_return(value, error.origin if isinstance(error, Jump) else session.origin())
            return True
        if alive and self._paths:
            self._paths.append(capture_path({}, self._scope.mark, value, has_value=True))
        if not self._paths:
            self._scope.close()
            self.value = value
            return alive
        session.journal.rollback(self._scope.mark)
        self._scope.close()
        decision = self._decision()
        for token in self._tokens:
            session.decisions.close(token)
        _, self.value = join_paths(self._paths, self._scope, decision, "returned", between_paths(self._tokens))
        return True

    def _decision(self) -> Any:
        return min((t.target for t in self._tokens), key=lambda t: t.index) if self._tokens else current().decisions.loop()


class Finally:
    """What a ``finally`` surrounds: a jump in the ``finally`` ends any exception; it runs where the program comes to it.

    Parameters
    ----------
    jumps : bool
        Whether the ``finally`` has a jump.
    statements : function, optional
        Does what the ``finally`` does, where an exception passes on a path that ends with it.
    """

    runs = True
    yields = False

    def __init__(self, jumps: bool, statements: types.FunctionType | None = None) -> None:
        self._jumps, self._statements = jumps, statements
        self._variables = sys._getframe(1).f_code.co_cellvars
        self.passes_on = not jumps

    def __enter__(self) -> None:
        self._session = current()
        self._modes = len(exits().modes)
        self._session.handlers.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session.leave(self)
        self._jump = error if isinstance(error, Jump) else None
        self.runs = self._jump is not None or not isinstance(error, (ControlFlow, DyclError))

    def end(self, variables: dict[str, Any]) -> None:
        """Note the variables behind the statements: a ``break`` or ``continue`` through them leaves those at its target."""
        if self._jump is not None and self._jump.kind != "return":
            self._jump.env = {n: variables[n] for n in self._jump.target.names if n in variables}

    def catches(self, error: Exception) -> bool:
        """Whether the ``finally`` has a jump, which would end any exception."""
        return self._jumps

    def lets_pass(self, error: Exception) -> bool:
        """Whether the exception goes on."""
        return self._statements is not None and not self._jumps

    def passing(self, error: Exception) -> None:
        """Do what the ``finally`` does."""
        with exits().beyond(self._modes), own_errors():
            try:
                raise error
            except type(error):  # which its statements may ask for
                self._run_statements()

    def _run_statements(self) -> None:
        assert self._statements is not None
        try:
            self._statements()
        except NameError as unset:
            if type(unset) is NameError and unset.name in self._variables:
                raise UnboundLocalError(f"local variable '{unset.name}' is read where it is not set") from None
            raise

    def is_for_libraries(self) -> bool:
        """Whether there is such a jump."""
        return self._jumps


def _is_of_loop(told: Any) -> bool:
    return told is not None and bool(getattr(told.loop, "is_loop", False))


def begin_told(told: Any, side: bool) -> None:
    """Note what a test tells where it has an answer; it is forgotten after all that is learned from here on."""
    if told is not None:
        before = told.begin(side)
        current().journal.learn(lambda: told.end(before))


def learn(told: Any, side: bool, for_good: bool = False) -> None:
    """Go on with one side alone: what its test tells of a number, or of a length, holds from here on.

    With ``for_good`` it does to the end of the run, else in the innermost scope. In a trip of a loop only what a test tells of the number
    of trips is noted; it holds in the trip.
    """
    rolling = current().decisions.rolling
    if for_good and told is not None and not _is_of_loop(told):
        told.begin(side)
    elif not rolling and not _is_of_loop(told):
        begin_told(told, side)
    elif rolling and told is not None and rolling[-1].loop is told.loop:
        told.begin(side)


def ifexp(test: Any, then: Any, orelse: Any) -> Any:
    """``then() if test else orelse()``."""
    session, test = current(), counts.tested(test)
    cond = truth(test)
    if isinstance(cond, Value):
        decided = session.decisions.answer(cond)
        if decided is None:
            return _explore_value(cond, then, orelse, test_in(test))
        learn(test_in(test), decided, session.decisions.is_answered_for_good(cond))
        cond = decided
    return evaluated(then if cond else orelse)


def _explore_value(cond: Operand, then: Any, orelse: Any, told: Any) -> Any:
    branch = If.__new__(If)
    branch._told = told
    branch.symbolic = branch.restore = branch.merged = False
    branch.names, branch.env, branch._round = (), {}, 0
    branch._begin(cond, {})
    while branch.next():
        with branch:
            value = evaluated(then if branch.side else orelse)
            branch._stays = branch.side
            branch._paths.append(capture_path({"the value": value}, branch._scope.mark))
    return branch.env["the value"]


class _Asked:
    """An operand that was asked for its truth where it stands, by code of the program: Python does not ask it again right behind it."""

    def __init__(self, value: Any, truth: bool) -> None:
        self.value, self.truth = value, truth


def bool_op_within(kind: str, condition: bool, first: Any, *rest: Any) -> Any:
    """An ``and`` or ``or`` whose result is asked for its truth by another around it."""
    return bool_op(kind, condition, first, *rest, within=True)


def bool_op(kind: str, condition: bool, first: Any, *rest: Any, within: bool = False) -> Any:
    """``first and rest[0]() and ...`` (or ``or``); with ``condition`` only the truth of the result is wanted."""
    value = first
    for position, thunk in enumerate(rest):
        value = counts.tested(value) if condition else value
        cond: Any = value.truth if type(value) is _Asked else truth(value)
        value = value.value if type(value) is _Asked else value
        ending = _Asked(value, kind == "or") if within and answers_by_code(value) else value
        if not isinstance(cond, Value):
            if bool(cond) == (kind == "or"):
                return ending
            value = evaluated(thunk)
            continue

        operands = [value]
        is_bool = condition or (scalars.is_symbolic(value) and value.node.value is cond)

        def others(thunk: Any = thunk, position: int = position, operands: list[Any] = operands) -> Any:
            result = bool_op(kind, condition, evaluated(thunk), *rest[position + 1 :], within=within)
            operands.append(result)
            return scalars.wrap(truth(result)) if condition else result

        def stop(value: Any = ending, is_bool: bool = is_bool) -> Any:
            return kind == "or" if is_bool else value  # a bool is known where it was tested

        test = scalars.wrap(cond)
        test.node.test = test_in(value)
        made = ifexp(test, others, stop) if kind == "and" else ifexp(test, stop, others)
        if is_bool and operands[-1] is (kind == "and"):  # `value and True`
            return test
        if scalars.is_symbolic(made) and not any(made is x for x in operands):  # what an operand tells is told of itself
            made.node.test = Several.of([*map(test_in, operands)], all=kind == "and")
        return made
    return value


def test_in(x: Any) -> Any:
    """Return which comparison a value is; None if it is none, or that is not known."""
    return x.node.test if scalars.is_symbolic(x) else None


def tested(x: Any) -> Any:
    """Return the truth of an operand of which only that is wanted."""
    x = counts.tested(x)
    cond = truth(x)
    if not isinstance(cond, Value):
        return cond
    made = scalars.wrap(cond)
    made.node.test = test_in(x)
    return made


def decided(x: Any) -> bool:
    """Return the truth of an operand that Python asks: each has a path of its own."""
    return bool(tested(x))


def not_(x: Any) -> Any:
    """``not x``."""
    cond = tested(x)
    if not scalars.is_symbolic(cond):
        return not cond
    made, test = scalars.logical_not(cond), cond.node.test
    made.node.test = test and test.negated()
    return made
