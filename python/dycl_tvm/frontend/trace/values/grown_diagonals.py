# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Diagonals of tensors whose lengths are known only at run time, and tensors that are made of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dycl_tvm.frontend.trace.values.aligned import extent_at, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, extent_of, largest_of, least_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.grown_composed import composed, refuse_here
from dycl_tvm.frontend.trace.values.grown_math import Handler, left_of, refuse_call
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.tensors import view_of

_T = Tensor


def diagonal(func: Any, t: Grown, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """View a diagonal as the last dimension: it is as long as both dimensions allow."""
    rank = t.dim_()
    dims = [d % rank for d in (dim1, dim2)]
    if type(offset) is not int or dims[0] == dims[1]:
        return refuse_call(func, t)
    whole = t.padded().diagonal(offset, *dims)
    extents: dict[int, Extent] = dict(left_of(t, dims))
    if any(d in t.lengths for d in dims):
        extents[rank - 2] = _shorter(*[_behind(extent_at(t, rank - d), n) for d, n in zip(dims, (-offset, offset))])
    return view_of(t, cut(whole, extents))  # type: ignore[arg-type]  # one of staging's


def _behind(length: Extent | None, skipped: int) -> Extent:
    """Return how much there is of a dimension behind the first elements."""
    assert length is not None
    if skipped <= 0:
        return length
    least, most = [max(n - skipped, 0) for n in bounds_of(length)]
    return extent_of(largest_of(as_number(length) - skipped, 0), least, most)


def _shorter(a: Extent, b: Extent) -> Extent:
    if is_same(a, b):
        return a
    ends = [min(pair) for pair in zip(bounds_of(a), bounds_of(b))]
    return extent_of(least_of(as_number(a), as_number(b)), *ends)


def _is_diagonal(rows: Any, columns: Any) -> Tensor:
    return torch.arange(rows)[:, None] == torch.arange(columns)


def _diag_embed(t: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    if offset or sorted(d % (t.dim() + 1) for d in (dim1, dim2)) != [t.dim() - 1, t.dim()]:
        return refuse_here("diag_embed() of another diagonal or other dimensions")  # type: ignore[no-any-return]
    return torch.where(_is_diagonal(t.size(-1), t.size(-1)), t.unsqueeze(-1), torch.zeros((), dtype=t.dtype))


def _diag(t: Tensor, diagonal: int = 0) -> Tensor:
    return torch.diag_embed(t, diagonal) if t.dim() == 1 else t.diagonal(diagonal).clone()


def _trace(t: Tensor) -> Tensor:
    return t.diagonal().sum()


def _fill_diagonal(t: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    if wrap or t.dim() != 2:
        return refuse_here("fill_diagonal_() of such a diagonal")  # type: ignore[no-any-return]
    return t.masked_fill_(_is_diagonal(*t.size()), fill_value)


def _eye(n: Any, m: Any = None, *, dtype: Any = None, **kwargs: Any) -> Tensor:
    if any(x is not None and x is not False and str(x) not in ("cpu", "torch.strided") for x in kwargs.values()):
        return refuse_here("eye() with these arguments")  # type: ignore[no-any-return]
    return _is_diagonal(n, n if m is None else m).to(dtype or torch.get_default_dtype())


_BOTH = (torch, _T, torch._C._VariableFunctions)
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(named("diagonal", *_BOTH), diagonal),
    **dict.fromkeys(named("diag_embed", *_BOTH), composed(_diag_embed)),
    **dict.fromkeys(named("diag", *_BOTH), composed(_diag)),
    **dict.fromkeys(named("trace", *_BOTH), composed(_trace)),
    _T.fill_diagonal_: composed(_fill_diagonal),
}
#: Functions that take sizes.
SIZED: dict[Any, Handler] = {torch.eye: composed(_eye)}
