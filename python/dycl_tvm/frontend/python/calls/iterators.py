# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Iterators whose position is an attribute: what ``iter``, ``zip``, ``enumerate``, ``map`` and :mod:`itertools` give under staging.

The position of Python's own iterators can neither be taken back nor joined. That of these is a place of the heap like any other: a
branch, a loop and the next call find it as the path at hand left it. A position that is known only at run time chooses its item by a
switch. Generators have no position to speak of: they fork (see :mod:`..flow.iteration`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import types
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.flow.choices import switch
from dycl_tvm.frontend.python.flow.iteration import ByIndex, InTurn, begun, in_turn
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.heap.places import attribute_of
from dycl_tvm.frontend.trace.join.poison import Poison, Refusing, Why, use
from dycl_tvm.frontend.trace.session import OfOneRun, current, staging
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.hcfg.nodes import Raise, Value

#: Products and permutations longer than this are left to Python.
LISTED = 1 << 16


class Ending(OfOneRun):
    """Iterators whose end is an error of the program, by identity: in ``next(it)`` without a default, where nothing can catch it."""

    fatal: frozenset[int] = frozenset()


class OwnIterator(ByIndex):
    """Base of the iterators whose position is an attribute."""

    #: The attribute that says where it stands, of what a loop can go over by number.
    moves = ""
    #: What the program takes it for.
    kind: type = type(iter([]))

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        if staging():
            current().heap.born(self)

    def __iter__(self) -> OwnIterator:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def in_turn(self) -> InTurn | None:
        """Return what is left, if a loop can go over it by number; nothing is asked of the iterator behind that loop."""
        return None

    def are_any(self) -> Any:
        """Return whether the iterator is true: it is, even at its end."""
        return True

    @contextlib.contextmanager
    def gone_over(self) -> Iterator[None]:
        """Let a loop go over what is left: of where it leaves the iterator no path knows."""
        why = Why(f"where a {self.kind.__name__} stands is used behind a loop that went over it, which a number of the run ends")
        self.put(self.moves, Poison(Refusing(current().origin(), "loop over the list itself, and count in a variable"), why))
        yield

    __class__ = property(lambda self: self.kind)  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise UnsupportedError(f"the text of a {self.kind.__name__} is used", current().origin(), "count in a variable")

    def put(self, name: str, value: Any) -> None:
        """Set an attribute; what it was is saved."""
        current().journal.touch(attribute_of(self, name))
        self.__dict__[name] = value


def _end_is_fatal(iterator: Any) -> bool:
    session = current()
    return id(iterator) in session.get(Ending).fatal and not session.may_be_caught(StopIteration)


def _check_more(cond: Any) -> None:
    """Go on where an iterator has one more item; where it has not, the network ends with an error."""
    operand = truth(cond)
    if not isinstance(operand, Value):
        if not operand:
            raise StopIteration
        return
    session = current()
    more, end = session.builder.new_block("more"), session.builder.new_block("end")
    session.builder.branch(operand, more, end)
    session.builder.block = end
    session.builder.raising()
    session.builder.terminate(Raise("StopIteration", "", session.origin()))
    session.builder.block = more


def _known(number: Any, least: int, most: int) -> int:
    """Return a number that lies within bounds as it is on the path at hand: what joined it forks, or each value is a path of its own."""
    if not scalars.is_symbolic(number):
        return int(number)
    if number.node.decision is not None:
        return int(number.node.int_())
    for k in range(least, most):
        if decided(number == k):
            return k
    return most


class _Positions(OwnIterator):
    """Over a list, tuple, range or string, forwards or backwards; at the end the position is -1, for good."""

    items: Any
    position: Any
    step: int
    moves = "position"

    def __next__(self) -> Any:
        at = self.position
        if scalars.is_symbolic(at) and len(self.items) and _end_is_fatal(self):
            _check_more((at >= 0) & (at < len(self.items)))
            item = switch(list(self.items), at, inside=True)
        else:
            at = _known(at, -1, len(self.items))
            if not 0 <= at < len(self.items):
                self.put("position", -1)
                raise StopIteration
            item = self.items[at]
        self.put("position", at + self.step)
        return item

    def in_turn(self) -> InTurn | None:
        """Return the items of a list that a loop has made longer from where the iterator stands."""
        items, first = self.items, self.position
        inner = in_turn(items)
        if inner is None or isinstance(first, Poison):
            return None
        forwards = self.step > 0
        if forwards and (scalars.is_symbolic(first) or first < 0):
            return None
        if type(first) is int and forwards and first == 0:
            return InTurn(inner.count, inner.item, (*inner.of, self), inner.computes)
        count = inner.count - first if forwards else scalars.select(first < inner.count, first + 1, 0)
        return InTurn(count, lambda index: inner.item(first + self.step * index), (*inner.of, self), inner.computes)

    def __length_hint__(self) -> int:
        at = self.position
        if scalars.is_symbolic(at):
            return 0
        return max(0, len(self.items) - at if self.step > 0 else at + 1) if at >= 0 else 0


class _Snapshot(_Positions):
    """Over a dict, a view of one, a set or a deque, which must not change its size meanwhile."""

    source: Any

    def __next__(self) -> Any:
        if len(self.source) != len(self.items):
            kind = (
                "dictionary"
                if isinstance(self.source, dict) or "dict" in type(self.source).__name__.lower()
                else type(self.source).__name__
            )
            raise RuntimeError(f"{kind} changed size during iteration")
        return super().__next__()


class Cyclic(OwnIterator):
    """``cycle`` of a sequence."""

    kind = itertools.cycle
    items: tuple[Any, ...]
    source: Any
    position: Any

    def __next__(self) -> Any:
        if not self.items:
            raise StopIteration
        if len(self.source) != len(self.items) or any(a is not b for a, b in zip(self.source, self.items) if isinstance(self.source, list)):
            raise UnsupportedError("a list is changed while itertools.cycle() goes over it", current().origin(), "cycle over a tuple")
        at = self.position
        item = switch(list(self.items), at, inside=True) if scalars.is_symbolic(at) else self.items[at]
        self.put("position", (at + 1) % len(self.items))
        return item


class CycleOf(OwnIterator):
    """``cycle`` of an iterator."""

    kind = itertools.cycle
    source: Any
    saved: list[Any]
    position: Any

    def __next__(self) -> Any:
        if self.position < 0:
            try:
                item = next(self.source)
                current().heap.changing(self.saved)
                self.saved.append(item)
                return item
            except StopIteration:
                if not self.saved:
                    raise
                self.put("position", 0)
        item = self.saved[self.position]
        self.put("position", (self.position + 1) % len(self.saved))
        return item


class Count(OwnIterator):
    kind = itertools.count
    value: Any
    step: Any

    def __next__(self) -> Any:
        value = self.value
        self.put("value", value + self.step)
        return value


class Repeat(OwnIterator):
    kind = itertools.repeat
    item: Any
    left: Any
    most: int

    def __next__(self) -> Any:
        if self.left is not None:
            left = _known(self.left, 0, self.most)
            if left <= 0:
                raise StopIteration
            self.put("left", left - 1)
        return self.item


class Enumerate(OwnIterator):
    kind = enumerate
    source: Any
    count: Any
    moves = "count"

    def __next__(self) -> Any:
        item = next(self.source)
        count = self.count
        self.put("count", count + 1)
        return count, item

    def in_turn(self) -> InTurn | None:
        """Return what is left of the source, with its numbers."""
        inner, first = in_turn(self.source), self.count
        if inner is None or isinstance(first, Poison):
            return None
        return InTurn(inner.count, lambda index: (first + index, inner.item(index)), (*inner.of, self), inner.computes)


def together(sources: tuple[Any, ...]) -> InTurn | None:
    """Return what is left of sources, as far as the shortest of them goes.

    None where two take their items from one iterator, and where the program sees that a source is asked for an item more, as one behind
    it may be shorter.
    """
    found = [in_turn(source) for source in sources]
    inner = [turns for turns in found if turns is not None]
    if not inner or len(inner) < len(found):
        return None
    of = tuple([x for turns in inner for x in turns.of])
    advanced = [id(x) for x in of if issubclass(type(x), OwnIterator)]
    if len(set(advanced)) < len(advanced):
        return None
    lengths = [scalars.operand_of(turns.count) for turns in inner]
    if any(turns.computes and any(other != lengths[i] for other in lengths[i + 1 :]) for i, turns in enumerate(inner)):
        return None
    count = functools.reduce(lambda a, b: scalars.select(a < b, a, b), [turns.count for turns in inner])
    return InTurn(count, lambda index: tuple([turns.item(index) for turns in inner]), of, any(turns.computes for turns in inner))


class Zip(OwnIterator):
    kind = zip
    sources: tuple[Any, ...]
    strict: bool

    def __next__(self) -> Any:
        if not self.sources:
            raise StopIteration
        items: list[Any] = []
        for i, source in enumerate(self.sources):
            try:
                items.append(next(source))
            except StopIteration:
                if self.strict:
                    self._check_ended(i)
                raise
        return tuple(items)

    def in_turn(self) -> InTurn | None:
        """Return what is left of the sources."""
        return None if self.strict else together(self.sources)

    def _check_ended(self, stopped: int) -> None:
        plural = "s 1-" if stopped > 1 else " "
        if stopped > 0:
            raise ValueError(f"zip() argument {stopped + 1} is shorter than argument{plural}{stopped}") from None
        for i, source in enumerate(self.sources[1:], 1):
            for _ in source:
                raise ValueError(f"zip() argument {i + 1} is longer than argument{'s 1-' if i > 1 else ' '}{i}") from None


class ZipLongest(OwnIterator):
    kind = itertools.zip_longest
    sources: tuple[Any, ...]
    ended: tuple[bool, ...]
    fill: Any

    def __next__(self) -> Any:
        items, ended = [], list(self.ended)
        for i, source in enumerate(self.sources):
            try:
                items.append(self.fill if ended[i] else next(source))
            except StopIteration:
                ended[i] = True
                items.append(self.fill)
        self.put("ended", tuple(ended))
        if all(ended):
            raise StopIteration
        return tuple(items)


class Map(OwnIterator):
    kind = map
    function: Any
    sources: tuple[Any, ...]
    star = False

    def __next__(self) -> Any:
        items = [next(source) for source in self.sources]
        return _call(self.function, *(items[0] if self.star else items))

    def in_turn(self) -> InTurn | None:
        """Return what the function gives for what is left of the sources."""
        inner = together(self.sources)
        if inner is None:
            return None

        def item(index: Any) -> Any:
            items = inner.item(index)
            return _call(self.function, *(items[0] if self.star else items))

        return InTurn(inner.count, item, inner.of, computes=True)


class Filter(OwnIterator):
    kind = filter
    function: Any
    source: Any
    wanted: bool

    def __next__(self) -> Any:
        while True:
            item = next(self.source)
            if decided(item if self.function is None else _call(self.function, item)) == self.wanted:
                return item


class While(OwnIterator):
    """``takewhile`` and ``dropwhile``; ``open`` says whether items pass as they are (or, of the first, not at all)."""

    function: Any
    source: Any
    open: bool
    takes: bool

    def __next__(self) -> Any:
        if self.takes and self.open:
            raise StopIteration
        while True:
            item = next(self.source)
            if self.open:
                return item
            passed = decided(_call(self.function, item))
            if passed and self.takes:
                return item
            if not passed:
                self.put("open", True)
                if self.takes:
                    raise StopIteration
                return item


class Chain(OwnIterator):
    kind = itertools.chain
    sources: Any
    active: Any

    def __next__(self) -> Any:
        while True:
            if isinstance(self.active, Poison):
                use(self.active)
            if self.active is None:
                self.put("active", own(next(self.sources)))
            try:
                return next(self.active)
            except StopIteration:
                self.put("active", None)


class Slice(OwnIterator):
    """``islice``. Its counts are the lengths of ranges, which are not joined: paths that left others part."""

    kind = itertools.islice
    source: Any
    count: Any
    wanted: Any
    stop: Any
    step: int

    def __next__(self) -> Any:
        count, wanted = len(self.count), len(self.wanted)
        last = self.stop is not None and wanted >= self.stop
        while count < (self.stop if last else wanted):
            next(self.source)
            count += 1
            self.put("count", range(count))
        if last:
            raise StopIteration
        item = next(self.source)
        self.put("count", range(count + 1))
        self.put("wanted", range(wanted + self.step))
        return item


class Accumulate(OwnIterator):
    kind = itertools.accumulate
    source: Any
    function: Any
    total: Any
    started: bool

    def __next__(self) -> Any:
        if not self.started:
            self.put("started", True)
            if self.total is None:
                self.put("total", next(self.source))
            return self.total
        item = next(self.source)
        self.put("total", self.total + item if self.function is None else _call(self.function, self.total, item))
        return self.total


class Pairs(OwnIterator):
    source: Any
    before: Any
    started: bool

    def __next__(self) -> Any:
        if not self.started:
            self.put("before", next(self.source))
            self.put("started", True)
        first, second = self.before, next(self.source)
        self.put("before", second)
        return first, second


def _call(function: Any, *args: Any) -> Any:
    return program().operators.call(function, *args)


def decided(x: Any) -> bool:
    cond = truth(x)
    return current().decisions.decide(cond) if isinstance(cond, Value) else bool(cond)


def own(iterable: Any) -> Any:
    """Return ``iter(iterable)``, with its position in an attribute where that can be."""
    if isinstance(iterable, Poison):
        use(iterable)
    kind = type(iterable)
    if issubclass(kind, OwnIterator):
        return iterable
    plain = getattr(kind, "__iter__", None)
    if isinstance(iterable, torch.Tensor):
        if iterable.dim() == 0:
            raise TypeError("iteration over a 0-d tensor")
        return _Positions(items=tuple(iterable.unbind(0)), position=0, step=1)
    if plain in _SEQUENCES or is_stand_in(iterable):
        return sequence(iterable)
    if plain in _SIZED:
        return _Snapshot(items=tuple(iterable), source=iterable, position=0, step=1)
    made = begun(iterable)
    return made if made is iterable else adopted(made)


_SEQUENCES: frozenset[Any] = frozenset([list.__iter__, tuple.__iter__, range.__iter__, str.__iter__, bytes.__iter__])
_SIZED: frozenset[Any] = frozenset(
    [k.__iter__ for k in (dict, set, frozenset, deque, type({}.keys()), type({}.values()), type({}.items()))]  # type: ignore[attr-defined, var-annotated]
)


def is_stand_in(x: Any) -> bool:
    """Whether something stands for a list or tuple, whose iterators see what is written to it."""
    return issubclass(type(x), ByIndex) and isinstance(x, (list, tuple, range))


def sequence(items: Any, position: int = 0, step: int = 1) -> _Positions:
    made = _Positions(items=items, position=position, step=step)
    plain = [] if issubclass(type(items), ByIndex) else items
    made.kind = type(iter(plain)) if step > 0 else type(reversed(plain))
    return made


def adopted(x: Any) -> Any:
    """Return an iterator of Python's that nobody else holds with its position in an attribute; ``x`` if that cannot be."""
    if isinstance(x, (types.GeneratorType, torch.Tensor)) or type(x) not in ADOPTED:
        return x
    return twin(x)


def twin(x: Any) -> Any:
    """Return an iterator that goes on as ``x`` would, which stays where it is."""
    if type(x) not in ADOPTED or issubclass(type(x), OwnIterator):
        return x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = x.__reduce__()
    return _restored(*made)


def _restored(function: Any, args: tuple[Any, ...], state: Any = None) -> Any:
    if function in (iter, reversed):
        (items,) = args
        if state is None:
            return sequence(items, 0 if function is iter else len(items) - 1, 1 if function is iter else -1)
        return sequence(items, state, 1 if function is iter else -1)
    if function is enumerate:
        return Enumerate(source=twin(args[0]), count=args[1])
    if function is zip:
        return Zip(sources=tuple(map(twin, args)), strict=bool(state))
    if function is map:
        return Map(function=args[0], sources=tuple(map(twin, args[1:])))
    if function is filter:
        return Filter(function=args[0], source=twin(args[1]), wanted=True)
    if function is itertools.count:
        return Count(value=args[0], step=args[1] if len(args) > 1 else 1)
    if function is itertools.repeat:
        return Repeat(item=args[0], left=args[1] if len(args) > 1 else None, most=args[1] if len(args) > 1 else 0)
    if function is itertools.cycle:
        saved, first = state
        source = twin(args[0])
        if type(source) is not _Positions:
            return CycleOf(source=source, saved=list(saved), position=-1)
        rest = list(source.items)[source.position :] if source.position >= 0 else []
        items = tuple(saved) if first and len(rest) <= len(saved) else (*saved, *rest)
        position = len(items) - len(rest)
        return Cyclic(items=items, source=items, position=position % max(len(items), 1))
    raise AssertionError(function)


#: Iterators of Python's that say where they are.
ADOPTED: frozenset[type] = frozenset(
    [
        *map(type, (iter([]), iter(()), iter(range(0)), iter(""), iter(b""), reversed([]), iter({}), iter({}.items()), iter({}.values()))),
        type(iter(set())),
        type(iter(range(1 << 70))),
        enumerate,
        zip,
        map,
        filter,
        itertools.count,
        itertools.repeat,
        itertools.cycle,
    ]
)
if sys.version_info >= (3, 14):  # itertools no longer say it
    ADOPTED -= {itertools.count, itertools.repeat, itertools.cycle}
