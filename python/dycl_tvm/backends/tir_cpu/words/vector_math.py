# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exponential, e^x - 1, sigmoid, tanh and erf of float32 as plain arithmetic on vectors.

TVM's own become calls of libm or long code for each element (4 to 12 times slower). These have no call and no branch. Largest errors where
the result is a normal number, in units in the last place: exp 1.0, expm1 1.5, sigmoid 2.5, tanh 2.6, erf 2.5 (tests measure them).
NaN gives NaN, infinities give the limits; sigmoid is 0 below -88.8, as PyTorch's.

Each is an operator (``dycl.exp`` ...) that stays a call through all of TVM's passes, and becomes the call of a function in LLVM IR that
the compiler inlines: as TVM's expressions they would repeat, or bind, what is used several times, and TVM takes time exponential in
the depth of either. :func:`with_functions` adds the definitions; the target must be LLVM.

Method: Cody and Waite's reduction, x = n ln 2 + r with |r| <= ln(2)/2, and a polynomial that interpolates (e^r - 1 - r) / r^2 at
Chebyshev's points. Rounding to n adds and subtracts 1.5 * 2^23: no conversion to an integer, which has no value for NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Call
from tvm.tirx.op import register_intrin_lowering

from dycl_tvm.backends.tir_cpu.words.vector_text import Function, Value

#: Lanes of the vectors that the functions are defined for: schedules take no longer ones.
_LANES = tuple(range(1, 33))

_LOG2_E = 1.4426950408889634
# 9 bits, so that the product with n is exact also without fused multiply-adds, and the rest
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690583e-4
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_ROUND_BITS = 0x4B400000
_ROUND_BIASED = _ROUND + 127
# e^x of more is infinite
_LARGEST_EXPONENT = 88.72283935546875
_SCALE = 2.0**24
_ROUND_SCALED = _ROUND_BIASED + 24

# (e^r - 1 - r) / r^2 on [-ln(2)/2, ln(2)/2]
_EXP = (0.5000000013538728, 0.16666666681704134, 0.041666464197423335, 0.008333310844672072, 0.0013933730714054831, 0.00019891080448954405)
# the same to 2^-26 of e^r
_EXP_SHORT = (0.5, 0.16666577025597937, 0.04166655466204854, 0.00836317307451768, 0.0013926176120101037)
# (e^-r - 1 + r) / r^2
_EXP_NEGATIVE = tuple(c * (-1) ** k for k, c in enumerate(_EXP_SHORT))
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

# erf(x) / x in x^2, for |x| <= 3, where the error of erf is least: 1.7e-5
_ERF_SHORT = (
    1.1282683366908062, -0.3753141470232055, 0.11107818447337872, -0.02510209033683308, 0.004235155718968583, -0.0005109823463737116,
    4.10542521496956e-05, -1.944437220196322e-06, 4.0732288372819636e-08,
)  # fmt: skip


def let(value: Any, body: Callable[[Any], Any]) -> Any:
    """Return ``body(v)`` with v computed once, where v is used twice; not to be nested."""
    var = tirx.Var("t", value.ty)
    return tirx.Let(var, value, body(var))


def _polynomial(coefficients: tuple[float, ...], x: Value) -> Value:
    result = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        result = result * x + c
    return result


def _clamp(x: Value, low: float, high: float) -> Value:
    """Bound x; NaN stays."""
    f = x.function
    lowest, highest = f.constant("f", low), f.constant("f", high)
    # each choice asks for what it chooses from, so that it is one instruction
    below = (x > highest).choose(highest, x)
    return (below < lowest).choose(lowest, below)


def _power_of_2(n: Value) -> Value:
    """Return 2^n for integers n in [-126, 127]."""
    return ((n + 127) << 23).bits("f")


def _reduced(x: Value) -> tuple[Value, Value]:
    """Return (n, r), n the integer nearest to x / ln 2, r = x - n ln 2."""
    total = x * _LOG2_E + _ROUND
    rounded = total - _ROUND
    return total.bits("i") - _ROUND_BITS, x - rounded * _LN2_HIGH - rounded * _LN2_LOW


def _exp_less_1(r: Value) -> Value:
    """Return e^r - 1 of a reduced r."""
    return _polynomial(_EXP, r) * r * r + r


def _exp(x: Value) -> Value:
    # e^-104 rounds to 0, e^89 to infinity
    n, r = _reduced(_clamp(x, -104.0, 89.0))
    # in two steps, as 2^n alone may be no normal number where the result is one, or infinite where it is not
    half = n >> 1
    return (_exp_less_1(r) + 1) * _power_of_2(half) * _power_of_2(n - half)


def _exp_of_difference(x: Value) -> Value:
    # the bias of exponents is in what rounds; shifted to its place, n + 127 is all that is left
    total = x * _LOG2_E + _ROUND_BIASED
    rounded = total - _ROUND_BIASED
    r = x - rounded * _LN2_HIGH - rounded * _LN2_LOW
    power = (total.bits("i") << 23).bits("f")
    return (x < -87.0).choose(x.function.constant("f", 0), ((_polynomial(_EXP_SHORT, r) * r + 1) * r + 1) * power)


def _sigmoid(x: Value) -> Value:
    # with x = m ln 2 + r it is 2^m / (2^m + e^-r), of which both sides are multiplied by 2^24, so that all powers are normal numbers;
    # from 30 on it is 1, and where e^-x is beyond float32 0
    highest = x.function.constant("f", 30)
    x = (x > highest).choose(highest, x)
    total = x * _LOG2_E + _ROUND_SCALED
    rounded = total - _ROUND_SCALED
    r = x - rounded * _LN2_HIGH - rounded * _LN2_LOW
    power = (total.bits("i") << 23).bits("f")
    less_1 = (_polynomial(_EXP_NEGATIVE, r) * r - 1) * r
    return (x < -_LARGEST_EXPONENT).choose(x.function.constant("f", 0), power / (less_1 * _SCALE + (power + _SCALE)))


def _tanh(x: Value) -> Value:
    # e / (e + 2) with e = e^2x - 1; -0 has to stay; from 10 on the result is 1
    n, r = _reduced(_clamp(x, -10.0, 10.0) * 2)
    scale = _power_of_2(n)
    e = _exp_less_1(r) * scale + (scale - 1)
    return x.equals(0).choose(x, e / (e + 2))


def _expm1(x: Value) -> Value:
    # as tanh's; where 1 is less than half a unit in the last place, 2^n may be infinite and the result is e^x
    constant = x.function.constant
    n, r = _reduced(_clamp(x, -30.0, 89.0))
    scale, half = _power_of_2(n), n >> 1
    tail = _exp_less_1(r)
    near, far = tail * scale + (scale - 1), (tail + 1) * _power_of_2(half) * _power_of_2(n - half)
    return x.equals(0).choose(x, (x > constant("f", 20)).choose(far, near))


def _erf(x: Value) -> Value:
    # an odd polynomial near 0, elsewhere 1 - e^p(|x|)
    constant = x.function.constant
    sign = (x < 0).choose(constant("f", -1), constant("f", 1))
    magnitude = x * sign
    four = constant("f", 4)
    # the exponent is between -18 and 0
    n, r = _reduced(_polynomial(_ERF_LARGE, (magnitude > four).choose(four, magnitude)))
    large = sign - sign * ((_exp_less_1(r) + 1) * _power_of_2(n))
    return (magnitude < 0.94).choose(x * _polynomial(_ERF_SMALL, x * x), large)


def _erf_short(x: Value) -> Value:
    # beyond 3 it is 1 itself: what is left of it is multiplied by the number in a GELU, which may be infinite
    constant, near = x.function.constant, _clamp(x, -3.0, 3.0)
    beyond = (x > 3.0).choose(constant("f", 1), near * _polynomial(_ERF_SHORT, near * near))
    return (x < -3.0).choose(constant("f", -1), beyond)


#: By the name of an operator, the function of vectors of so many lanes that it becomes, in LLVM's language.
_FUNCTIONS: dict[str, Callable[[int], str]] = {}


def _operator(name: str, function: Callable[[int], str], dtype: str = "float32") -> Callable[[Any], Any]:
    """Make an operator of float32; return what makes its calls, whose results are of ``dtype``."""
    full = f"dycl.{name}"
    _FUNCTIONS[full] = function
    # without side effects; of each lane apart
    for key, value in (("TCallEffectKind", 1), ("TVectorizable", True), ("TScriptPrinterName", full)):
        tvm.ir.register_op_attr(full, key, value)
    register_intrin_lowering(full, target="llvm", f=lambda call: _extern(full, call))

    def call(x: Any) -> Any:
        assert str(x.ty.dtype) == "float32", f"{name} of {x.ty}"
        return tirx.call_intrin(dtype, full, x)

    return call


def _formula(name: str, formula: Callable[[Value], Value]) -> Callable[[Any], Any]:
    """Make an operator by its arithmetic."""
    return _operator(name, lambda lanes: Function(lanes).define(_symbol(f"dycl.{name}", lanes), formula))


def _to_bfloat16(lanes: int) -> str:
    wide, half, bits = (t if lanes == 1 else f"<{lanes} x {t}>" for t in ("float", "bfloat", "i16"))
    return (
        f"define {bits} @{_symbol('dycl.to_bfloat16', lanes)}({wide} %x) alwaysinline nounwind {{\n"
        f"  %rounded = fptrunc {wide} %x to {half}\n  %bits = bitcast {half} %rounded to {bits}\n  ret {bits} %bits\n}}\n"
    )


def _to_byte(lanes: int) -> str:
    # not by comparisons and choices: LLVM moves the conversions of integers into these, and makes many instructions of few
    number, whole = (t if lanes == 1 else f"<{lanes} x {t}>" for t in ("float", "i32"))
    suffix = "f32" if lanes == 1 else f"v{lanes}f32"
    low, high = (Function(lanes).constant("f", limit).name for limit in (0, 255))
    return (
        f"declare {number} @llvm.maxnum.{suffix}({number}, {number})\ndeclare {number} @llvm.minnum.{suffix}({number}, {number})\n"
        f"define {whole} @{_symbol('dycl.to_byte', lanes)}({number} %x) alwaysinline nounwind {{\n"
        f"  %positive = call {number} @llvm.maxnum.{suffix}({number} %x, {number} {low})\n"
        f"  %byte = call {number} @llvm.minnum.{suffix}({number} %positive, {number} {high})\n"
        f"  %whole = fptosi {number} %byte to {whole}\n  ret {whole} %whole\n}}\n"
    )


def _symbol(name: str, lanes: int) -> str:
    return f"{name.replace('.', '_')}_{lanes}"


def _extern(name: str, call: Any) -> Any:
    dtype = call.ty.dtype
    lanes = int(str(dtype).partition("x")[2] or 1)
    if lanes not in _LANES:
        raise NotImplementedError(f"{name} of vectors of {lanes}")
    return tirx.call_pure_extern(dtype, _symbol(name, lanes), call.args[0])


@functools.cache
def _definitions(name: str) -> str:
    return "".join(_FUNCTIONS[name](lanes) for lanes in _LANES)


def with_functions(fn: Any) -> Any:
    """Return a PrimFunc with the definitions of the functions that it calls."""
    used: set[str] = set()

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") in _FUNCTIONS:
            used.add(call.op.name)

    tvm_ffi.structural_walk(fn.body, (Call, visit))
    if not used:
        return fn
    text = "".join(_definitions(name) for name in sorted(used))
    return fn.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(text), fn.body))


#: e^x of a float32 expression.
exp = _formula("exp", _exp)
#: e^x for x <= 0 or NaN, but 0 where the result would be subnormal: for sums that a softmax divides by, 1e-38 of the largest term is lost.
exp_of_difference = _formula("exp_of_difference", _exp_of_difference)
#: 1 / (1 + e^-x) of a float32 expression.
sigmoid = _formula("sigmoid", _sigmoid)
#: tanh(x) of a float32 expression.
tanh = _formula("tanh", _tanh)
#: e^x - 1 of a float32 expression.
expm1 = _formula("expm1", _expm1)
#: erf(x) of a float32 expression.
erf = _formula("erf", _erf)
#: erf(x) within 3e-5, and within 2^-13 of itself, in a quarter of the time: for what bfloat16 factors are summed to.
erf_short = _formula("erf_short", _erf_short)
#: The bits of a float32 expression that is rounded to bfloat16, as int16.
to_bfloat16 = _operator("to_bfloat16", _to_bfloat16, "int16")
#: A float32 expression as an int32 from 0 to 255: cut off behind the point, what lies beyond becomes the limit, NaN becomes 0.
to_byte = _operator("to_byte", _to_byte, "int32")


def shortened(expr: Any) -> Any:
    """Return an expression with :data:`erf_short` in the place of :data:`erf`."""

    def short(call: Any) -> Any:
        return tirx.call_intrin(call.ty.dtype, "dycl.erf_short", *call.args) if getattr(call.op, "name", "") == "dycl.erf" else call

    return tvm_ffi.structural_map(expr, (Call, short))
