# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's program while it is staged: its classes, its state, and how its functions are run."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.python.persistent_state import ModelState
from dycl_tvm.frontend.python.source.ownership import users_function
from dycl_tvm.frontend.python.trampolines import Run, Trampolines
from dycl_tvm.frontend.trace.join.poison import Poison
from dycl_tvm.frontend.trace.session import current


class Program:
    """What is known of the program.

    Parameters
    ----------
    state : ModelState
        What one call leaves behind for the next.
    operators : module
        What rewritten code calls.
    run_function, run_method : callable
        ``run(function, args, kwargs)`` calls the rewritten form of a function; of a method that Python or a library calls.
    keep_print : bool
        Whether ``print`` becomes an operation.
    """

    def __init__(self, state: ModelState, operators: Any, run_function: Run, run_method: Run, keep_print: bool) -> None:
        self.state, self.operators, self.run_function, self.keep_print = state, operators, run_function, keep_print
        self.trampolines = Trampolines(run_method)
        #: Takes the places that a path leaves changed, by their keys, if the call that is staged is the only one.
        self.alone: Callable[..., None] | None = None
        #: What the program does for others than its caller, and the graph does not.
        self.left_out: dict[str, None] = {}

    def leave_out(self, what: str) -> None:
        """Note for the report that something is left out at the place at hand."""
        self.left_out[f"{what} at {current().origin()}"] = None

    def enter(self, function: types.FunctionType) -> None:
        """Take note of a function that is about to run: what it can name runs rewritten too."""
        heap = current().heap
        if not heap.is_newer(function, heap.run_started):
            self.state.add_function(function)
        self.trampolines.reach_names(function)


def program() -> Program:
    """Return the program that is being staged."""
    return current().get(Program)


def special_method(x: Any, name: str) -> Any:
    """Return the user's own special method of an object, ready to be called rewritten; None if it has none."""
    method = getattr(type(x), name, None) if not isinstance(x, (torch.Tensor, Poison)) else None
    function = users_function(method)
    return None if function is None else lambda *args: program().run_function(function, (x, *args), {})
