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
