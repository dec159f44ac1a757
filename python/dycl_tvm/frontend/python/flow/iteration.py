# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Going over the items of what a program iterates over."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import is_library_class
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.places import MUTABLE
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import attempt


@dataclass
class InTurn:
    """What a rolled loop goes over by number.

    Attributes
    ----------
    count : int
        How many items there are; the run may tell.
    item : callable
        Gives the item of a number.
    of : tuple of ByIndex
        The lists that hold the items, and the iterators that the loop advances.
    computes : bool
        Whether code of the program gives an item, so that it shows which of them were asked for.
    """

    count: Any
    item: Callable[[Any], Any]
    of: tuple[ByIndex, ...]
    computes: bool = False

    def under_way(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a loop goes over the items."""
        return _under_way(self.of)


@contextlib.contextmanager
def _under_way(items: tuple[ByIndex, ...]) -> Iterator[None]:
    if not items:
        yield
        return
    first, *others = items  # no ExitStack: where the program uses that, its methods run as code of the program
    with type(first).gone_over(first), _under_way(tuple(others)):
        yield


class ByIndex:
    """Items that a rolled loop can go over by their numbers."""

    __slots__ = ()

    def in_turn(self) -> InTurn | None:
        """Return what a loop goes over; None where it asks for one item after the other."""
        raise NotImplementedError

    def gone_over(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a loop goes over the items."""
        raise NotImplementedError

    def are_any(self) -> Any:
        """Return whether there are any, of which only the run may tell."""
        raise NotImplementedError


def in_turn(iterable: Any) -> InTurn | None:
    """Return what a rolled loop goes over by number; None of what has no numbers, or is as long on every path."""
    turns = type(iterable).in_turn(iterable) if issubclass(type(iterable), ByIndex) else None
    return turns if turns is not None and scalars.is_symbolic(turns.count) else None


def iterate(iterable: Any) -> Iterator[Any]:
    """Iterate as a ``for`` statement does."""
    if isinstance(iterable, Poison):
        use(iterable)
    iterator = attempt(iter, iterable)
    if iterator is not iterable:
        yield from iterator
        return
    while True:
        advancing(iterator)
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def unpacked(iterable: Any) -> Any:
    """Return what Python is about to go over to its end, itself: what stands for a container is told that it is used."""
    if issubclass(type(iterable), OwnValue) and isinstance(iterable, MUTABLE):
        len(iterable)
    advancing(iterable)
    return iterable


def started(iterable: Any) -> Any:
    """Return the iterator of what a generator expression goes over first: Python makes it together with the generator."""
    return iterable if hasattr(type(iterable), "__next__") or isinstance(iterable, Poison) else begun(iterable)


def begun(iterable: Any) -> Any:
    """Return ``iter(iterable)``: it is made now, unless somebody else holds it too."""
    made = iter(iterable)
    return current().heap.born(made) if sys.getrefcount(made) <= ALONE else made


def _held() -> int:
    made = iter(())
    return sys.getrefcount(made)


#: What Python counts for an object that one variable holds.
ALONE = _held()


def advancing(x: Any) -> None:
    """Check an iterator that is about to be advanced: that cannot be undone, so it must have been made on the path at hand.

    The same goes for the iterators that it takes its items from.
    """
    if not hasattr(type(x), "__next__"):
        return
    todo, seen = [x], set[int]()
    while todo:
        x = todo.pop()
        if not hasattr(type(x), "__next__") or id(x) in seen or isinstance(x, (torch.Tensor, Poison)):
            continue
        seen.add(id(x))
        if type(x) is types.GeneratorType:
            frame = x.gi_frame
            todo += frame.f_locals.values() if frame is not None else ()
            for cells in current().heap.cells_of(x):
                current().heap.changing_cells(cells)
        elif is_positioned(x):
            todo += vars(x).values()
            for items in vars(x).values():
                if isinstance(items, tuple) and any(hasattr(kind, "__next__") for kind in set(map(type, items))):
                    todo += items
            continue  # its position is an attribute
        else:
            todo += gc.get_referents(x)
        if program().state.lives_on(x):
            raise UnsupportedError(
                f"a {type(x).__name__} that lives on between calls is advanced, and its position cannot be kept",
                current().origin(),
                "make it in the forward, or count in an attribute of the module (self.step += 1)",
            )
        current().heap.check_undoable(x, "an iterator made before a branch is advanced in it")


def is_positioned(x: Any) -> bool:
    """Whether the position of an iterator is in its attributes: that of a user's class, or of one that stands for Python's."""
    return hasattr(x, "__dict__") and (hasattr(type(x), "put") or not is_library_class(type(x)))
