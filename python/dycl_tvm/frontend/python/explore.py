# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exploring a forward: it is run on tensors without data until what it does on every path has been recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.errors import DyclError, ForwardError, PathExplosionError, StagingLimitError
from dycl_tvm.frontend.python.flow.exits import exits, is_users, origin_of
from dycl_tvm.frontend.python.program import Program
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import Again, ControlFlow, Dead, ForkRequired
from dycl_tvm.frontend.trace.join.lengths_by_path import LengthsByPath
from dycl_tvm.frontend.trace.record import Event
from dycl_tvm.frontend.trace.session import Session
from dycl_tvm.frontend.trace.values.blame import is_of_program
from dycl_tvm.frontend.trace.values.recording import recording
from dycl_tvm.hcfg.nodes import Value


class Exploration:
    """The runs of one program.

    Parameters
    ----------
    session : Session
        Keeps the :class:`Program`.
    state_params : list of Value
        The parameters of the entry that stand for the program's state.
    run : callable
        Runs the program once.
    """

    def __init__(self, session: Session, state_params: list[Value], run: Callable[[], Any]) -> None:
        self._session, self._state_params, self._run = session, state_params, run

    def explore(self) -> None:
        """Run the program until every path has been recorded."""
        decisions = self._session.decisions
        decisions.pending = [[]]
        runs = 0
        while decisions.pending:
            runs += 1
            if runs - decisions.tries > self._session.limits.runs:
                self._explode()
            self._run_once(decisions.pending.pop())
            if self._session.get(LengthsByPath).part_too_often(decisions.forks):
                raise Again

    def _run_once(self, prefix: list[Event]) -> None:
        session = self._session
        with recording(session, prefix):
            try:
                session.get(Program).state.enter(self._state_params)
                session.heap.run_started = next(clock)
                result = self._run()
                if session.builder.block is not None:
                    exits().leave_by_return(result)
            except ForkRequired as fork:
                session.decisions.split(fork)
            except Dead:
                pass
            except StagingLimitError:
                raise
            except DyclError as error:
                if not session.decisions.split_counted(error):
                    raise
            except Exception as error:
                try:
                    self._user_error(error)
                except ForkRequired as fork:  # its message depends on the path
                    session.decisions.split(fork)
            except BaseException as error:
                if isinstance(error, ControlFlow) or not is_of_program(error):
                    raise
                raise ForwardError(
                    f"the forward raises {type(error).__name__}, which is no Exception", origin_of(error), "raise a class that is one"
                ) from error

    def _user_error(self, error: Exception) -> None:
        """An exception that the forward raised on this path."""
        session = self._session
        if session.builder.block is None or not is_users(error):
            refusal = ForwardError(
                f"the forward raised {type(error).__name__} while it was compiled: {error}",
                origin_of(error),
                "check that the model runs in eager on the example inputs; if it does, this construct is not supported yet",
            )
            if session.decisions.split_counted(refusal):
                return
            raise refusal from error
        waiting = session.decisions.opened
        if waiting:
            # other paths wait to be joined with this one, which will not come: part them
            session.decisions.split(ForkRequired(waiting[0].target, f"one path raises {type(error).__name__}"))
        else:
            exits().leave_by_raise(error)

    def _explode(self) -> None:
        forks, most = self._session.decisions.forks, self._session.limits.runs
        origin = max(forks, key=lambda o: forks[o])
        times = f"more than {most} paths cannot share their continuation; this decision alone forks {forks[origin]} times"
        cause = self._session.decisions.causes.get(origin)
        raise PathExplosionError(
            times if cause is None else f"{times}, the last time because {cause}",
            origin,
            "give the variables that the sides set the same type and structure on both sides, or raise max_paths",
        )
