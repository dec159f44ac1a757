# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lengths that grow by the same amount in every trip of a loop: ``constant + factor * trips``.

Where a loop's state grows, what is computed of its shapes is of this form, so most questions about shapes have one answer in all trips:
two lengths of the same loop are compared by their difference. Which trips there are is an assumption (:attr:`Counter.last`) that the
header of the loop proves when its body has been recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.hcfg.nodes import Block, Value


@dataclass(eq=False)
class Counter:
    """How many trips of a loop have ended.

    Attributes
    ----------
    value : Value
        At the header.
    last : int
        No trip begins with more.
    first : int
        None begins with fewer: where a test of a length has been passed, that is known.
    told : bool
        Whether the place at hand is reached after certain numbers of trips only.
    loop : object
        What to fork where a length must be a plain number: the loop.
    thresholds : set of int
        Numbers of trips beyond the last at which comparisons that have one answer up to there would have another.
    claims : list
        What has to hold too: what was recorded in a block is right only up to a number of trips, after which it is not reached.
    proves : bool
        Whether claims are proved, with the number of trips; where they are not there may be none.
    part : (Split, int) or None
        Of a part that a tensor was split into: the split, and which of its parts it is.
    base : (Value, int) or None
        Of a number of the run: another value, or what stands for it, and by how much it is larger. Where that is one, so are the numbers.
    """

    value: Value
    last: int
    loop: Any
    first: int = 0
    told: bool = False
    thresholds: set[int] = field(default_factory=set)
    #: (block of the body, number of trips): after more than these the block must not be reached.
    claims: list[tuple[Block, int]] = field(default_factory=list)
    proves: bool = False
    part: tuple[Split, int] | None = None
    base: tuple[Any, int] | None = None
    #: What is known of it, and of all numbers that are known to be so far from it.
    known: Told = field(default_factory=lambda: Told())

    def __post_init__(self) -> None:
        self.known.counters.append(self)

    @property
    def root(self) -> tuple[Any, int]:
        """The number that stands for all that are so far from one another, and by how much this one is larger."""
        return self.base or (self.value, 0)

    def learn(self, first: int, last: int) -> Before:
        """Go on where there are no fewer and no more: return what was known before, for :func:`forget`."""
        more = self.root[1]
        return self.known.learn(first - more, last - more)


class Told:
    """What the tests that were passed tell of a number, and of the counters of numbers that are so far from it.

    Attributes
    ----------
    counters : list of Counter
    ends : (int, int)
        Between which numbers it is.
    """

    def __init__(self) -> None:
        self.counters: list[Counter] = []
        self.ends: tuple[int, int] = (-(2**63), 2**63 - 1)

    @property
    def decided(self) -> int | None:
        """What it is on the path at hand, to its end."""
        return current().decisions.number(self)

    def decide(self, more: int, least: int, most: int, is_it: Callable[[int], Any]) -> int:
        """Return what a number that is so much larger is on the path at hand: each that it may be is a path of its own."""
        decisions, known = current().decisions, self.decided
        if known is None:
            if least == most:  # which may be so on a side of a test only
                return most
            known = next((n for n in range(least, most) if decisions.decide(is_it(n))), most) - more
            decisions.note_number(self, known)
        return known + more

    def within(self, least: int, most: int, more: int) -> tuple[int, int]:
        """Return what is left of the bounds of a number that is so much larger."""
        ends = self.ends if (known := self.decided) is None else (known, known)
        return _within((least, most), ends[0] + more, ends[1] + more)

    def learn(self, low: int, high: int) -> Before:
        """Go on where the number is within bounds: return what was known before, for :func:`forget`."""
        current().get(Learned).told[self] = None
        before = self, self.ends, [(c, (c.first, c.last, c.told)) for c in self.counters]
        self.ends = _within(self.ends, low, high)
        for c in self.counters:
            more = c.root[1]
            c.first, c.last = _within((c.first, c.last), low + more, high + more)
            c.told = True
        return before


class Learned(OfOneRun):
    """The numbers of which tests have told something."""

    def __init__(self) -> None:
        self.told: dict[Told, None] = {}

    def settled(self) -> dict[Counter, int]:
        """Return the counters that are known at the place at hand, and what they are."""
        return {c: c.last for told in self.told for c in told.counters if c.told and c.first == c.last}


Before = tuple[Told, tuple[int, int], list[tuple[Counter, tuple[int, int, bool]]]]


def _within(ends: tuple[int, int], low: int, high: int) -> tuple[int, int]:
    """Return what is left of bounds within others; themselves where nothing is, as then no run comes to the place."""
    left = max(ends[0], low), min(ends[1], high)
    return left if left[0] <= left[1] else ends


def forget(before: Before) -> None:
    """Know no more than before :meth:`Told.learn`."""
    told, ends, counters = before
    told.ends = ends
    for c, known in counters:
        c.first, c.last, c.told = known


@dataclass(eq=False)
class Split:
    """A tensor that was split into parts by numbers of the run: how long it is, and how many parts there are."""

    whole: Affine
    count: int


@dataclass(frozen=True)
class Length:
    """``constant + factor * trips``."""

    counter: Counter
    factor: int
    constant: int

    def at(self, trips: int) -> int:
        """Return the length after a number of trips."""
        return self.constant + self.factor * trips

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest length."""
        ends = (self.at(self.counter.first), self.at(self.counter.last))
        return min(ends), max(ends)

    @property
    def settled(self) -> int | None:
        """The length, if the number of trips is known."""
        counter, decided = self.counter, self.counter.known.decided
        if decided is not None:  # where that cannot be, no run comes to the place
            return self.at(min(max(decided + counter.root[1], counter.first), counter.last))
        return self.at(counter.last) if counter.told and counter.first == counter.last else None

    @property
    def origin(self) -> tuple[Counter | Value, int, int]:
        """What the length is computed of, and how: lengths for which that is the same are one."""
        if self.counter.base is None:
            return self.counter, self.factor, self.constant
        base, more = self.counter.base
        return base, self.factor, self.constant + self.factor * more

    def most_trips(self, most: int) -> int:
        """Return after how many trips a length that grows is still no more than ``most``."""
        return (most - self.constant) // self.factor

    def by(self, counter: Counter) -> Length | None:
        """Return the length by another counter; None if the two are not known to differ by a constant."""
        own, other = self.counter.base, counter.base
        if own is None or other is None or own[0] is not other[0]:
            return None
        return Length(counter, self.factor, self.constant + self.factor * (own[1] - other[1]))

    def plus(self, constant: int) -> Length:
        """Return the length and so much more."""
        return Length(self.counter, self.factor, self.constant + constant)


Affine = Length | int
COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def combine(op: str, a: Affine, b: Affine) -> Affine | None:
    """Return what arithmetic makes of lengths, or the truth of a comparison; None if it is no length, or not known."""
    if op in ("add", "sub"):
        sign = 1 if op == "add" else -1
        return _sum(a, b, sign)
    if op == "mul":
        if isinstance(a, int):
            a, b = b, a
        return _made(a.counter, a.factor * b, a.constant * b) if isinstance(a, Length) and isinstance(b, int) else None
    if op in ("floordiv", "mod") and isinstance(a, Length) and isinstance(b, int) and b > 0 and a.factor % b == 0:
        return _made(a.counter, a.factor // b, a.constant // b) if op == "floordiv" else a.constant % b
    if op in COMPARE:
        difference = _sum(a, b, -1)
        if isinstance(difference, int):
            return COMPARE[op](difference, 0)
        return None if difference is None else _decided(op, difference)
    return None


def _sum(a: Affine, b: Affine, sign: int) -> Affine | None:
    if isinstance(a, int) and isinstance(b, int):
        return a + sign * b
    if isinstance(a, Length) and isinstance(b, Length):
        if a.counter is not b.counter:
            return _sum(a, same, sign) if (same := b.by(a.counter)) is not None else None
        return _made(a.counter, a.factor + sign * b.factor, a.constant + sign * b.constant)
    if isinstance(a, Length):
        assert isinstance(b, int)
        return a.plus(sign * b)
    assert isinstance(b, Length)
    return Length(b.counter, sign * b.factor, a + sign * b.constant)


def _made(counter: Counter, factor: int, constant: int) -> Affine:
    return Length(counter, factor, constant) if factor else constant


def _decided(op: str, difference: Length) -> bool | None:
    """Return the truth of ``difference op 0`` if it is the same in all trips; note after which trip it would change."""
    holds, counter = COMPARE[op], difference.counter
    turns = sorted(
        {
            t
            for t in _around(-difference.constant, difference.factor)
            if t > counter.first and holds(difference.at(t), 0) != holds(difference.at(t - 1), 0)
        }
    )
    if any(t <= counter.last for t in turns):
        return None
    counter.thresholds.update(turns)
    return holds(difference.at(counter.first), 0)


NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
#: Where there may be more trips, a test of a length does not tell which.
_MOST_TOLD = 4096


@dataclass(frozen=True)
class Test:
    """A comparison whose answer depends on the number of trips: ``difference op 0``."""

    op: str
    difference: Length

    @staticmethod
    def of(op: str, a: Affine | None, b: Affine | None) -> Test | None:
        """Return the test that a comparison of lengths is; None if it is none."""
        difference = _sum(a, b, -1) if a is not None and b is not None and op in COMPARE else None
        return Test(op, difference) if isinstance(difference, Length) else None

    @property
    def loop(self) -> Any:
        """What decides the number of trips."""
        return self.difference.counter.loop

    def negated(self) -> Test:
        """Return the test that holds where this one does not."""
        return Test(NEGATED[self.op], self.difference)

    def begin(self, holds: bool) -> Before | None:
        """Go on where the test has an answer: return what was known of the number of trips before it, for :meth:`end`."""
        counter = self.difference.counter
        if counter.last - counter.first < _MOST_TOLD:
            trips = [t for t in range(counter.first, counter.last + 1) if COMPARE[self.op](self.difference.at(t), 0) == holds]
            if 0 < len(trips) <= counter.last - counter.first:
                return counter.learn(trips[0], trips[-1])
        return None

    def end(self, before: Before | None) -> None:
        """Go on where nothing is known of the answer."""
        if before is not None:
            forget(before)


def _around(number: int, factor: int) -> range:
    """Return the numbers of trips about the one at which ``factor * trips`` is ``number``."""
    root = number // factor
    return range(root - 1, root + 4)
