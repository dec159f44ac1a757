# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a comparison tells of a number that is known only at run time: between which bounds it is where the comparison has an answer."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.intervals import Bounds
from dycl_tvm.frontend.trace.values.lengths import COMPARE, NEGATED, Affine, Test

_INT64: Bounds = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, eq=False)
class NumberTest:
    """A comparison ``number op other``.

    Attributes
    ----------
    op : str
    node : Node
        Of the number.
    other : (int, int)
        The least and the largest value of what it is compared with.
    """

    op: str
    node: Any
    other: Bounds
    #: No loop is taken apart by it.
    loop = None

    def negated(self) -> NumberTest:
        """Return the test that holds where this one does not."""
        return NumberTest(NEGATED[self.op], self.node, self.other)

    def begin(self, holds: bool) -> Bounds | None:
        """Go on where the test has an answer: return what was known of the number before it, for :meth:`end`."""
        before: Bounds | None = self.node.bounds
        (low, high), (least, most) = before or _INT64, self.other
        op = self.op if holds else NEGATED[self.op]
        low = max(low, {"gt": least + 1, "ge": least, "eq": least}.get(op, low))
        high = min(high, {"lt": most - 1, "le": most, "eq": most}.get(op, high))
        if low <= high and (before is not None or (low, high) != _INT64):
            self.node.bounds = (low, high)
        return before

    def end(self, before: Bounds | None) -> None:
        """Go on where nothing is known of the answer."""
        self.node.bounds = before


@dataclass(frozen=True, eq=False)
class Several:
    """Several tests of which all hold, or one does: where all hold, or none does, each of them tells something.

    Where one holds, all of them together do if they are of one number: it is between the bounds of one of them.

    Attributes
    ----------
    tests : tuple
    all : bool
        Whether all hold where this one does.
    complete : bool
        Whether there is no other test beside these.
    """

    tests: tuple[Any, ...]
    all: bool
    complete: bool

    @staticmethod
    def of(tests: list[Any], all: bool) -> Several | None:
        """Return tests as one; what tells nothing is None."""
        parts = [test if isinstance(test, Several) and test.all == all else Several((test,), all, True) for test in tests if test]
        found = tuple(test for part in parts for test in part.tests)
        return Several(found, all, len(parts) == len(tests) and builtins.all(p.complete for p in parts)) if found else None

    @property
    def loop(self) -> Any:
        """The loop that one of the tests tells something of, if any does."""
        loops = [test.loop for test in self.tests]
        return next((loop for loop in loops if getattr(loop, "is_loop", False)), loops[0])

    def negated(self) -> Several:
        """Return the test that holds where this one does not."""
        return Several(tuple(test.negated() for test in self.tests), not self.all, self.complete)

    def begin(self, holds: bool) -> list[Any]:
        """Go on where the test has an answer: return what was known before it, for :meth:`end`."""
        if holds == self.all:
            return [(test, test.begin(holds)) for test in self.tests]
        first = self.tests[0]
        if not self.complete or not builtins.all(isinstance(test, NumberTest) and test.node is first.node for test in self.tests):
            return []
        before, ends = first.node.bounds, []
        for test in self.tests:
            test.begin(holds)
            ends.append(first.node.bounds)
            first.node.bounds = before
        if None not in ends:
            first.node.bounds = (min(low for low, _ in ends), max(high for _, high in ends))
        return [(first, before)]

    def end(self, before: list[Any]) -> None:
        """Go on where nothing is known of the answer."""
        for test, known in reversed(before):
            test.end(known)


class Answers:
    """How many comparisons of a session had answers that Python does not know, but the bounds of the numbers tell."""

    def __init__(self) -> None:
        self.by_bounds = 0


def answers_by_bounds() -> int:
    """Return how many comparisons were answered so far by the bounds of their numbers."""
    return current().get(Answers).by_bounds


def answer_by_bounds(op: str, of_a: Bounds | None, of_b: Bounds | None) -> bool | None:
    """Return the answer of a comparison if it follows from the bounds of the numbers."""
    if of_a is None or of_b is None:
        return None
    found = {COMPARE[op](x, y) for x in of_a for y in of_b}
    if len(found) != 1 or (op in ("eq", "ne") and of_a[0] <= of_b[1] and of_b[0] <= of_a[1]):
        return None
    current().get(Answers).by_bounds += 1
    return found.pop()


def test_of(op: str, node: Any, other: Bounds | None, lengths: tuple[Affine | None, Affine | None]) -> Test | NumberTest | None:
    """Return what a comparison of a number is a test of: of lengths, or of the number; None if it tells nothing of either."""
    found = Test.of(op, *lengths)
    if found is not None or other is None or op not in NEGATED or node.kind != "int" or node.length is not None:
        return found
    return NumberTest(op, node, other)


def of_others(told: Any, counter: Any) -> Any:
    """Return what a test that holds tells of other numbers than the trips that a counter counts."""
    if isinstance(told, Several) and told.all:
        return Several.of([of_others(test, counter) for test in told.tests], all=True)
    return None if isinstance(told, Test) and told.difference.counter is counter else told
