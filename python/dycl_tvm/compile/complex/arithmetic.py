# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complex numbers made of their parts, and taken apart; arithmetic and comparisons."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.compile.complex.pair import COMPLEX, Pair, complex_operator, in_float64, pair_of, parts_of


@complex_operator("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(x: Pair) -> Any:
    return torch.stack([x.re, x.im], -1)


@complex_operator("view_as_complex.default", "view_as_complex_copy.default")
def _view_as_complex(x: Any) -> Pair:
    return Pair(x[..., 0], x[..., 1])


@complex_operator("view.dtype")
def _view_dtype(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Pair) and dtype == x.re.dtype:
        return torch.stack([x.re, x.im], -1).reshape(*x.re.shape[:-1], -1)
    if not isinstance(x, Pair) and parts_of(dtype) == x.dtype:
        rows = x.reshape(*x.shape[:-1], -1, 2)
        return Pair(rows[..., 0], rows[..., 1])
    raise NotImplementedError("the bytes of complex numbers as other numbers than their parts")


@complex_operator("complex.default")
def _complex(re: Any, im: Any) -> Pair:
    re, im = torch.broadcast_tensors(re, im)
    return Pair(re, im)


@complex_operator("polar.default")
def _polar(length: Any, angle: Any) -> Pair:
    return Pair(length * torch.cos(angle), length * torch.sin(angle))


@complex_operator("real.default")
def _real(x: Pair) -> Any:
    return x.re


@complex_operator("imag.default")
def _imag(x: Pair) -> Any:
    return x.im


@complex_operator("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default", "_conj_copy.default")
def _conj(x: Pair) -> Pair:
    return x.conj()


@complex_operator("neg.default", "_neg_view.default")
def _neg(x: Pair) -> Pair:
    return -x


@complex_operator("_to_copy.default", "to.dtype")
def _to_copy(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if dtype is None:
        return x
    if dtype.is_complex:
        return pair_of(x).map(lambda t: t.to(parts_of(dtype)))
    if dtype == torch.bool:
        return ~x.is_zero()
    return x.re.to(dtype)


@complex_operator("add.Tensor", "add.Scalar")
def _add(a: Any, b: Any, alpha: Any = 1) -> Pair:
    return pair_of(a) + _times(b, alpha)


@complex_operator("sub.Tensor", "sub.Scalar")
def _sub(a: Any, b: Any, alpha: Any = 1) -> Pair:
    return pair_of(a) - _times(b, alpha)


@complex_operator("rsub.Tensor", "rsub.Scalar")
def _rsub(a: Any, b: Any, alpha: Any = 1) -> Pair:
    return pair_of(b) - _times(a, alpha)


def _times(x: Any, factor: Any) -> Pair:
    return pair_of(x) if factor == 1 else pair_of(x) * pair_of(factor)


@complex_operator("mul.Tensor", "mul.Scalar")
def mul(a: Any, b: Any) -> Pair:
    """Multiply as ATen does: a real factor counts as one whose imaginary part is zero."""
    return pair_of(a) * pair_of(b)


@complex_operator("div.Tensor", "div.Scalar")
def div(a: Any, b: Any) -> Pair:
    """Divide both by the larger part of the divisor first, as ATen does, so that no square overflows."""
    x, y = pair_of(a), pair_of(b)
    if not isinstance(y.re, torch.Tensor):
        y = y.map(lambda part: torch.full((), part, dtype=x.re.dtype))
    scale = torch.maximum(y.re.abs(), y.im.abs())
    x, y = x.map(lambda t: t / scale), y.map(lambda t: t / scale)
    square = y.re * y.re + y.im * y.im
    return (x * y.conj()).map(lambda t: t / square)


@complex_operator("reciprocal.default")
def _reciprocal(x: Pair) -> Pair:
    return div(torch.ones_like(x.re), x)


@complex_operator("square.default")
def _square(x: Pair) -> Pair:
    return x * x


def length(x: Pair) -> Any:
    """Return the length by squares, which must not overflow."""
    return torch.sqrt(x.re * x.re + x.im * x.im)


_wide_length = in_float64(length)


@complex_operator("abs.default")
def abs_(x: Pair) -> Any:
    """Return the length: of float32 by squares in float64, which neither overflow nor vanish."""
    return torch.hypot(x.re, x.im) if x.re.dtype == torch.float64 else _wide_length(x)


@complex_operator("angle.default")
def angle(x: Pair) -> Any:
    return torch.atan2(x.im, x.re)


@complex_operator("sgn.default")
def _sgn(x: Pair) -> Pair:
    size = abs_(x)
    return x.map(lambda t: torch.where(size == 0, torch.zeros_like(t), t / size))


@complex_operator("eq.Tensor", "eq.Scalar")
def _eq(a: Any, b: Any) -> Any:
    x, y = pair_of(a), pair_of(b)
    return (x.re == y.re) & (x.im == y.im)


@complex_operator("ne.Tensor", "ne.Scalar")
def _ne(a: Any, b: Any) -> Any:
    return ~_eq(a, b)


def _is_zero(x: Any) -> Any:
    return x.is_zero() if isinstance(x, Pair) else x == 0


COMPLEX["aten.logical_not.default"] = _is_zero
COMPLEX["aten.logical_and.default"] = lambda a, b: ~_is_zero(a) & ~_is_zero(b)
COMPLEX["aten.logical_or.default"] = lambda a, b: ~_is_zero(a) | ~_is_zero(b)
COMPLEX["aten.logical_xor.default"] = lambda a, b: _is_zero(a) ^ _is_zero(b)
COMPLEX["aten.isnan.default"] = lambda x: torch.isnan(x.re) | torch.isnan(x.im)
COMPLEX["aten.isinf.default"] = lambda x: torch.isinf(x.re) | torch.isinf(x.im)
COMPLEX["aten.isfinite.default"] = lambda x: torch.isfinite(x.re) & torch.isfinite(x.im)
