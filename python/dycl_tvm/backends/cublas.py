# Licensed under the Apache License, Version 2.0; see LICENSE.
"""cuBLAS: products of matrices on a GPU, as calls of a library that the machine that runs has. Taken on request only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.relax.dpl import is_op, wildcard

from dycl_tvm.backends.device_regions import MOST, call_of, common_dtype, is_half, match_of, shape_of
from dycl_tvm.backends.registry import Backend, Generated, Pattern, Region


def backend() -> Backend:
    """Return the backend ``cublas``."""
    return Backend("cublas", patterns, generate, on_request=True, on_device=True, merge=False)


def patterns(target: tvm.target.Target) -> Sequence[Pattern]:
    """Return the pattern of a product, for GPUs."""
    if str(target.kind.name) != "cuda":
        return []
    a, b = wildcard(), wildcard()
    return [Pattern("matmul", is_op("relax.matmul")(a, b), {}, lambda context: sizes(context.matched_expr) is not None)]


def sizes(call: Any) -> tuple[int, int, int, int] | None:
    """Return (batch, m, n, k) of a product that is one call of the library, or None.

    Both sides have the same batch, or the right side has none: then the left side's rows are rows of one matrix.
    """
    if common_dtype([*call.args, call]) is None:
        return None
    a, b = (shape_of(t) for t in call.args)
    if len(a) < 2 or len(b) < 2:
        return None
    lead = math.prod(a[:-2])
    if math.prod(b[:-2]) == 1 and len(b) <= len(a):
        found = (1, lead * a[-2], b[-1], a[-1])
    elif a[:-2] == b[:-2]:
        found = (lead, a[-2], b[-1], a[-1])
    else:
        return None
    return found if all(0 < s <= MOST for s in found) else None


def generate(regions: Sequence[Region], target: tvm.target.Target) -> Generated:
    """Write the call of each region."""
    parts = ['#include "cublas_region.h"\n']
    for region in regions:
        match = match_of(region)
        (product,) = match.calls
        batch, m, n, k = sizes(product) or (0, 0, 0, 0)
        a, b = (match.numbers[t] for t in product.args)
        parts.append(call_of(region, "cublas::Product", f"{batch}, {m}, {n}, {k}, {is_half(product)}, {a}, {b}, {match.output}"))
    return Generated(sources=(("cublas_regions.cc", "\n".join(parts)),))
