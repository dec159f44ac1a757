# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Between which numbers the results of operators lie that give positions along a dimension, or count."""

from __future__ import annotations

import math
from typing import Any

import torch

#: Operators that return positions along a dimension, or may count, and which of their results these are.
RANGED = {"argmax": 0, "argmin": 0, "max": 1, "min": 1, "topk": 1, "sort": 1, "argsort": 0, "sum": 0, "count_nonzero": 0}
_COUNTING = ("sum", "count_nonzero")


def range_of(name: str, bound: dict[str, Any], t: torch.Tensor) -> tuple[int, int] | None:
    """Return the least and the largest element of a result; None if that is not known. ``t`` is the operand, ``bound`` the arguments."""
    if name == "sum" and (t.dtype != torch.bool or bound.get("dtype") not in (None, torch.int64)):
        return None
    if name in _COUNTING:
        return 0, int(t.numel())
    dims = bound.get("dim", -1 if name in ("topk", "sort", "argsort") else None)
    shape = tuple(map(int, t.shape)) or (1,)
    dims = list(range(len(shape))) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    size = math.prod(shape[d] for d in dims)
    return 0, size - 1
