# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of whole numbers that are known only at run time."""

from __future__ import annotations

import operator
from typing import Any

Bounds = tuple[int, int]


def bounds_after(op: str, of_a: Bounds | None, of_b: Bounds | None, b: Any) -> Bounds | None:
    """Return the bounds of a result of integer arithmetic, of numbers of which these are known; ``b`` is the second one."""
    if isinstance(b, int):
        of_b = (b, b)
    positive = of_b is not None and of_b[0] > 0
    if op == "mod" and of_b is not None and positive:
        if of_a is not None and of_b[0] == of_b[1] and of_a[0] // of_b[0] == of_a[1] // of_b[0]:  # all have one quotient
            return (of_a[0] % of_b[0], of_a[1] % of_b[0])
        return (0, of_b[1] - 1)
    if of_a is None or of_b is None or not (op in ("add", "sub", "mul") or (op == "floordiv" and positive)):
        return None
    corners = [getattr(operator, op)(x, y) for x in of_a for y in of_b]
    return (min(corners), max(corners))


def bounds_in_trips(before: Bounds | None, after: Bounds | None, rises: bool, falls: bool) -> Bounds | None:
    """Return the bounds of a number at a loop's header: before the loop, and after any trip, of which no other bounds were assumed.

    ``rises`` and ``falls`` say that no trip makes the number smaller, or larger.
    """
    if before is None or after is None:
        return None
    return before[0] if rises else min(before[0], after[0]), before[1] if falls else max(before[1], after[1])


def trips_of(before: Bounds | None, after: Bounds | None, least: int | None, most: int | None) -> int | None:
    """Return how many trips a loop makes at most in each of which a number gets larger, or smaller; None if nothing tells.

    ``least`` and ``most`` are what a trip adds to it; the bounds are as :func:`bounds_in_trips` takes them.
    """
    if before is None or after is None:
        return None
    if least is not None and least > 0:
        return max((after[1] - before[0]) // least, 0)
    return max((before[1] - after[0]) // -most, 0) if most is not None and most < 0 else None
