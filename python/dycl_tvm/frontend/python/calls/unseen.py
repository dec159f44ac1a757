# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Finding the user's functions that a library runs and that nothing led to: registered with it before the model was staged.

They would run as they are. Their calls are seen by a profile function; a function that is found is known when staging begins anew.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.locate import is_library_file, origin_at
from dycl_tvm.frontend.python.source.syntax import is_rewritten
from dycl_tvm.frontend.python.trampolines import is_trampoline
from dycl_tvm.frontend.trace.control_flow import Again
from dycl_tvm.garbage import referrers

#: Whether code is of a user's function that runs as it is: by the identity of the code, which is kept.
_known: dict[int, tuple[types.CodeType, bool]] = {}
#: Code that runs as it is because it was looked at, and its copy.
_looked_at: dict[int, tuple[types.CodeType, types.CodeType]] = {}


def looked_at(code: types.CodeType) -> types.CodeType:
    """Return a copy of code that may run as it is: for a call that was looked at, not for others that a library makes."""
    known = _looked_at.get(id(code))
    if known is None or known[0] is not code:
        known = _looked_at[id(code)] = (code, code.replace())
        _known[id(known[1])] = (known[1], False)
    return known[1]


class Unseen:
    """Notes which of the user's code runs as it is, while code that is not known runs.

    Another profiler is called too. One that is no Python function (cProfile) could not be put back, so it is left alone.
    """

    def __enter__(self) -> None:
        self._found: list[types.CodeType] = []
        self._before: Any = sys.getprofile()
        if self._before is None or callable(self._before):
            sys.setprofile(self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is None or callable(self._before):
            sys.setprofile(self._before)
        if self._found and (kind is None or issubclass(kind, Exception)):
            _restart(self._found[0])

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._before is not None:
            self._before(frame, event, argument)
        if event == "call" and _runs_as_it_is(frame.f_code):
            self._found.append(frame.f_code)


def _runs_as_it_is(code: types.CodeType) -> bool:
    known = _known.get(id(code))
    if known is None or known[0] is not code:
        file = code.co_filename
        users = not is_library_file(file) and (not file.startswith("<") or bool(linecache.getlines(file)))
        known = _known[id(code)] = (code, users and not is_rewritten(code) and not is_trampoline(code))
    return known[1]


def _restart(code: types.CodeType) -> None:
    """Begin staging anew, with the function of some code known; refuse if there is none."""
    functions = [f for f in referrers(code) if isinstance(f, types.FunctionType) and f.__code__ is code]
    if not functions or not program().state.add_registered(functions):
        raise UnsupportedError(
            f"{code.co_name}() is run by a library, and cannot be followed",
            origin_at(code.co_filename, code.co_firstlineno, code.co_name),
            "call it in the forward",
        )
    raise Again
