# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Places in an order: medians, modes, running extremes, positions in sorted rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition

Pair = tuple[Tensor, Tensor]


def _along(function: Callable[..., Pair]) -> Callable[..., Pair]:
    """Make a function of tensors of rank 1 or more, whose results keep the dimension ``dim``, an operator with ``keepdim``."""

    def run(x: Tensor, *args: Any, dim: int, keepdim: bool) -> Pair:
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        values, places = function(x, *args, dim=dim)
        return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))

    return run


@_along
def _median(x: Tensor, dim: int) -> Pair:
    n = x.shape[dim]
    values, places = (t.narrow(dim, (n - 1) // 2, 1) for t in torch.sort(x, dim=dim, stable=True))
    if not x.is_floating_point():
        return values, places
    missing = torch.isnan(x)
    some = missing.any(dim, keepdim=True)
    return torch.where(some, math.nan, values).to(x.dtype), torch.where(some, missing.to(torch.int64).argmax(dim, keepdim=True), places)


@_along
def _nanmedian(x: Tensor, dim: int) -> Pair:
    values, places = torch.sort(x, dim=dim, stable=True)
    at = ((~torch.isnan(x)).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    return values.gather(dim, at), places.gather(dim, at)


@_along
def _kth(x: Tensor, k: int, dim: int) -> Pair:
    values, places = torch.sort(x, dim=dim, stable=True)
    return values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1)


@_along
def _mode(x: Tensor, dim: int) -> Pair:
    """Of the longest run of equal elements in order, the first of those that are as long; NaN equals nothing."""
    n = x.shape[dim]
    values, places = torch.sort(x, dim=dim, stable=True)
    number = _numbers(x, dim)
    last = number == n - 1
    ends = last if n == 1 else last | torch.cat([values.narrow(dim, 0, n - 1) != values.narrow(dim, 1, n - 1), last.narrow(dim, 0, 1)], dim)
    marks = torch.where(ends, number, -1)
    before = torch.cummax(torch.cat([torch.full_like(marks.narrow(dim, 0, 1), -1), marks.narrow(dim, 0, n - 1)], dim), dim)[0]
    longest = torch.where(ends, number - before, 0).argmax(dim, keepdim=True)
    return values.gather(dim, longest), places.gather(dim, longest)


def _numbers(x: Tensor, dim: int) -> Tensor:
    """Return the positions along a dimension, in the shape of ``x``."""
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return torch.arange(x.shape[dim]).reshape(shape).expand(x.shape)


@decomposition("median.dim")
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    return _median(x, dim=dim, keepdim=keepdim)


@decomposition("median.default")
def median(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), dim=0, keepdim=False)[0]


@decomposition("nanmedian.dim")
def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    return _nanmedian(x, dim=dim, keepdim=keepdim)


@decomposition("nanmedian.default")
def nanmedian(x: Tensor) -> Tensor:
    return _nanmedian(x.reshape(-1), dim=0, keepdim=False)[0]


@decomposition("kthvalue.default")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    return _kth(x, k, dim=dim, keepdim=keepdim)


@decomposition("mode.default")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    return _mode(x, dim=dim, keepdim=keepdim)


State = list[Tensor]


def _scanned(state: State, dim: int, combine: Callable[[State, State], State]) -> State:
    """Combine each element with all before it, by an associative function: as many steps as the length has bits."""
    n, number = state[0].shape[dim], _numbers(state[0], dim)
    by = 1
    while by < n:
        shifted = [torch.cat([t.narrow(dim, 0, by), t.narrow(dim, 0, n - by)], dim) for t in state]
        state = [torch.where(number < by, t, c) for t, c in zip(state, combine(shifted, state))]
        by *= 2
    return state


def _running(x: Tensor, dim: int, better: Callable[[Tensor, Tensor], Tensor]) -> Pair:
    """Return the best elements so far and where they are: the last of equal ones, and the last NaN, as ATen does."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)

    def combine(left: State, right: State) -> State:
        later = better(right[0], left[0])
        if x.is_floating_point():
            later = (later & ~torch.isnan(left[0])) | torch.isnan(right[0])
        return [torch.where(later, b, a) for a, b in zip(left, right)]

    values, places = _scanned([x, _numbers(x, dim)], dim, combine)
    return values, places.contiguous()


@decomposition("cummax.default")
def cummax(x: Tensor, dim: int) -> Pair:
    return _running(x, dim, torch.ge)


@decomposition("cummin.default")
def cummin(x: Tensor, dim: int) -> Pair:
    return _running(x, dim, torch.le)


@decomposition("logcumsumexp.default")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if x.is_complex():  # PyTorch gives an angle beyond pi or within, by the order of its sums
        raise NotImplementedError("running sums of complex exponentials")
    if x.dim() == 0:
        return x.clone()
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return _scanned([wide], dim, lambda left, right: [torch.logaddexp(left[0], right[0])])[0].to(x.dtype)


def _position(rows: Tensor, x: Tensor, right: bool) -> Tensor:
    """Return where elements of ``x`` would stand in sorted rows: the binary search of ATen, step by step, also where they are not."""
    n = rows.shape[-1]
    low = torch.zeros(x.shape, dtype=torch.int64)
    high = torch.full(x.shape, n, dtype=torch.int64)
    for _ in range(n.bit_length()):
        middle = (low + high) >> 1
        at = middle.clamp(max=n - 1)
        found = torch.take(rows, at) if rows.dim() == 1 else rows.gather(-1, at)
        above = ~(found > x) if right else ~(found >= x)
        open_ = low < high
        low, high = torch.where(open_ & above, middle + 1, low), torch.where(open_ & ~above, middle, high)
    return low


@decomposition("searchsorted.Tensor")
def searchsorted(
    rows: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Tensor | None = None
) -> Tensor:
    if sorter is not None:
        rows = rows.gather(-1, sorter)
    found = _position(rows, x, right or side == "right") if rows.shape[-1] else torch.zeros(x.shape, dtype=torch.int64)
    return found.to(torch.int32) if out_int32 else found


@decomposition("searchsorted.Scalar")
def searchsorted_scalar(rows: Tensor, x: float, **how: Any) -> Tensor:
    return searchsorted(rows, torch.full((), x, dtype=rows.dtype), **how)


@decomposition("bucketize.Tensor")
def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@decomposition("bucketize.Scalar")
def bucketize_scalar(x: float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted_scalar(boundaries, x, out_int32=out_int32, right=right)
