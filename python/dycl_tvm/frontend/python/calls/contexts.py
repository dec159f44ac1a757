# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operator behind ``with``: managers are entered and left by calls, and see what they would in eager mode."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python.calls.call import call
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.trace.control_flow import ControlFlow, Dead, Jump
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current, staging
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.hcfg.nodes import Value


class With:
    """One execution of a ``with`` statement.

    Parameters
    ----------
    manager : object
        The context manager.
    harmless : bool
        By its name it is one of PyTorch's that only sets a mode: jumps may leave it as if it were not there.
    """

    def __init__(self, manager: Any, harmless: bool) -> None:
        if isinstance(manager, Poison):
            use(manager)
        self._manager, self._harmless = manager, harmless
        kind: Any = type(manager)
        if harmless and not kind.__module__.startswith("torch"):
            raise UnsupportedError(
                f"a context manager of the class {kind.__qualname__} has the name of one of PyTorch's",
                current().origin(),
                "give it another name",
            )
        self._enter, self._exit = _method(kind, "__enter__"), _method(kind, "__exit__")

    def __enter__(self) -> Any:
        before = SETTINGS.read()
        entered = call(self._enter, self._manager)
        self._session = current()
        if self._harmless:
            exits().modes.append(before)
        self._session.guard_depth += not self._harmless  # it may swallow an exception
        return entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not staging() or current() is not self._session:
            return False  # a generator of an earlier stage is given up
        self._session.guard_depth -= not self._harmless
        if self._harmless:
            exits().modes.pop()
        if error is None or isinstance(error, Jump):
            call(self._exit, self._manager, None, None, None)
            return False
        if isinstance(error, (ControlFlow, DyclError)):
            if not isinstance(error, Dead) or self._harmless:
                call(self._exit, self._manager, kind, error, trace)  # what it does is taken back with all that this run did
            return False
        swallowed = truth(call(self._exit, self._manager, kind, error, trace))
        return current().decisions.decide(swallowed) if isinstance(swallowed, Value) else bool(swallowed)


def _method(kind: Any, name: str) -> Any:
    try:
        return getattr(kind, name)
    except AttributeError:
        raise of_program(TypeError(f"'{kind.__name__}' object does not support the context manager protocol")) from None
