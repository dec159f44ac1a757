# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions that keep their results: ``functools.lru_cache``, whose table lies in C, and ``singledispatch``."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.heap.watch import same_contents
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import as_constant, storage_of
from dycl_tvm.hcfg.nodes import Block

#: The code with which every ``functools.singledispatch`` chooses a function by class.
DISPATCH: types.CodeType = functools.singledispatch(len).dispatch.__code__  # type: ignore[attr-defined]

#: Classes of results that cannot be changed, and are told apart by what they are equal to.
_UNCHANGEABLE = (type(None), bool, int, str)


class Caches:
    """The tables of the cached functions, by the function's identity."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[Any, dict[Any, Any]]] = {}
        #: What calls gave that did nothing, by the function's identity and the key, if it cannot be changed. Such a call is made again
        #: each time and has to give the same: whether it is in a table says nothing, so no join need know of it.
        self.idle: dict[int, dict[Any, Any]] = {}

    def of(self, cached: Any) -> dict[Any, Any]:
        """Return the table of a function; changes of it are taken back like those of any dict."""
        if id(cached) not in self.tables:
            self.tables[id(cached)] = (cached, {})
        return self.tables[id(cached)][1]


def cached_call(cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
    """Call a function with a cache; ``run`` calls the function behind it.

    Raises
    ------
    UnsupportedError
        If the result is known only at run time and eager would give it to later calls of the network as well.
    """
    for a in (*args, *kwargs.values()):
        if isinstance(a, Poison):
            use(a)
    typed, size = cached.cache_parameters()["typed"], cached.cache_parameters()["maxsize"]
    key = functools._make_key(args, kwargs, typed)  # type: ignore[attr-defined]  # equal for calls that C takes for equal
    table = current().get(Caches).of(cached)
    session = current()
    if key in table:
        if size is not None and next(reversed(table)) != key:  # what was used last stands last
            session.heap.changing(table)
            table[key] = table.pop(key)
        return table[key]
    journal, started = session.journal, next(clock)
    depth, mark, place = journal.depth(), journal.open(), session.builder.mark()
    try:
        result = run(cached.__wrapped__, *args, **kwargs)
        changes = _changes(mark, started)
    finally:
        journal.close_to(depth)
    of_this_call = any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
    lives_on = not of_this_call and not _made_here(cached)
    if lives_on and (changes or _of_run_time(result)):
        raise UnsupportedError(
            f"{cached.__wrapped__.__name__}() keeps its results in a cache: later calls of the network would find what this one left",
            session.origin(),
            "call the function without a cache, or keep the result on the module (self)",
        )
    idle = session.get(Caches).idle.setdefault(id(cached), {})
    has_room = key in idle or size is None or len(table) + len(idle) < size
    if lives_on and has_room and type(result) in _UNCHANGEABLE and _is_at(place):
        first = idle.setdefault(key, result)
        if type(first) is type(result) and first == result:
            return first
    if key in idle:
        raise UnsupportedError(
            f"{cached.__wrapped__.__name__}() keeps its results in a cache, and would give something else now",
            session.origin(),
            "call the function without a cache",
        )
    for t in _tensors(result) if lives_on else ():
        storage_of(t).cached = True
    if size == 0:
        return result
    session.heap.changing(table)
    if size is not None and len(table) >= size:
        del table[next(iter(table))]
    table[key] = result
    return result


def refuse_question(method: Any) -> None:
    """Refuse what is asked of, or done to, a cache: its table is staging's own while it is staged."""
    raise UnsupportedError(f"{method.__name__}() of a cached function", current().origin(), "count in a variable")


def _changes(mark: int, started: int) -> bool:
    """Whether anything that was there when a call began is otherwise since then."""
    session = current()
    before = session.journal.before(mark)
    tables = {id(table) for _, table in session.get(Caches).tables.values()}
    for key, place in session.journal.changes(mark).items():
        if id(place.owner) not in tables and not session.heap.is_newer(place.owner, started):
            if not same_contents(before[key], place.read()):
                return True
    return False


def _is_at(place: tuple[Block, int]) -> bool:
    """Whether nothing has been appended to the graph since ``place``.

    Events do not tell: one is recorded for each loop that the call went through, also for those whose condition Python knows.
    """
    block, steps = place
    return current().builder.block is block and len(block.steps) == steps


def _made_here(cached: Any) -> bool:
    heap = current().heap
    return heap.is_newer(cached, heap.run_started)


def _of_run_time(x: Any) -> bool:
    return any(as_constant(t) is None for t in _tensors(x)) or any(map(scalars.is_symbolic, torch.utils._pytree.tree_leaves(x)))


def _tensors(x: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(x) if isinstance(leaf, torch.Tensor)]


def dispatched(dispatch: types.FunctionType, cls: type) -> Any:
    """Return the function that a ``singledispatch`` chooses, without the table in which it keeps that: it follows from the registry."""
    cells = dict(zip(DISPATCH.co_freevars, dispatch.__closure__ or ()))
    registry = cells["registry"].cell_contents
    return registry[cls] if cls in registry else functools._find_impl(cls, registry)  # type: ignore[attr-defined]
