# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is called in place of ``iter``, ``next``, ``zip``, ``enumerate``, ``map`` and :mod:`itertools`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.iterators import (
    LISTED,
    Accumulate,
    Chain,
    Count,
    CycleOf,
    Cyclic,
    Ending,
    Enumerate,
    Filter,
    Map,
    Pairs,
    Repeat,
    Slice,
    While,
    Zip,
    ZipLongest,
    adopted,
    is_stand_in,
    own,
    sequence,
)
from dycl_tvm.frontend.python.flow.iteration import advancing
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars


def _iter(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return own(args[0]) if len(args) == 1 else current().heap.born(callee(*args))


def _next(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], Poison):
        use(args[0])
    advancing(args[0])
    ending = current().get(Ending)
    before, ending.fatal = ending.fatal, frozenset(_sources(args[0]) if len(args) == 1 else ())
    try:
        return callee(*args)
    finally:
        ending.fatal = before


def _sources(x: Any) -> list[int]:
    """Return the iterators whose end is that of ``x``, by identity."""
    inner = (x.source,) if _is_own(x, Enumerate) else x.sources if _is_own(x, Zip, Map) else ()
    return [id(x), *[i for s in inner for i in _sources(s)]]


def _is_own(x: Any, *classes: type) -> bool:
    """Whether ``x`` is really of one of the classes, whatever it says of itself."""
    return issubclass(type(x), classes)


def _reversed(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (x,) = args
    if isinstance(x, Poison):
        use(x)
    if is_stand_in(x):
        return sequence(x, type(x).in_turn(x).count - 1, -1)
    if (isinstance(x, (list, tuple, range, str)) and not hasattr(type(x), "__reversed__")) or type(x) in (list, range):
        return sequence(x, len(x) - 1, -1)
    return adopted(current().heap.born(callee(x)))


def _enumerate(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("iterable", "start"), args)) | kwargs
    return Enumerate(source=own(given["iterable"]), count=given.get("start", 0))


def _zip(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Zip(sources=tuple(map(own, args)), strict=bool(kwargs.get("strict", False)))


def _map(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Map(function=args[0], sources=tuple(map(own, args[1:])))


def _starmap(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Map(function=args[0], sources=(own(args[1]),), star=True)


def _filter(wanted: bool) -> Callable[..., Any]:
    return lambda callee, args, kwargs: Filter(function=args[0], source=own(args[1]), wanted=wanted)


def _while(takes: bool) -> Callable[..., Any]:
    return lambda callee, args, kwargs: While(function=args[0], source=own(args[1]), open=False, takes=takes)


def _count(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("start", "step"), args)) | kwargs
    return Count(value=given.get("start", 0), step=given.get("step", 1))


def _repeat(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("object", "times"), args)) | kwargs
    times = given.get("times")
    if scalars.is_symbolic(times):
        raise UnsupportedError("itertools.repeat() with a number known only at run time", current().origin(), "loop over range(n)")
    return Repeat(item=given["object"], left=times, most=times or 0)


def _cycle(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (x,) = args
    if type(x) in (list, tuple, range, str):
        return Cyclic(items=tuple(x), source=x, position=0)
    return CycleOf(source=own(x), saved=current().heap.born([]), position=-1)


def _chain(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Chain(sources=sequence(args), active=None)


def _chain_from(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Chain(sources=own(args[0]), active=None)


def _islice(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bounds = slice(*args[1:])
    if any(scalars.is_symbolic(b) for b in (bounds.start, bounds.stop, bounds.step)):
        raise UnsupportedError("itertools.islice() with a bound known only at run time", current().origin(), "write the loop out")
    callee((), *args[1:])  # Python's own checks
    start = operator.index(bounds.start or 0)
    return Slice(source=own(args[0]), count=range(0), wanted=range(start), stop=bounds.stop, step=operator.index(bounds.step or 1))


def _accumulate(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("iterable", "func"), args)) | kwargs
    return Accumulate(source=own(given["iterable"]), function=given.get("func"), total=given.get("initial"), started=False)


def _pairwise(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Pairs(source=own(args[0]), before=None, started=False)


def _zip_longest(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return ZipLongest(sources=tuple(map(own, args)), ended=(False,) * len(args), fill=kwargs.get("fillvalue"))


def _listed(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``product``, ``permutations``, ``combinations``: listed at once if they are few."""
    given = [own(a) if isinstance(a, Iterable) else a for a in args]
    pools = [tuple(a) if isinstance(a, Iterator) else a for a in given]
    items = tuple(itertools.islice(callee(*pools, **kwargs), LISTED + 1))
    return sequence(items) if len(items) <= LISTED else current().heap.born(callee(*pools, **kwargs))


TABLE: dict[Any, Callable[..., Any]] = {
    iter: _iter,
    next: _next,
    reversed: _reversed,
    enumerate: _enumerate,
    zip: _zip,
    map: _map,
    filter: _filter(True),
    itertools.filterfalse: _filter(False),
    itertools.starmap: _starmap,
    itertools.takewhile: _while(True),
    itertools.dropwhile: _while(False),
    itertools.count: _count,
    itertools.repeat: _repeat,
    itertools.cycle: _cycle,
    itertools.chain: _chain,
    itertools.chain.from_iterable: _chain_from,
    itertools.islice: _islice,
    itertools.accumulate: _accumulate,
    itertools.pairwise: _pairwise,
    itertools.zip_longest: _zip_longest,
    **dict.fromkeys((itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement), _listed),
}
