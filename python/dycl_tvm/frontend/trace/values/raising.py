# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exceptions that leave the network from within a ``try`` or ``with``.

Where no handler ends an exception, the path that it is raised on is recorded to its end where it is raised: what each ``finally`` and
``__exit__`` does on its way is done there and then, and taken back. So such a path needs no run of its own, and a loop around it no trips
of their own. Only where a handler may end it does the program have to go on from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import ControlFlow, Dead
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.hcfg.nodes import Operand, Origin, Raise, Value


def surely_leaves(error: Exception) -> bool:
    """Whether an exception that is raised now leaves the program, and :func:`leave` can do all that is done on its way."""
    session = current()
    if not session.may_be_caught(type(error)):
        return True
    around, session.handlers = session.handlers, []
    by_others = session.may_be_caught(type(error))
    session.handlers = around
    return not by_others and all(not h.yields and h.lets_pass(error) for h in around)


def leave(error: Exception, origin_of: Callable[[Exception], Origin | None], message_of: Callable[[Exception], str] = str) -> None:
    """End the path at hand by an exception that surely leaves."""
    builder = current().builder
    try:
        error = _passed(error)
    except Dead:  # what was done on its way has ended all paths
        return
    builder.terminate(Raise(type(error).__name__, message_of(error), origin_of(error)))


def _passed(error: Exception) -> Exception:
    """Do what the handlers around do when an exception passes them, and undo what they change; return the one that leaves the last."""
    session = current()
    around = session.handlers
    if not around:
        session.builder.raising()
        return error
    journal, heap = session.journal, session.heap
    depth, mark = journal.depth(), journal.open()
    waiting = [(next(clock), decision) for decision in session.decisions.opened[-1:]]
    heap.undoable += waiting
    try:
        for i in reversed(range(len(around))):
            session.handlers = around[:i]
            try:
                with nullcontext() if torch._C._is_torch_function_mode_enabled() else session.functions:  # type: ignore[attr-defined]
                    around[i].passing(error)
            except (ControlFlow, DyclError):
                raise
            except Exception as other:
                if not surely_leaves(other):
                    raise UnsupportedError(
                        f"{type(error).__name__} passes a `finally` or `with` that raises {type(other).__name__}, which may be caught",
                        session.origin(),
                        "do there what cannot fail only",
                    ) from other
                error = other
        session.builder.raising()  # before what was done on the way is undone
    finally:
        session.handlers = around
        for entry in waiting:
            heap.undoable.remove(entry)
        journal.rollback(mark)
        journal.close_to(depth)
    return error


def limit(cond: Operand, message: str) -> None:
    """Go on where a condition holds; elsewhere the call ends at a bound of staging's or the user's, which eager does not have.

    So no handler of the program's is asked.
    """
    builder = current().builder
    beyond = Raise("RuntimeError", message, current().origin(), limit=True)
    if not isinstance(cond, Value):
        if cond:
            return
        if not current().decisions.is_one_of_several():
            raise UnsupportedError(f"{message} in every call", current().origin(), "give a larger bound")
        builder.terminate(beyond)
        raise Dead
    inside, outside = builder.new_block("inside"), builder.new_block("outside")
    builder.branch(cond, inside, outside)
    builder.block = outside
    builder.terminate(beyond)
    builder.block = inside


def check(cond: Operand, error: Exception, wanted: bool = True) -> None:
    """Go on where a condition is as wanted; elsewhere the path raises what eager raises there."""
    session, decisions, builder = current(), current().decisions, current().builder
    error.__dycl_judged__ = True  # type: ignore[attr-defined]  # eager raises it too, see blame.py
    if not isinstance(cond, Value):
        if cond != wanted:
            raise error
        return
    if not surely_leaves(error):
        if decisions.decide(cond) != wanted:
            raise error
        return
    known = decisions.answer(cond) if session.handlers else None
    if known is not None:
        if known != wanted:
            raise error
        return
    token = decisions.open(cond) if session.handlers else None
    inside, outside = builder.new_block("inside"), builder.new_block("outside")
    builder.branch(cond, *((inside, outside) if wanted else (outside, inside)))
    builder.block = outside
    origin = session.origin()
    leave(error, lambda _: origin)
    if token is not None:
        decisions.close(token)
    builder.block = inside


def expected(cond: Operand) -> bool:
    """Answer PyTorch's own functions, which check with ``torch._check_with`` what they are given: where it does not hold they raise."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not torch._check_with.__code__:
        frame = frame.f_back
    if frame.f_code is not torch._check_with.__code__:
        return current().decisions.decide(cond)
    check(cond, frame.f_locals["error_type"]("what PyTorch checks of sizes does not hold"))  # its text would have the sizes
    return True
