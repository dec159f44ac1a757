# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that PyTorch's exporter, or ONNX Runtime for some types, does not know, by those that they know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.hcfg.checks import WITHIN
from dycl_tvm.hcfg.moving import APART, TOGETHER, apart, together


def _nonzero_static(mask: torch.Tensor, *, size: int, fill_value: int = 0) -> torch.Tensor:
    """Return the places of a mask in their order, as many as ``size`` says; what there is not is ``fill_value``."""
    flat = mask.reshape(-1)
    rank = flat.to(torch.int64).cumsum(0) - 1
    # One place more takes all that is not wanted.
    row = torch.where(flat & (rank < size), rank, size)
    place = torch.zeros(size + 1, dtype=torch.int64).scatter(0, row, torch.arange(flat.shape[0]))[:size]
    columns = []
    for extent in reversed(mask.shape):
        columns.append(place % extent)
        place = place // extent
    there = torch.arange(size) < flat.to(torch.int64).sum()
    return torch.where(there.unsqueeze(1), torch.stack(columns[::-1], 1), fill_value)


def _where(cond: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Choose among elements; ONNX Runtime chooses no bools."""
    if a.dtype == b.dtype == torch.bool:
        return (cond & a) | (~cond & b)
    return torch.where(cond, a, b)


def _sort(x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Sort by ONNX's TopK, which keeps equal elements in their order, and of which NaN are no elements: they go behind, or in front."""
    if not x.dim():
        return x, torch.zeros((), dtype=torch.int64)
    wide, count = x if x.dtype not in _NOT_SORTED else x.to(torch.int32), x.shape[dim]
    if not x.dtype.is_floating_point:
        places = torch.topk(wide, count, dim, descending, True)[1]
    else:
        missing = torch.isnan(wide)
        places = torch.topk(torch.where(missing, torch.zeros_like(wide), wide), count, dim, descending, True)[1]
        behind = torch.topk(missing.gather(dim, places).to(torch.int32), count, dim, descending, True)[1]
        places = places.gather(dim, behind)
    return x.gather(dim, places), places


#: Types of which ONNX Runtime has no TopK.
_NOT_SORTED = (torch.bool, torch.int8, torch.int16, torch.uint8)


def element_or(chosen: torch.Tensor, element: int, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one element where a flag says so, else another tensor."""
    return _where(chosen, torch.full((), element, dtype=x.dtype), x)


WRITTEN: dict[str, Callable[..., Any]] = {
    "aten.nonzero_static.default": _nonzero_static,
    "aten.where.self": _where,
    "aten.sort.stable": _sort,
    TOGETHER: together,
    APART: apart,
    WITHIN: lambda x, low, high, message: x,  # its elements are asked for by a question beside it
}
