# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The least and the largest of numbers that are known only at run time."""

from __future__ import annotations

from typing import Any

from dycl_tvm.frontend.trace.values import numbers as scalars

#: What an int known only at run time can be.
_INT64 = (-(2**63), 2**63 - 1)


def extremum(values: list[Any], largest: bool) -> Any:
    """``min`` or ``max`` of numbers, the first of equals, by comparisons in Python's order."""
    best = values[0]
    for value in values[1:]:
        if not scalars.is_symbolic(value) and not scalars.is_symbolic(best):
            best = max(best, value) if largest else min(best, value)
            continue
        bounds = [scalars.bounds_of(best) or _INT64, scalars.bounds_of(value) or _INT64]
        better = value > best if largest else value < best
        best = scalars.select(better, value, best)
        if scalars.is_symbolic(best) and best.node.kind == "int":
            best.node.bounds = tuple(map(max if largest else min, *bounds))
    return best
