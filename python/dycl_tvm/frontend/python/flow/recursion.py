# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recursion: functions that call themselves, directly or by way of others.

A recursion whose depth Python knows is unrolled, as all calls are. One whose depth is decided at run time is staged as a *procedure*:
its body is run once with an entry whose parameters stand for what changes from call to call, as at the header of a loop; and a call
within it goes back to the entry. What the calls return is found likewise: first nothing is known of it, and paths
that call again end there; what the others return is what the calls of the next round return, until nothing new differs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dycl_tvm.errors import StagingLimitError, UnsupportedError
from dycl_tvm.frontend.python.flow.branches import Scope, raised_alone
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.source.ownership import code_of
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import Again, Dead, ForkRequired, Restart
from dycl_tvm.frontend.trace.decisions import Round
from dycl_tvm.frontend.trace.join.captured import Captured, Items, NumberLeaf, TensorLeaf, capture, same_number, same_plain, same_structure
from dycl_tvm.frontend.trace.join.procedure import Entry, Results
from dycl_tvm.frontend.trace.limits import MAX_TRIPS
from dycl_tvm.frontend.trace.procedures import Call
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import same_kind
from dycl_tvm.frontend.trace.values.number_tests import answers_by_bounds
from dycl_tvm.hcfg.nodes import Block, Raise

#: The hidden variable that counts the calls that are not over.
_DEPTH = "<depth>"


class Recursive:
    """The functions, by the identity of their code, that were seen to call themselves as often as the data say."""

    def __init__(self) -> None:
        self._codes: dict[int, tuple[types.CodeType, bool]] = {}

    def is_endless(self, code: types.CodeType) -> bool | None:
        """Whether nothing that Python knows will end a recursion; None for a function that was not seen to have one."""
        known = self._codes.get(id(code))
        return None if known is None else known[1]

    def note(self, code: types.CodeType, endless: bool) -> None:
        """Take a function down."""
        self._codes[id(code)] = code, endless


@dataclass
class _Activation:
    """A call that is not over, and what was known when it began."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    opened: int
    departures: int
    rounds: int
    touches: int
    answers: int


class _Calls:
    """The calls of a function that are not over."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code  # is kept, so that its identity stays its own
        self.active: list[_Activation] = []
        self.procedures: list[Procedure] = []
        #: Why they cannot be a procedure, while they are made as they stand.
        self.unrolled: UnsupportedError | None = None
        #: Whether the outermost one is made so.
        self.peeled = False


class Recursions(OfOneRun):
    """The calls of the run at hand that are not over, by the identity of the code of functions."""

    def __init__(self) -> None:
        self._known: dict[int, _Calls] = {}

    @property
    def under_way(self) -> bool:
        """Whether a function has called itself."""
        return any(calls.procedures or len(calls.active) > 1 for calls in self._known.values())

    def of(self, code: types.CodeType) -> _Calls:
        """Return the calls of the functions with some code."""
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = _Calls(code)
        return known

    def call(self, function: types.FunctionType, made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the rewritten form of a function."""
        code = code_of(function)
        calls = self.of(code)
        if calls.procedures:
            return calls.procedures[-1].call_again(function, args, kwargs)
        session = current()
        endless = session.get(Recursive).is_endless(code)
        if endless is not None and calls.unrolled is None:
            return Procedure(function, made, self).call(args, kwargs)
        active = calls.active
        decisions = session.decisions
        here = _Activation(
            (args, kwargs),
            opened=len(decisions.opened),
            departures=exits().departures,
            rounds=len(decisions.rolling),
            touches=session.journal.touches,
            answers=answers_by_bounds(),
        )
        if active and endless is None:
            self._look(code, active, here)
        elif endless is not None and len(active) > MAX_TRIPS and (endless or sum(decisions.forks.values()) > MAX_TRIPS):
            assert calls.unrolled is not None
            raise calls.unrolled
        active.append(here)
        try:
            return made(*args, **kwargs)
        finally:
            active.pop()

    def _look(self, code: types.CodeType, active: list[_Activation], here: _Activation) -> None:
        """Begin anew if the data decide how deep a function calls itself: if nothing that Python knows changes, or it goes on for long."""
        before = active[-1]
        decided = (
            here.opened > before.opened
            or here.departures != before.departures
            or here.rounds > before.rounds
            or here.answers > before.answers  # bounds tell how deep it goes at first, and not Python
        )
        if code.co_flags & inspect.CO_GENERATOR or not decided:
            return
        endless = here.touches == before.touches and _alike(capture(before.arguments), capture(here.arguments))
        if endless or len(active) >= MAX_TRIPS:
            current().get(Recursive).note(code, endless)
            raise Again


def _alike(a: Captured, b: Captured) -> bool:
    """Whether all that Python knows of two values is the same."""
    if isinstance(a, TensorLeaf) and isinstance(b, TensorLeaf):
        return same_kind(a.obj, b.obj)
    if isinstance(a, NumberLeaf) and isinstance(b, NumberLeaf):
        known_no_more = scalars.is_symbolic(b.obj) and scalars._kind(a.operand) == scalars._kind(b.operand)
        return known_no_more or same_number(a, b)
    if isinstance(a, Items) and isinstance(b, Items):
        return same_structure(a, b) and all(map(_alike, a.items, b.items))
    return a.obj is b.obj or (type(a) is type(b) and same_plain([a.obj, b.obj]))


class Procedure:
    """A call of a function that calls itself as often as the data say."""

    def __init__(self, function: types.FunctionType, made: Callable[..., Any], recursions: Recursions) -> None:
        self._function, self._made, self._recursions = function, made, recursions
        self._calls = recursions.of(code_of(function))
        self._signature = inspect.Signature.from_callable(function, follow_wrapped=False)
        self._results: Results | None = None
        self.advanced = ""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the outermost call."""
        session = current()
        exits().offer_root(False)
        self._loop = session.decisions.loop()
        self._loop.recursion, self._loop.peeled = True, self._calls.peeled
        if self._loop.unroll:
            return self._unrolled(args, kwargs)
        self._loop.simply = True
        self._clock = next(clock)
        self._saved = session.builder.mark(), session.decisions.checkpoint(), exits().checkpoint()
        self._outside = len(session.handlers), session.native_depth, session.called_depth
        self._given = self._bound(args, kwargs)
        self._depth: Any = 1
        self._entry = Entry(self._given, {_DEPTH: self._depth}, self._loop, self._clock)
        procedures = self._calls.procedures
        procedures.append(self)
        try:
            while not self._round():
                pass
        finally:
            procedures.pop()
        session.builder.block = self._back
        assert self._results is not None
        return self._results.after(self._back, self._entry.handed(self._given))

    def call_again(self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call within the procedure."""
        session = current()
        if function is not self._function:
            self._refuse("a function that calls itself is made anew by each call", "define it outside of itself")
        if (len(session.handlers), session.native_depth, session.called_depth) != self._outside:
            self._refuse(
                "a recursive call stands inside of try or with, or is made by a library or by Python itself",
                "call the function outside of try and with, by its name",
            )
        self._check_changes()
        back = session.builder.new_block("returned")
        given = self._bound(args, kwargs)
        if list(given) != list(self._given):
            self._refuse("a function calls itself with other keyword arguments", "give the same arguments in each call")
        journal = session.journal
        self._entry.lead = self._lead(back)
        if not self._entry.close({**given, _DEPTH: self._depth + 1}, journal.changes(self._scope.mark), journal.before(self._scope.mark)):
            raise Restart(self)
        if self._results is None:
            raise Dead  # what it returns is known when the others paths have been run
        session.builder.block = back
        self._called = True
        return self._results.after(back, self._entry.handed(given))

    def _lead(self, back: Block) -> Callable[[Block, list[Any]], None]:
        session = current()
        return lambda entry, args: session.builder.terminate(Call(back, entry, args, session.origin()))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    # -- one round -------------------------------------------------------------------------------------------------------
    def _round(self) -> bool:
        """Run the body; return whether the entry and the results were general enough."""
        session = current()
        session.budget.step()
        self._back = session.builder.new_block("returned")
        self._scope, self._called = Scope(), False
        session.decisions.rolling.append(Round(self._loop.index, self._loop))
        self._entry.lead = self._lead(self._back)
        variables = self._entry.open(set())
        self._depth = self._entry.extra[_DEPTH]
        self._check_depth()
        settled = self._run_body(variables)
        session.journal.close_to(self._scope.depth + 1)
        session.journal.rollback(self._scope.mark)
        self._scope.close()
        mark, decisions, left = self._saved
        if settled:
            session.decisions.end_rolled(decisions, self._loop)
            return True
        session.decisions.restore_checkpoint(decisions)
        exits().restore_checkpoint(left)
        session.builder.truncate(mark)
        return False

    def _run_body(self, variables: dict[str, Any]) -> bool:
        session = current()
        bound = inspect.BoundArguments(self._signature, variables)  # type: ignore[arg-type]  # in the order of the signature
        undoable = self._scope.clock, self
        session.heap.undoable.append(undoable)
        active, self._calls.active = self._calls.active, []
        value, alive = None, True
        try:
            value = self._made(*bound.args, **bound.kwargs)
        except Restart as restart:
            if restart.loop is not self:
                raise
            return False
        except Dead:
            alive = False
        except ForkRequired as fork:
            session.decisions.refuse_in_loop(fork, self._loop)
            raise
        except Exception as error:
            if not raised_alone(error, lambda: self._loop):
                raise
            alive = False
        finally:
            session.heap.undoable.remove(undoable)
            self._calls.active = active
        if self.advanced:
            self._refuse(self.advanced.replace("branch", "recursion"), "index a list or tensor by a counter instead of next()")
        if not alive:
            return self._end_without_return()
        self._check_changes()
        if self._results is not None and not self._called:
            self._refuse("a function calls itself on some of the ways only on which it was run", "")
        if self._results is None:
            self._results = Results(value, self._entry, self._loop, self._clock)
            return False
        journal = session.journal
        return self._results.close({"<value>": value}, journal.changes(self._scope.mark), journal.before(self._scope.mark))

    def _end_without_return(self) -> bool:
        if self._results is None:
            self._refuse("a function calls itself on every path that does not end in an error", "let one path return without a call of it")
        return False

    def _check_depth(self) -> None:
        """Record the bound's check."""
        session = current()
        most = session.limits.recursion
        bad, fine = session.builder.new_block("bound"), session.builder.new_block("body")
        session.builder.branch(scalars.operand_of(self._depth > most), bad, fine)
        session.builder.block = bad
        message = f"{self._function.__qualname__}() calls itself more than max_recursion = {most} times"
        session.builder.terminate(Raise("RecursionError", message, session.origin(), limit=True))
        exits().departures += 1
        session.builder.block = fine

    def _check_changes(self) -> None:
        if self._entry.changes_memory(current().journal.changes(self._scope.mark)):
            self._refuse("a tensor that a recursive function is given is changed in place", "compute a new one (y = y + 1), and return it")

    # -- what cannot be one procedure --------------------------------------------------------------------------------------
    def _refuse(self, reason: str, instead: str) -> None:
        current().decisions.unroll_recursion(self._loop, reason, instead=instead)

    def _unrolled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make this call as it stands, or all: then they are to end by themselves."""
        if not self._loop.peeled:
            self._calls.peeled = True
            try:
                return self._made(*args, **kwargs)
            finally:
                self._calls.peeled = False
        refusal = self._loop.refusal
        assert refusal is not None
        self._calls.unrolled = refusal
        try:
            return self._recursions.call(self._function, self._made, args, kwargs)
        except StagingLimitError as error:
            raise StagingLimitError(f"{error.reason}: {refusal.reason}", error.origin, refusal.suggestion) from None
        finally:
            self._calls.unrolled = None
