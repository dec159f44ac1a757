# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reductions of complex numbers that are not sums of their parts."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.compile.complex.arithmetic import abs_
from dycl_tvm.compile.complex.pair import Pair, complex_operator


@complex_operator("any.default", "any.dim", "any.dims")
def _any(x: Pair, *args: Any) -> Any:
    return torch.any(~x.is_zero(), *args)


@complex_operator("all.default", "all.dim", "all.dims")
def _all(x: Pair, *args: Any) -> Any:
    return torch.all(~x.is_zero(), *args)


@complex_operator("count_nonzero.dim_IntList", "count_nonzero.default")
def _count_nonzero(x: Pair, dim: Any = None) -> Any:
    return torch.count_nonzero(~x.is_zero(), dim)


@complex_operator("linalg_vector_norm.default")
def _vector_norm(x: Pair, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return torch.linalg.vector_norm(abs_(x), ord, dim, keepdim)


@complex_operator("norm.Scalar", "norm.ScalarOpt_dim")
def _norm(x: Pair, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    return torch.linalg.vector_norm(abs_(x), 2 if p is None else p, dim or None, keepdim)


@complex_operator("var.correction")
def _var(x: Pair, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    parts = x.map(lambda t: torch.var(t, dim, correction=1 if correction is None else correction, keepdim=keepdim))
    return parts.re + parts.im


@complex_operator("std.correction")
def _std(x: Pair, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return torch.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


@complex_operator("var_mean.correction")
def _var_mean(x: Pair, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _var(x, dim, correction=correction, keepdim=keepdim), x.map(lambda t: torch.mean(t, dim, keepdim=keepdim))


@complex_operator("std_mean.correction")
def _std_mean(x: Pair, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _std(x, dim, correction=correction, keepdim=keepdim), x.map(lambda t: torch.mean(t, dim, keepdim=keepdim))


@complex_operator("cumprod.default")
def _cumprod(x: Pair, dim: int, **_: Any) -> Pair:
    """Multiply each element with one that is 1, 2, 4 ... before it."""
    n = x.re.shape[dim] if x.re.dim() else 1
    shift = 1
    while shift < n:
        late = x.map(lambda t, s=shift: t.narrow(dim, s, n - s))  # type: ignore[misc]
        product = late * x.map(lambda t, s=shift: t.narrow(dim, 0, n - s))  # type: ignore[misc]
        early = x.map(lambda t, s=shift: t.narrow(dim, 0, s))  # type: ignore[misc]
        x = Pair(torch.cat([early.re, product.re], dim), torch.cat([early.im, product.im], dim))
        shift *= 2
    return x


@complex_operator("prod.default", "prod.dim_int")
def _prod(x: Pair, dim: int | None = None, keepdim: bool = False, **_: Any) -> Pair:
    """Multiply the halves of a dimension with each other until one element is left."""
    if dim is None:
        x, dim, keepdim = x.map(lambda t: t.reshape(-1)), 0, False
    if not x.re.dim():
        return x
    while (n := x.re.shape[dim]) > 1:
        half = n // 2
        rest = x.map(lambda t, h=half, n=n: t.narrow(dim, 2 * h, n - 2 * h))  # type: ignore[misc]
        product = x.map(lambda t, h=half: t.narrow(dim, 0, h)) * x.map(lambda t, h=half: t.narrow(dim, h, h))  # type: ignore[misc]
        x = Pair(torch.cat([product.re, rest.re], dim), torch.cat([product.im, rest.im], dim))
    return x if keepdim else x.map(lambda t: t.squeeze(dim))


@complex_operator("scatter.reduce")
def _scatter(x: Pair, dim: int, index: Any, source: Pair, *, reduce: str) -> Pair:
    if reduce != "add":
        raise NotImplementedError("products of complex elements that are scattered")
    return Pair(x.re.scatter_add(dim, index, source.re), x.im.scatter_add(dim, index, source.im))
