# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of complex numbers, computed in float64 where they are of float32: formulas may cancel there without harm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.compile.complex.arithmetic import div, length, mul
from dycl_tvm.compile.complex.pair import COMPLEX, Pair, complex_operator, in_float64, pair_of


def _exp(z: Pair) -> Pair:
    size = torch.exp(z.re)
    return Pair(size * torch.cos(z.im), torch.where(z.im == 0, z.im, size * torch.sin(z.im)))


def _log(z: Pair) -> Pair:
    return Pair(torch.log(z.re * z.re + z.im * z.im) * 0.5, torch.atan2(z.im, z.re))


def _sqrt(z: Pair) -> Pair:
    larger = torch.sqrt((z.re.abs() + length(z)) * 0.5)
    smaller = torch.where(larger == 0, larger, z.im.abs() / (larger * 2))
    right = z.re >= 0
    return Pair(torch.where(right, larger, smaller), torch.copysign(torch.where(right, smaller, larger), z.im))


def _times_i(z: Pair) -> Pair:
    return Pair(-z.im, z.re)


def _times_minus_i(z: Pair) -> Pair:
    return Pair(z.im, -z.re)


def _sinh(z: Pair) -> Pair:
    return Pair(torch.sinh(z.re) * torch.cos(z.im), torch.cosh(z.re) * torch.sin(z.im))


def _cosh(z: Pair) -> Pair:
    return Pair(torch.cosh(z.re) * torch.cos(z.im), torch.sinh(z.re) * torch.sin(z.im))


def _tanh(z: Pair) -> Pair:
    # tanh(x + iy) = (sinh 2x + i sin 2y) / (cosh 2x + cos 2y); beyond 20 the quotient is +-1 to all digits of float32
    x = z.re.clamp(-20.0, 20.0)
    below = torch.sinh(x) * torch.sinh(x) + torch.cos(z.im) * torch.cos(z.im)
    return Pair(torch.sinh(x) * torch.cosh(x) / below, torch.sin(z.im) * torch.cos(z.im) / below)


def _asinh(z: Pair) -> Pair:
    left = torch.where(z.re < 0, -1.0, 1.0).to(z.re.dtype)
    right = z.map(lambda t: t * left)  # asinh is odd, and cancels on the left
    square = right * right
    far = _log(right + _sqrt(Pair(square.re + 1, square.im)))
    cube = right * square
    near = Pair(right.re - cube.re / 6, right.im - cube.im / 6) + (cube * square).map(lambda t: t * (3 / 40))
    made = _chosen(length(z) < 1e-3, near, far)
    return Pair(torch.copysign(made.re, z.re), torch.copysign(made.im, z.im))


def _chosen(where: Any, a: Pair, b: Pair) -> Pair:
    return Pair(torch.where(where, a.re, b.re), torch.where(where, a.im, b.im))


def _asin(z: Pair) -> Pair:
    return _times_minus_i(_asinh(_times_i(z)))


def _acos(z: Pair) -> Pair:
    made = _asin(z)
    return Pair(math.pi / 2 - made.re, -made.im)


def _acosh(z: Pair) -> Pair:
    made = _acos(z)
    return _chosen(torch.signbit(z.im), _times_minus_i(made), _times_i(made))


def _atanh(z: Pair) -> Pair:
    away = (1 - z.re) * (1 - z.re) + z.im * z.im
    return Pair(0.25 * torch.log1p(4 * z.re / away), 0.5 * torch.atan2(2 * z.im, (1 - z.re) * (1 + z.re) - z.im * z.im))


def _log1p(z: Pair) -> Pair:
    return Pair(0.5 * torch.log1p(z.re * z.re + 2 * z.re + z.im * z.im), torch.atan2(z.im, 1 + z.re))


def _expm1(z: Pair) -> Pair:
    half = torch.sin(z.im * 0.5)
    return Pair(torch.expm1(z.re) * torch.cos(z.im) - 2 * half * half, torch.exp(z.re) * torch.sin(z.im))


def _sinc(z: Pair) -> Pair:
    turned = z.map(lambda t: t * math.pi)
    zero = z.is_zero()
    made = div(_times_minus_i(_sinh(_times_i(turned))), _chosen(zero, pair_of(torch.ones_like(z.re)), turned))
    return _chosen(zero, pair_of(torch.ones_like(z.re)), made)


def _function(name: str, fn: Callable[..., Any]) -> None:
    """Register a function of complex64; of complex128 there is none wide enough for these formulas."""
    wide = in_float64(fn)

    def apply(z: Pair) -> Any:
        if z.re.dtype == torch.float64 and name not in ("exp", "sinh", "cosh", "sin", "cos"):
            raise NotImplementedError("complex128")
        return wide(z)

    COMPLEX[f"aten.{name}.default"] = apply


for _name, _fn in (
    ("exp", _exp),
    ("log", _log),
    ("log2", lambda z: _log(z).map(lambda t: t * (1 / math.log(2)))),
    ("log10", lambda z: _log(z).map(lambda t: t * (1 / math.log(10)))),
    ("sqrt", _sqrt),
    ("rsqrt", lambda z: div(torch.ones_like(z.re), _sqrt(z))),
    ("sinh", _sinh),
    ("cosh", _cosh),
    ("tanh", _tanh),
    ("sin", lambda z: _times_minus_i(_sinh(_times_i(z)))),
    ("cos", lambda z: _cosh(_times_i(z))),
    ("asin", _asin),
    ("acos", _acos),
    ("atan", lambda z: _times_minus_i(_atanh(_times_i(z)))),
    ("asinh", _asinh),
    ("acosh", _acosh),
    ("atanh", _atanh),
    ("log1p", _log1p),
    ("expm1", _expm1),
    ("exp2", lambda z: _exp(z.map(lambda t: t * math.log(2)))),
    ("sinc", _sinc),
    ("tan", lambda z: _times_minus_i(_tanh(_times_i(z)))),
    ("sigmoid", lambda z: div(torch.ones_like(z.re), pair_of(1.0) + _exp(-z))),
):
    _function(_name, _fn)


@complex_operator("pow.Tensor_Scalar")
def _pow_number(z: Any, exponent: Any) -> Pair:
    z = pair_of(z)
    if exponent == 0:
        return Pair(torch.ones_like(z.re), torch.zeros_like(z.re))
    if exponent in (1, 2, 3):
        made = z
        for _ in range(int(complex(exponent).real) - 1):
            made = mul(made, z)
        return made
    if exponent == -1:
        return div(torch.ones_like(z.re), z)
    if exponent == 0.5:
        return COMPLEX["aten.sqrt.default"](z)
    return _power(z, pair_of(exponent))


@complex_operator("pow.Tensor_Tensor", "pow.Scalar")
def _pow(z: Any, exponent: Any) -> Pair:
    z, e = pair_of(z), pair_of(exponent)
    dtype = next(t.dtype for t in (z.re, e.re) if isinstance(t, torch.Tensor) and t.dtype.is_floating_point)
    if not isinstance(z.re, torch.Tensor):
        z = z.map(lambda v: torch.full((), v, dtype=dtype))
    return _power(z.map(lambda t: t.to(dtype)), e)


def _power(z: Pair, exponent: Pair) -> Pair:
    def fn(z: Pair) -> Pair:
        e = exponent.map(lambda t: t.double() if isinstance(t, torch.Tensor) else t)
        made = _exp(Pair(torch.log(torch.hypot(z.re, z.im)), torch.atan2(z.im, z.re)) * e)
        zero = z.is_zero()
        one = e.is_zero() if isinstance(e.re, torch.Tensor) else torch.full((), e.is_zero())
        at_zero = torch.where(one, torch.ones_like(made.re), torch.zeros_like(made.re))
        return Pair(torch.where(zero, at_zero, made.re), torch.where(zero, torch.zeros_like(made.im), made.im))

    return in_float64(fn)(z)
