# Licensed under the Apache License, Version 2.0; see LICENSE.
"""By how much at least, and at most, a number of the run is larger than another one: a counter that moves on, by one step or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.values.intervals import Bounds


@dataclass(frozen=True)
class Advance:
    """A number is between ``root + least`` and ``root + most``; None where that is not known.

    Attributes
    ----------
    root : Value
    least, most : int or None
    """

    root: Any
    least: int | None
    most: int | None

    def plus(self, least: int | None, most: int | None) -> Advance | None:
        """Return the advance of a number that is so much larger again; None if nothing is known of it."""
        return Advance(self.root, _sum(self.least, least), _sum(self.most, most)).if_known()

    def if_known(self) -> Advance | None:
        """Return this; None if it says nothing."""
        return None if self.least is None and self.most is None else self

    @property
    def rises(self) -> bool:
        """Whether the number is surely no smaller than the root."""
        return self.least is not None and self.least >= 0

    @property
    def falls(self) -> bool:
        """Whether it is surely no larger."""
        return self.most is not None and self.most <= 0


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def advance_of(x: Any) -> Advance | None:
    """Return how far an int of the run is from another one, which is itself if none is known; None for what Python knows."""
    if not isinstance(x, torch.SymInt):
        return None
    root, more = x.node.base
    return x.node.advance or Advance(root, more, more)


def note_step(made: Any, op: str, a: Any, b: Any, of_a: Bounds | None, of_b: Bounds | None) -> None:
    """Note how far a sum or a difference of two ints, of which these bounds are known, is from one of them."""
    sign = {"add": 1, "sub": -1}.get(op)
    if sign is None:
        return
    is_turned = op == "add" and (type(a) is int or (of_a is not None and of_b is None))
    of, by, step = (b, a, of_a) if is_turned else (a, b, of_b)
    if not isinstance(of, torch.SymInt) or step is None:
        return
    if type(by) is int:
        root, more = of.node.base
        made.node.base = (root, more + sign * by)
    least, most = sorted(sign * n for n in step)
    found = of.node.advance if type(by) is int else advance_of(of)
    made.node.advance = found and found.plus(least, most)


def one_advance(numbers: Sequence[Any]) -> Advance | None:
    """Return how far a number is from another one that is one of several: of those that are all counted from the same."""
    found = [advance_of(x) for x in numbers]
    first = found[0]
    if first is None or any(f is None or f.root is not first.root for f in found):
        return None
    least, most = [f.least for f in found], [f.most for f in found]  # type: ignore[union-attr]  # none is None
    return Advance(first.root, None if None in least else min(least), None if None in most else max(most)).if_known()  # type: ignore[type-var]


def bounds_in_trips(before: Bounds | None, after: Bounds | None, trip: Advance) -> Bounds | None:
    """Return the bounds of a number at a loop's header: before the loop, and after any trip, of which no other bounds were assumed.

    ``trip`` is how far the number after a trip is from the number before it.
    """
    if before is None or after is None:
        return None
    return before[0] if trip.rises else min(before[0], after[0]), before[1] if trip.falls else max(before[1], after[1])


def trips_of(before: Bounds | None, after: Bounds | None, trip: Advance) -> int | None:
    """Return how many trips a loop makes at most in each of which a number gets larger, or smaller; None if nothing tells.

    The arguments are those of :func:`bounds_in_trips`.
    """
    if before is None or after is None:
        return None
    if trip.least is not None and trip.least > 0:
        return max((after[1] - before[0]) // trip.least, 0)
    return max((before[1] - after[0]) // -trip.most, 0) if trip.most is not None and trip.most < 0 else None
