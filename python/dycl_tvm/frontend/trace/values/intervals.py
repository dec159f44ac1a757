# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of whole numbers that are known only at run time."""

from __future__ import annotations

import operator
from typing import Any

Bounds = tuple[int, int]


def bounds_after(op: str, of_a: Bounds | None, of_b: Bounds | None, b: Any) -> Bounds | None:
    """Return the bounds of a result of integer arithmetic, of numbers of which these are known; ``b`` is the second one."""
    if op == "mod" and isinstance(b, int) and b > 0:
        return (0, b - 1)
    if op == "floordiv" and isinstance(b, int) and b > 0 and of_a is not None:
        return (of_a[0] // b, of_a[1] // b)
    if of_a is None or of_b is None or op not in ("add", "sub", "mul"):
        return None
    corners = [getattr(operator, op)(x, y) for x in of_a for y in of_b]
    return (min(corners), max(corners))
