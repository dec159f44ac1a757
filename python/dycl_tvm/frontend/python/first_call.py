# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models that set something up in their first call: hooks on their modules, other modules in the place of theirs, tables.

What such a call leaves is no tensor and no number, so it can be no variable of a graph. But where all calls compute the same, none has to
be kept. It is so if the graph of a first call, on which no other follows, is that of all calls of the model after its first; if the latter
leave nothing at all; and if what the first one leaves is the same whatever its inputs are.
Where it ends by an exception it has left that or nothing. The first may draw random numbers (for weights
that are thrown away): no later call does.
"""

from __future__ import annotations

import copy
import functools
import gc
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import StateError, UnsupportedError
from dycl_tvm.frontend.python.calls.sealed import Sealed
from dycl_tvm.frontend.python.no_trace import put_back
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import code_of, is_library
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.compiled import is_python
from dycl_tvm.frontend.trace.heap.places import MISSING, Place, in_slots, space_of
from dycl_tvm.frontend.trace.heap.reach import ATOMS, held_by, reach
from dycl_tvm.frontend.trace.heap.settings import CONTEXT, SETTINGS
from dycl_tvm.frontend.trace.heap.watch import Snapshot
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.generators import Generators
from dycl_tvm.frontend.trace.values.numbers import SYMBOLIC
from dycl_tvm.frontend.trace.values.storage import Storage
from dycl_tvm.frontend.trace.values.tensors import StagedTensor
from dycl_tvm.hcfg.digest import digest
from dycl_tvm.hcfg.nodes import HCFG


class Setup:
    """What a first call leaves."""

    def __init__(self) -> None:
        #: For each session what the ends of its paths leave; None where that depends on a value of the run, or cannot be seen.
        self._left: dict[Any, list[Any]] = {}
        #: The same of paths that end by an exception.
        self._raised: dict[Any, list[Any]] = {}
        self._known = True

    def take(self, changes: dict[Any, Place], raises: bool = False) -> None:
        """Take down the places that the end of a path leaves changed; ``raises`` is whether it ends by an exception."""
        session = current()
        before = session.journal.before(session.heap.run_mark)
        left = []
        for key, place in changes.items():
            name = program().state.name_of_place(place) if place not in (CONTEXT, SETTINGS) else None
            if place is CONTEXT:
                program().state.refuse_context(dict(before[key]), dict(place.read()))
            elif place is SETTINGS:
                self._known &= place.read() == before[key]
            elif name is not None and isinstance(place, Storage):
                self._known &= session.get(Generators).is_state(place)  # where no later call draws
            elif name is not None and not _is_same(contents := place.read(), before[key]):
                left.append((name, "deleted" if contents is MISSING else [contents]))
        (self._raised if raises else self._left).setdefault(session, []).append(_form(sorted(left, key=lambda x: x[0])))

    @property
    def is_known(self) -> bool:
        """Whether it is the same for all inputs: no value of the run is in it, and all paths leave the same.

        A path that ends by an exception may leave nothing of it as well: then the next call is as the first one.
        """
        session, (first, *others) = [*self._left.items()][-1] if self._left else (None, [None])
        raised = self._raised.get(session, [])
        return self._known and first is not None and all(form == first for form in others) and all(form in ([], first) for form in raised)


def _is_same(a: Any, b: Any) -> bool:
    """Whether contents of a place are what they were."""
    return a is b or (type(a) is type(b) is tuple and len(a) == len(b) and all(map(_is_same, a, b)))


def _form(left: list[tuple[str, Any]]) -> Any:
    """Return what hangs on some objects, such that equal forms are of equal objects; None if it depends on the run, or cannot be seen."""
    found = reach(left, is_library, code_of)
    values = (StagedTensor, OwnValue, *SYMBOLIC)
    held = {type(v) for _, x in found for v in held_by(x)}
    if not found.is_all or any(issubclass(kind, values) and not issubclass(kind, Sealed) for kind in held):
        return None
    numbers = {id(x): k for k, (_, x) in enumerate(found.steps)}

    def said(x: Any) -> Any:
        if id(x) in numbers:
            return numbers[id(x)]
        is_value = type(x) in ATOMS or (type(x) in (*_PLAIN, *_DICTS) and not x)  # a container that holds nothing is no step
        return type(x), (repr(x) if is_value else id(x))

    form = [(label, type(x), _parts(x, said)) for label, x in found.steps]
    form += [(name, said(x), ()) for name, x in left]
    return None if any(parts is None for *_, parts in form) else form


#: What holds nothing but what the garbage collector sees.
_PLAIN = (tuple, list, set, frozenset, deque, types.MethodType, types.CellType, functools.partial)
_DICTS = (dict, OrderedDict)


def _parts(x: Any, said: Callable[[Any], Any]) -> Any:
    """Return what an object holds, or which one of the model's it is, whose changes are known; None if it cannot be seen."""
    kind: Any = type(x)
    if program().state.lives_on(x):
        return id(x)
    space = [(k, said(v)) for k, v in (space_of(x) or {}).items()]
    if isinstance(x, np.dtype):
        return repr(x)
    if isinstance(x, type):  # what is compiled does not change
        return (x, [said(b) for b in x.__bases__], [(k, said(v)) for k, v in vars(x).items()]) if is_python(x) else id(x)
    if kind is weakref.ref:
        return id(x()) if program().state.lives_on(x()) else None
    if kind is types.FunctionType:
        return id(code_of(x)), [said(v) for v in (x.__defaults__, x.__kwdefaults__, *(x.__closure__ or ()))], space
    if kind in _PLAIN:
        return [said(v) for v in gc.get_referents(x)], space
    if kind in _DICTS or (is_python(kind) and kind.__bases__ == (dict,)):
        return [(said(k), said(v)) for k, v in dict.items(x)], space
    if all(map(is_python, kind.__mro__[:-1])):
        return space, [(name, said(v)) for name, v in in_slots(x)]
    return None


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
    if later.state or digest(first) != digest(later):
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
