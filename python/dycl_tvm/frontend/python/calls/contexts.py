# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operator behind ``with``: managers are entered and left by calls, and see what they would in eager mode."""

from __future__ import annotations

import ast
import contextlib
import functools
import types
from types import TracebackType
from typing import Any

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python.calls.call import call
from dycl_tvm.frontend.python.flow.exits import exits, own_errors
from dycl_tvm.frontend.python.flow.suspended import Suspended
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.source.locate import function_node, is_library_file
from dycl_tvm.frontend.python.source.ownership import are_of_libraries
from dycl_tvm.frontend.trace.control_flow import ControlFlow, Dead, Jump
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current, staging
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.recording import check_modes
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

    passes_on = yields = False

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
        current().get(Suspended).is_manager(self._manager)
        check_modes(functools.partial(self._exit, self._manager))
        self._session = current()
        self._modes = len(exits().modes)
        if self._harmless:
            exits().modes.append(before)
        if not self._harmless:
            self._session.handlers.append(self)
        return entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not staging() or current() is not self._session:
            return False  # a generator of an earlier stage is given up
        if self._harmless:
            exits().modes.pop()
        else:
            self._session.leave(self)
        if error is None or isinstance(error, Jump):
            call(self._exit, self._manager, None, None, None)
            return False
        if isinstance(error, (ControlFlow, DyclError)):
            if not isinstance(error, Dead) or self._harmless:
                try:
                    call(self._exit, self._manager, kind, error, trace)  # what it does is taken back with all that this run did
                except (ControlFlow, Exception):
                    pass  # the program must not catch what its manager makes of an exception that it never sees
            return False
        swallowed = truth(call(self._exit, self._manager, kind, error, trace))
        return current().decisions.decide(swallowed) if isinstance(swallowed, Value) else bool(swallowed)

    def catches(self, error: Exception) -> bool:
        """Whether the manager may swallow an exception: what its ``__exit__`` returns may be true."""
        if isinstance(self._manager, contextlib.suppress):
            return isinstance(error, self._manager._exceptions)  # type: ignore[attr-defined]
        code = self._users_code()
        if code is None:
            return isinstance(self._manager, contextlib.ExitStack)  # bodies of generators have handlers of their own
        returned = [n.value for n in ast.walk(function_node(code)) if isinstance(n, ast.Return) and n.value is not None]
        return not all(isinstance(v, ast.Constant) and not v.value for v in returned)

    def _users_code(self) -> types.CodeType | None:
        """Return the code of ``__exit__``, if the user wrote it."""
        code = getattr(self._exit, "__code__", None)
        return None if code is None or is_library_file(code.co_filename) else code

    def lets_pass(self, error: Exception) -> bool:
        """Whether the exception goes on."""
        return not self.catches(error)

    def passing(self, error: Exception) -> None:
        """Tell a manager of the user's of the exception."""
        if self._users_code() is not None:
            with exits().beyond(self._modes), own_errors():
                call(self._exit, self._manager, type(error), error, error.__traceback__)

    def is_for_libraries(self) -> bool:
        """Whether the manager may swallow any exception that the user's code does not raise."""
        if isinstance(self._manager, contextlib.suppress):
            return are_of_libraries(self._manager._exceptions)  # type: ignore[attr-defined]
        return self.catches(Exception())


def _method(kind: Any, name: str) -> Any:
    try:
        return getattr(kind, name)
    except AttributeError:
        raise of_program(TypeError(f"'{kind.__name__}' object does not support the context manager protocol")) from None
