# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exponential, sigmoid, tanh and erf of float32 as plain arithmetic, so that LLVM makes vectors of them.

TVM's own become calls of libm or long code for each element (4 to 12 times slower). These have no call and no branch. Largest errors where
the result is a normal number, in units in the last place: exp 1.0, sigmoid 2.5, tanh 2.6, erf 2.5 (tests measure them). NaN gives NaN,
infinities give the limits; sigmoid is 0 below -88.8, as PyTorch's.

Method: Cody and Waite's reduction, x = n ln 2 + r with |r| <= ln(2)/2, and a polynomial that interpolates (e^r - 1 - r) / r^2 at
Chebyshev's points. Rounding to n adds and subtracts 1.5 * 2^23: no conversion to an integer, which has no value for NaN. The
constants of such steps are opaque, as TVM would take ``(x + c) - c`` for x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

_LOG2_E = 1.4426950408889634
# 9 bits, so that the product with n is exact also without fused multiply-adds, and the rest
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690583e-4
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_ROUND_BITS = 0x4B400000

# (e^r - 1 - r) / r^2 on [-ln(2)/2, ln(2)/2]
_EXP = (0.5000000013538728, 0.16666666681704134, 0.041666464197423335, 0.008333310844672072, 0.0013933730714054831, 0.00019891080448954405)
# erf(x) / x in x^2, for |x| <= 0.94
_ERF_SMALL = (
    1.1283791664763398, -0.3761263215401615, 0.11283671041479425, -0.02685804248427719, 0.005197684917298801, -0.0008105054538680317,
    8.212780635707155e-05,
)  # fmt: skip
# log(1 - erf(x)), for 0.94 <= x <= 4
_ERF_LARGE = (
    0.0003215876984663524, -1.130241214804059, -0.6318099786177175, -0.1100974143909718, 0.026432021438881872, -0.0047637267773858565,
    0.0005977387759559516, -4.6173592618330534e-05, 1.643188529203038e-06,
)  # fmt: skip


def _const(number: float) -> Any:
    return tirx.const(number, "float32")


def _opaque(number: float) -> Any:
    """Return a float that TVM's simplifier does not see through."""
    return tirx.reinterpret("float32", tirx.const(int(np.float32(number).view(np.int32)), "int32"))


def let(value: Any, body: Callable[[Any], Any]) -> Any:
    """Return ``body(v)`` with v computed once.

    An expression that is used twice is otherwise compiled, and passed over, twice. TVM's passes take time exponential in the depth of
    such bindings: keep it low, and store between one function and the next.
    """
    var = tirx.Var("t", value.ty)
    return tirx.Let(var, value, body(var))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    result = _const(coefficients[-1])
    for c in coefficients[-2::-1]:
        result = result * x + _const(c)
    return result


def _clamp(x: Any, low: float, high: float) -> Any:
    """Bound a variable x; NaN stays."""
    return tirx.Select(x < _const(low), _const(low), tirx.Select(x > _const(high), _const(high), x))


def _power_of_2(n: Any) -> Any:
    """Return 2^n for an int32 n in [-126, 127]."""
    return tirx.reinterpret("float32", (n + tirx.const(127, "int32")) << tirx.const(23, "int32"))


def _reduced(x: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Return ``body(n, r)``, n the int32 nearest to x / ln 2, r = x - n ln 2, of a variable x."""

    def with_sum(total: Any) -> Any:
        n = tirx.reinterpret("int32", total) - tirx.const(_ROUND_BITS, "int32")
        rounded = total + _opaque(-_ROUND)
        return let(x - rounded * _const(_LN2_HIGH) - rounded * _const(_LN2_LOW), lambda r: body(n, r))

    return let(x * _const(_LOG2_E) + _opaque(_ROUND), with_sum)


def exp(x: Any) -> Any:
    """Return e^x of a float32 expression."""

    def power(n: Any, r: Any) -> Any:
        mantissa = (_polynomial(_EXP, r) * r * r + r) + _const(1)
        # in two steps, as 2^n alone may be no normal number where the result is one, or infinite where it is not
        half = n >> tirx.const(1, "int32")
        return mantissa * _power_of_2(half) * _power_of_2(n - half)

    # e^-104 rounds to 0, e^89 to infinity
    return let(x, lambda v: let(_clamp(v, -104.0, 89.0), lambda u: _reduced(u, power)))


def exp_of_difference(x: Any) -> Any:
    """Return e^x for x <= 0 or NaN: as :func:`exp`, but 0 where the result would be subnormal.

    For sums that a softmax divides by: what is lost is 1e-38 of the largest term.
    """

    def power(n: Any, r: Any) -> Any:
        return ((_polynomial(_EXP, r) * r * r + r) + _const(1)) * _power_of_2(n)

    return let(x, lambda v: tirx.Select(v < _const(-87.0), _const(0), _reduced(v, power)))


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^-x) of a float32 expression."""
    return _const(1) / (_const(1) + exp(_const(-1) * x))


def tanh(x: Any) -> Any:
    """Return tanh(x) of a float32 expression, as e / (e + 2) with e = e^2x - 1."""

    def from_power(n: Any, r: Any) -> Any:
        scale = _power_of_2(n)
        e = (_polynomial(_EXP, r) * r * r + r) * scale + (scale + _opaque(-1.0))
        return let(e, lambda v: v / (v + _const(2)))

    def whole(v: Any) -> Any:
        # -0 has to stay; from 10 on the result is 1
        bounded = _clamp(v, -10.0, 10.0) * _const(2)
        return let(bounded, lambda u: tirx.Select(v == _const(0), v, _reduced(u, from_power)))

    return let(x, whole)


def erf(x: Any) -> Any:
    """Return erf(x) of a float32 expression: an odd polynomial near 0, elsewhere 1 - e^p(|x|)."""

    def whole(v: Any) -> Any:
        small = v * _polynomial(_ERF_SMALL, v * v)
        sign = tirx.Select(v < _const(0), _const(-1), _const(1))

        def either(m: Any) -> Any:
            logarithm = _polynomial(_ERF_LARGE, tirx.Select(m > _const(4), _const(4), m))
            # between -18 and 0
            return let(
                logarithm, lambda u: tirx.Select(m < _const(0.94), small, _reduced(u, lambda n, r: sign + _const(-1) * sign * power(n, r)))
            )

        return let(v * sign, either)

    def power(n: Any, r: Any) -> Any:
        return ((_polynomial(_EXP, r) * r * r + r) + _const(1)) * _power_of_2(n)

    return let(x, whole)
