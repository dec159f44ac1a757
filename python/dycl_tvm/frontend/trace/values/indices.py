# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Indices known only at run time."""

from __future__ import annotations

from typing import Any

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.raising import check


def check_index(index: Any, size: int) -> Any:
    """Bring an index into ``range(size)``; one outside is an IndexError on that path."""
    bounds = scalars.bounds_of(index)
    if bounds is not None and bounds[0] >= 0 and bounds[1] < size:
        return index
    message = f"index out of range: only -{size} to {size - 1} can index the dimension"
    require((index >= -size) & (index < size), IndexError(message))
    return scalars.select(index < 0, index + size, index)


def require(condition: Any, error: Exception) -> None:
    """Go on where a condition holds; elsewhere the path raises what eager raises there."""
    check(scalars.operand_of(condition), error)
