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
from dycl_tvm.frontend.trace.values.storage import tensor_type
from dycl_tvm.hcfg.nodes import Block, Raise

#: The hidden variable that counts the calls that are not over.
_DEPTH = "<depth>"


class Recursive:
    """The functions, by their code, that were seen to call themselves as often as the data say.

    With each, whether nothing that Python knows will end that.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, bool] = {}


@dataclass
class _Activation:
    """A call that is not over, and what was known when it began."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    opened: int
    departures: int
    rounds: int
    touches: int


class Recursions(OfOneRun):
    """The calls of the run at hand that are not over."""

    def __init__(self) -> None:
        self.active: dict[types.CodeType, list[_Activation]] = {}
        self.procedures: dict[types.CodeType, list[Procedure]] = {}
        #: The functions whose calls are not looked at: their recursion is being unrolled.
        self.unrolled: dict[types.CodeType, UnsupportedError] = {}
        #: Those whose outermost call was made as it stands.
        self.peeled: set[types.CodeType] = set()

    def call(self, function: types.FunctionType, made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the rewritten form of a function."""
        code = code_of(function)
        procedures = self.procedures.get(code)
        if procedures:
            return procedures[-1].call_again(function, args, kwargs)
        session = current()
        endless = session.get(Recursive).codes.get(code)
        if endless is not None and code not in self.unrolled:
            return Procedure(function, made, self).call(args, kwargs)
        active = self.active.setdefault(code, [])
        decisions = session.decisions
        here = _Activation((args, kwargs), len(decisions.opened), exits().departures, len(decisions.rolling), session.journal.touches)
        if active and endless is None:
            self._look(code, active, here)
        elif endless is not None and len(active) > MAX_TRIPS and (endless or sum(decisions.forks.values()) > MAX_TRIPS):
            raise self.unrolled[code]
        active.append(here)
        try:
            return made(*args, **kwargs)
        finally:
            active.pop()

    def _look(self, code: types.CodeType, active: list[_Activation], here: _Activation) -> None:
        """Begin anew if the data decide how deep a function calls itself: if nothing that Python knows changes, or it goes on for long."""
        before = active[-1]
        decided = here.opened > before.opened or here.departures != before.departures or here.rounds > before.rounds
        if code.co_flags & inspect.CO_GENERATOR or not decided:
            return
        endless = here.touches == before.touches and _alike(capture(before.arguments), capture(here.arguments))
        if endless or len(active) >= MAX_TRIPS:
            current().get(Recursive).codes[code] = endless
            raise Again


def _alike(a: Captured, b: Captured) -> bool:
    """Whether all that Python knows of two values is the same."""
    if isinstance(a, TensorLeaf) and isinstance(b, TensorLeaf):
        return tensor_type(a.obj) == tensor_type(b.obj)
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
        self._code = code_of(function)
        self._signature = inspect.Signature.from_callable(function, follow_wrapped=False)
        self._results: Results | None = None
        self.advanced = ""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the outermost call."""
        session = current()
        exits().offer_root(False)
        self._loop = session.decisions.loop()
        self._loop.recursion, self._loop.peeled = True, self._code in self._recursions.peeled
        if self._loop.unroll:
            return self._unrolled(args, kwargs)
        self._loop.simply = True
        self._clock = next(clock)
        self._saved = session.builder.mark(), session.decisions.checkpoint(), exits().checkpoint()
        self._outside = len(session.handlers), session.native_depth, session.called_depth
        self._given = self._bound(args, kwargs)
        self._depth: Any = 1
        self._entry = Entry(self._given, {_DEPTH: self._depth}, self._loop, self._clock)
        procedures = self._recursions.procedures.setdefault(self._code, [])
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
        calls = self._recursions.active.pop(self._code, None)
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
            if calls is not None:
                self._recursions.active[self._code] = calls
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
            self._recursions.peeled.add(self._code)
            try:
                return self._made(*args, **kwargs)
            finally:
                self._recursions.peeled.remove(self._code)
        unrolled, refusal = self._recursions.unrolled, self._loop.refusal
        assert refusal is not None
        unrolled[self._code] = refusal
        try:
            return self._recursions.call(self._function, self._made, args, kwargs)
        except StagingLimitError as error:
            raise StagingLimitError(f"{error.reason}: {refusal.reason}", error.origin, refusal.suggestion) from None
        finally:
            del unrolled[self._code]
