# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models that set something up in their first call: hooks on their modules, other modules in the place of theirs, tables.

What such a call leaves is no tensor and no number, so it can be no variable of a graph. But where all calls compute the same, none has to
be kept. It is so if the graph of a first call, on which no other follows, is that of all calls of the model after its first; if the latter
leave nothing at all; and if what the first one leaves is the same whatever its inputs are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dycl_tvm.errors import StateError, UnsupportedError
from dycl_tvm.frontend.python.calls.sealed import Sealed
from dycl_tvm.frontend.python.no_trace import put_back
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import code_of, is_library
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.heap.reach import held_by, reach
from dycl_tvm.frontend.trace.heap.settings import CONTEXT, SETTINGS
from dycl_tvm.frontend.trace.heap.watch import Snapshot
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.numbers import SYMBOLIC
from dycl_tvm.frontend.trace.values.storage import Storage
from dycl_tvm.frontend.trace.values.tensors import StagedTensor
from dycl_tvm.hcfg.digest import digest
from dycl_tvm.hcfg.nodes import HCFG, Raise


class Setup:
    """What a first call leaves."""

    def __init__(self) -> None:
        self._ends: dict[Any, int] = {}
        self._known = True

    def take(self, changes: dict[Any, Place]) -> None:
        """Take down the places that the end of a path leaves changed."""
        session = current()
        self._ends[session] = self._ends.get(session, 0) + 1
        before = session.journal.before(session.heap.run_mark)
        left = []
        for key, place in changes.items():
            if place is CONTEXT:
                program().state.refuse_context(dict(before[key]), dict(place.read()))
            elif place is SETTINGS:
                self._known &= place.read() == before[key]
            elif program().state.name_of_place(place) is not None:
                self._known &= not isinstance(place, Storage)
                left.append(place.read())
        self._known = self._known and not _depends(left)

    @property
    def is_known(self) -> bool:
        """Whether it is the same for all inputs: all paths come together before the end, and no value of the run is in it."""
        return self._known and [*self._ends.values()][-1:] == [1]


def _depends(left: list[Any]) -> bool:
    """Whether anything that hangs on what is left is known only at run time, or differs between paths."""
    found = reach([("", x) for x in left], is_library, code_of)
    held = (type(v) for _, x in found for v in held_by(x))
    values = (StagedTensor, OwnValue, *SYMBOLIC)
    return not found.is_all or any(issubclass(kind, values) and not issubclass(kind, Sealed) for kind in held)


def stage_after_it(run: Callable[..., HCFG], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: StateError) -> HCFG:
    """Return the graph of a model that sets something up, if that can be left out.

    Parameters
    ----------
    run : callable
        Stages the model as it is; ``run(alone)`` as if no other call followed.
    model, args, kwargs
        What is called, and the example inputs.
    refusal : StateError
        Why it cannot be staged like any other; raised if this way does not lead to the end either.
    """
    setup = Setup()
    try:
        first = run(setup.take)
        if not setup.is_known:
            raise refusal
        with called(model, args, kwargs):
            later = run(None)
    except UnsupportedError:
        raise refusal from None
    if later.state or digest(first) != digest(later) or any(isinstance(b.terminator, Raise) for b in later.blocks):
        raise refusal
    return later


@contextmanager
def called(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Let a model be as after a call in eager mode, and put all back afterwards."""
    snapshot = Snapshot(reach([("", model)], is_library, code_of).complete(), with_data=True)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            given = copy.deepcopy((args, kwargs))
            try:
                model(*given[0], **given[1])
            except Exception as error:
                raise UnsupportedError(f"the model raises {type(error).__name__} in eager mode") from error
        yield
    finally:
        put_back(snapshot)
