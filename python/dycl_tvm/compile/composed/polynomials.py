# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Chebyshev polynomials of run-time degree in float64: high degrees by closed forms, also where ATen uses its recurrence."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.compile.composed.special import as_tensors, in_float64
from dycl_tvm.compile.decompose import DECOMPOSITIONS

#: The largest exponent of e in float64.
_LARGEST = math.log(sys.float_info.max)


def _of_angle(x: Tensor, n: Tensor, inside: Callable[[Tensor], Tensor], outside: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a function of the angle whose cosine is x; ``outside`` of [-1, 1] one of that whose hyperbolic cosine is abs(x)."""
    angle = torch.acosh(x.abs().clamp(min=1))
    # the recurrence of ATen is infinite twice, and then the difference of infinities
    beyond = torch.where((n >= 3) & ((n - 2) * angle > _LARGEST), math.nan, outside(angle))
    return torch.where(x.abs() < 1, inside(torch.acos(x.clamp(-1, 1))), beyond)


def _odd(n: Tensor) -> Tensor:
    """Return -1 for odd n, else 1."""
    return torch.where(torch.remainder(n, 2) == 1, -1.0, 1.0).to(n.dtype)


def _sign(x: Tensor, n: Tensor) -> Tensor:
    """Return -1 for negative x and odd n, else 1."""
    return torch.where(x < 0, _odd(n), 1.0)


def _first(x: Tensor, n: Tensor) -> Tensor:
    return _of_angle(x, n, lambda a: torch.cos(n * a), lambda a: _sign(x, n) * torch.cosh(n * a))


def _second(x: Tensor, n: Tensor) -> Tensor:
    """Return sin((n + 1) a) / sin(a)."""
    m = n + 1

    def outside(a: Tensor) -> Tensor:
        return _sign(x, n) * torch.exp(n * a) * torch.expm1(-2 * m * a) / torch.expm1(-2 * a)

    made = _of_angle(x, n, lambda a: torch.sin(m * a) / torch.sin(a), outside)
    return torch.where(x.abs() == 1, _sign(x, n) * m, made)


def _third(x: Tensor, n: Tensor) -> Tensor:
    """Return cos((n + 1/2) a) / cos(a / 2)."""
    m = n + 0.5

    def outside(a: Tensor) -> Tensor:
        above = torch.exp(n * a) * (1 + torch.exp(-2 * m * a)) / (1 + torch.exp(-a))
        below = torch.exp(n * a) * torch.expm1(-2 * m * a) / torch.expm1(-a)
        return torch.where(x > 0, above, _odd(n) * torch.where(x == -1, 2 * m, below))

    return _of_angle(x, n, lambda a: torch.cos(m * a) / torch.cos(a / 2), outside)


def _fourth(x: Tensor, n: Tensor) -> Tensor:
    return _odd(n) * _third(-x, n)


#: Up to which degree the recurrence is used, which is exact where the polynomial is zero.
_RECURRENCE = 8


def _low(x: Tensor, n: Tensor, first: Tensor) -> Tensor:
    """Return a polynomial of low degree, of which the one of degree 1 is given, by the recurrence."""
    before, last = torch.ones_like(x), first
    made = torch.where(n == 0, before, last)
    for k in range(2, _RECURRENCE + 1):
        before, last = last, (x + x) * last - before
        made = torch.where(n == k, last, made)
    return made


def _register(name: str, polynomial: Callable[[Tensor, Tensor], Tensor], first: Callable[[Tensor], Tensor], shifted: bool) -> None:
    @in_float64
    def compute(x: Any, n: Any) -> Tensor:
        x, n = as_tensors(x, n)
        whole = n.trunc()
        x = 2 * x - 1 if shifted else x
        made = torch.where(whole <= _RECURRENCE, _low(x, whole, first(x)), polynomial(x, whole))
        return torch.where((whole >= 0) & (whole < 2.0**63), made, 0.0)  # ATen takes other degrees for negative ones

    for overload in ("default", "x_scalar", "n_scalar"):
        DECOMPOSITIONS[f"aten.special_{'shifted_' * shifted}chebyshev_polynomial_{name}.{overload}"] = compute


for _name, _polynomial, _degree_one in (
    ("t", _first, lambda x: x),
    ("u", _second, lambda x: x + x),
    ("v", _third, lambda x: x + x - 1),
    ("w", _fourth, lambda x: x + x + 1),
):
    for _shifted in (False, True):
        _register(_name, _polynomial, _degree_one, _shifted)
