# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Between which numbers the results of operators lie that give positions along a dimension, count, or take what has bounds."""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.trace.values.intervals import Bounds

#: Operators of which a result has bounds, and which of their results are positions along a dimension, if one is.
RANGED: dict[str, int | None] = {
    "argmax": 0,
    "argmin": 0,
    "max": 1,
    "min": 1,
    "topk": 1,
    "sort": 1,
    "argsort": 0,
    **dict.fromkeys(["sum", "count_nonzero", "amax", "amin", "_to_copy"]),
}
_CHOOSING = ("max", "min", "amax", "amin", "topk", "sort")


def ranges_of(name: str, bound: dict[str, Any], t: torch.Tensor, known: Bounds | None) -> dict[int, Bounds]:
    """Return the least and the largest element of those results of which they are known.

    ``t`` is the operand, between the elements of ``known``, and ``bound`` are the arguments.
    """
    known = (0, 1) if t.dtype == torch.bool else known
    dims = bound.get("dim", -1 if name in ("topk", "sort", "argsort") else None)
    shape = tuple(map(int, t.shape)) or (1,)
    dims = list(range(len(shape))) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    size = math.prod(shape[d] for d in dims)
    if name == "count_nonzero":
        return {0: (0, size)}
    if name == "sum":
        return (
            {0: (min(known[0], 0) * size, max(known[1], 0) * size)}
            if known is not None and bound.get("dtype") in (None, torch.int64)
            else {}
        )
    if name == "_to_copy":
        return {0: known} if known is not None and _holds(bound.get("dtype") or t.dtype, known) else {}
    which = RANGED[name]
    found = {0: known} if known is not None and name in _CHOOSING else {}
    return found if which is None else {**found, which: (0, size - 1)}


def _holds(dtype: torch.dtype, bounds: Bounds) -> bool:
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return False
    limits = torch.iinfo(dtype)
    return limits.min <= bounds[0] and bounds[1] <= limits.max
