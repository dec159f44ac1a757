# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The ways out of the network: by a return, or by an exception that the forward raises."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python.flow.parting import part, part_by_kind
from dycl_tvm.frontend.python.flow.suspended import Suspended
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.locate import is_library_file, origin_in
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.join.texts import message_of
from dycl_tvm.frontend.trace.results import Leaves, structure_of
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import is_of_program, names_staging
from dycl_tvm.frontend.trace.values.raising import leave, surely_leaves
from dycl_tvm.hcfg.nodes import Operand, Origin, Return, ReturnSite

#: What Python asks for an attribute of a module that is not where it looks itself.
_ASKED_OF_MODULES = torch.nn.Module.__getattr__.__code__


class Exits(OfOneRun):
    """The function bodies that are being run, and the paths that left.

    Attributes
    ----------
    frames : list
        The bodies with ``return`` in them, the outermost first.
    departures : int
        How many paths have left the network, or a function.
    modes : list
        What PyTorch's settings were before each ``with`` around the place at hand that only sets a mode, the outermost first.
    """

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.departures = 0
        self.modes: list[Any] = []
        self._root_next = False

    def take_root(self) -> bool:
        """Whether the function body that begins now is the outermost one."""
        root, self._root_next = self._root_next, False
        return root

    def offer_root(self, offered: bool) -> None:
        """Say whether the next function body to begin returns from the whole network."""
        self._root_next = offered

    @contextlib.contextmanager
    def beyond(self, modes: int) -> Iterator[None]:
        """Let PyTorch's settings be what they are once all but the outermost ``modes`` of the modes are left."""
        now = SETTINGS.read()
        if len(self.modes) > modes:
            SETTINGS.write(self.modes[modes])
        try:
            yield
        finally:
            SETTINGS.write(now)

    def leave_by_return(self, value: Any, origin: Origin | None = None) -> None:
        """End the path with a return site; or with several, where paths were joined that return different structures."""
        parted, value = False, program().state.lists.in_results(value)
        for view in itertools.chain(part(value, origin), part_by_kind(value, origin)):
            parted = True
            self._return(value, origin, self._state(), view)
        if not parted:
            self._return(value, origin, self._state())

    def _state(self) -> list[Operand]:
        current().get(Suspended).refuse()
        with self.beyond(0):
            mark, alone = current().heap.run_mark, program().alone
            if alone is None:
                return program().state.leave(mark)
            alone(current().journal.changes(mark))
            return []

    def _return(self, value: Any, origin: Origin | None, state: list[Operand], view: Callable[[Any], Any] | None = None) -> None:
        session = current()
        leaves = Leaves()
        structure = structure_of(value, leaves, origin, view)
        site = session.builder.event(("site",), lambda: ReturnSite(structure, origin))
        session.builder.terminate(Return(site, leaves.operands, state))
        self.departures += 1

    def leave_by_raise(self, error: Exception) -> None:
        """End the path with a run-time error."""
        current().get(Suspended).refuse()
        leave(error, origin_of, message_of)
        self.departures += 1

    def may_raise(self, error: Exception) -> bool:
        """Whether an exception surely leaves the whole network, so that its path ends here."""
        return is_users(error) and not isinstance(error, (StopIteration, StopAsyncIteration)) and surely_leaves(error)

    def checkpoint(self) -> Any:
        """Take down which paths wait to leave (for a loop that may take back a round)."""
        return self.departures, [(f, len(f._paths), len(f._tokens)) for f in self.frames]

    def restore_checkpoint(self, saved: Any) -> None:
        """Forget the paths that came to wait since :meth:`checkpoint`."""
        self.departures, frames = saved
        for frame, paths, tokens in frames:
            del frame._paths[paths:]
            del frame._tokens[tokens:]


def exits() -> Exits:
    """Return the ways out of the run at hand."""
    return current().get(Exits)


def is_users(error: Exception) -> bool:
    """Whether eager raises the exception too, on this path.

    So it is if the program raises it itself; if an operation of the program was found to fail in eager as well; or if Python raised it
    in the user's code, on values that are as they are in eager.
    """
    if getattr(error, "__dycl_raised__", False) or isinstance(error, UnboundLocalError):
        return True
    builder = current().builder
    if names_staging(error):
        return False
    conditional = builder.block is not None and builder.block is not builder.entry
    return conditional and (is_of_program(error) or _is_pythons(error))


def _is_pythons(error: Exception) -> bool:
    """Whether Python raised an exception in the user's code itself, and no value that is known only at run time took part."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_next.tb_frame.f_code is not _ASKED_OF_MODULES:
        trace = trace.tb_next
    if trace is None or is_library_file(trace.tb_frame.f_code.co_filename):
        return False
    if trace.tb_next is not None:  # the module has no such attribute, unless a property of its class failed
        asked = trace.tb_next.tb_frame.f_locals
        return trace.tb_next.tb_next is None and not hasattr(type(asked["self"]), asked["name"])
    if isinstance(error, AttributeError):
        return not scalars.is_symbolic(error.obj) and not (isinstance(error.obj, torch.Tensor) and hasattr(torch.Tensor, error.name or ""))
    named = re.findall(r"\w+", linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
    return not any(scalars.is_symbolic(trace.tb_frame.f_locals.get(name)) for name in named)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Refuse what goes wrong in staging only in what the program does where an exception passes: no code of its own comes behind it."""
    try:
        yield
    except DyclError:
        raise
    except Exception as error:
        if not is_users(error):
            raise UnsupportedError(
                f"a `finally` or `with` that an exception passes raises {type(error).__name__} while it is compiled: {error}",
                origin_of(error),
                "do what may fail outside of it",
            ) from error
        raise


def origin_of(error: BaseException) -> Origin | None:
    """Return the innermost place in the user's code that an exception came through."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            found = origin_in(code, trace.tb_lineno, trace.tb_lasti)
        trace = trace.tb_next
    return found
