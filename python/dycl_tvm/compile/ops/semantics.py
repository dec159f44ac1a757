# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's element semantics in TIR: NaN that spreads through max and min, signs of remainders, no trap in integer division."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx


def dtype_of(x: Any) -> str:
    """Return the dtype name of a scalar TIR expression."""
    return str(x.ty.dtype)


def opaque(number: float, dtype: str) -> Any:
    """Return a float whose value TVM's simplifier does not see; LLVM does, and keeps to the rules of floating point."""
    if number == 0 and math.copysign(1, number) > 0:  # TVM's code generator takes a reinterpreted 0 for a null pointer
        return opaque(1.0, dtype) + opaque(-1.0, dtype)
    if dtype == "bfloat16":
        bits = int(np.float32(number).view(np.uint32)) >> 16
        return tirx.reinterpret(dtype, tirx.IntImm("uint16", bits))
    width = int(dtype.removeprefix("float"))
    bits = int(np.dtype(dtype).type(number).view(f"uint{width}"))
    return tirx.reinterpret(dtype, tirx.const(bits, f"uint{width}"))


def _hidden(x: Any) -> Any:
    """Return a constant as an opaque one."""
    return opaque(float(x.value), dtype_of(x)) if isinstance(x, tirx.FloatImm) else x


def is_whole(dtype: str) -> bool:
    """Tell whether a dtype is one of integers."""
    return "int" in dtype


def narrowed(x: Any, dtype: str) -> Any:
    """Return the last bits of an integer as one of a dtype that may not hold it.

    TVM and LLVM take it that no integer leaves its type: whatever is not negative stays so. Neither looks through a reinterpretation, and
    of an operation in a wider type LLVM makes one in this type again, one that wraps round.
    """
    if isinstance(x, tirx.IntImm):
        return tirx.const(int(np.array(int(x.value)).astype(dtype)), dtype)
    other = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}"
    return tirx.reinterpret(dtype, tirx.reinterpret(other, x.astype(dtype)))


def _whole(fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Compute with integers as PyTorch does: what leaves the type wraps round."""
    dtype = dtype_of(a)
    bits = int(dtype.lstrip("uint"))
    if bits == 64 and not is_for_cpu():  # no wider type there, and unsigned integers may wrap round
        return tirx.reinterpret(dtype, fn(tirx.reinterpret("uint64", a), tirx.reinterpret("uint64", b)))
    wider = f"int{2 * bits}"
    return narrowed(fn(a.astype(wider), b.astype(wider)), dtype)


def is_for_cpu() -> bool:
    """Whether the target in force is a CPU."""
    target = tvm.target.Target.current()
    return target is None or str(target.kind) == "llvm"


def add(a: Any, b: Any) -> Any:
    """Return a + b, also where one is the constant 0."""
    return _whole(operator.add, a, b) if is_whole(dtype_of(a)) else _hidden(a) + _hidden(b)


def subtract(a: Any, b: Any) -> Any:
    """Return a - b: of floats TVM takes ``x - x`` for 0 (it may be NaN) and ``(x + y) - y`` for x (it may be rounded)."""
    if is_whole(dtype_of(a)):
        return _whole(operator.sub, a, b)
    return _hidden(a) + _hidden(b) * opaque(-1.0, dtype_of(a))


def multiply(a: Any, b: Any) -> Any:
    """Return a * b, also where one is the constant 0 and the other infinite or NaN."""
    return _whole(operator.mul, a, b) if is_whole(dtype_of(a)) else _hidden(a) * _hidden(b)


def negative(x: Any) -> Any:
    """Return -x of integers; the least one has none."""
    return subtract(tirx.const(0, dtype_of(x)), x)


def absolute(x: Any) -> Any:
    """Return the absolute value of an integer; the least one has none."""
    return tirx.Select(x < tirx.const(0, dtype_of(x)), negative(x), x)


def rounded_product(a: Any, scale: Any) -> Any:
    """Return a * scale of float32, rounded before anything is added to it: LLVM makes one instruction of both elsewhere, with one rounding.

    ``scale`` is loaded and not negative. That its sign bit is zero LLVM does not know, and to add it is one instruction; a fence of
    LLVM's would be computed element by element.
    """
    sign = tirx.reinterpret("uint32", scale) >> tirx.const(31, "uint32")
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", a * scale) + sign)


def divide(a: Any, b: Any) -> Any:
    """Return a / b of floats, also where one is the constant 0."""
    return _hidden(a) / _hidden(b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger; NaN if either is NaN."""
    if dtype_of(a) == "bool":
        return tirx.Or(a, b)
    if "float" not in dtype_of(a):
        return tirx.Select(a > b, a, b)
    # unordered operands fail both comparisons, and their sum is NaN
    return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b))


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller; NaN if either is NaN."""
    if dtype_of(a) == "bool":
        return tirx.And(a, b)
    if "float" not in dtype_of(a):
        return tirx.Select(a < b, a, b)
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b))


def relu(x: Any) -> Any:
    """Return ``max(x, 0)`` that keeps NaN."""
    zero = tirx.const(0, dtype_of(x))
    return tirx.Select(x < zero, zero, x)


def clip(x: Any, lo: float | int | None, hi: float | int | None) -> Any:
    """Return ``min(max(x, lo), hi)`` that keeps NaN."""
    if lo is not None:
        low = tirx.const(lo, dtype_of(x))
        x = tirx.Select(x < low, low, x)
    if hi is not None:
        high = tirx.const(hi, dtype_of(x))
        x = tirx.Select(x > high, high, x)
    return x


def is_nan(x: Any) -> Any:
    """Return whether x is NaN."""
    # neither x != x nor the negation of a comparison will do: TVM folds the one, and turns the other into an ordered comparison
    return tirx.isnan(x.astype("float32") if dtype_of(x) == "bfloat16" else x)


def equal(a: Any, b: Any) -> Any:
    """Return a == b, false for NaN (TVM folds x == x)."""
    if "float" not in dtype_of(a):
        return a == b
    return tirx.And(a == b, tirx.Not(is_nan(a)))


def not_equal(a: Any, b: Any) -> Any:
    """Return a != b, true where either is NaN (TVM's own comparison is an ordered one)."""
    if "float" not in dtype_of(a):
        return a != b
    return tirx.Or(tirx.Or(a < b, a > b), tirx.Or(is_nan(a), is_nan(b)))


def logical_not(x: Any) -> Any:
    """Return not x of a bool: TVM takes ``not a < b`` for ``b <= a``, which is another thing where one is NaN."""
    return tirx.bitwise_xor(x.astype("int8"), tirx.const(1, "int8")).astype("bool")


def logical_xor(a: Any, b: Any) -> Any:
    """Return whether two bools differ."""
    return tirx.bitwise_xor(a.astype("int8"), b.astype("int8")).astype("bool")


def safe_divisor(b: Any) -> Any:
    """Return b, or 1 where it is 0: an integer division by zero would kill the process."""
    return tirx.Select(b == tirx.const(0, dtype_of(b)), tirx.const(1, dtype_of(b)), b)


def _differ(a: Any, b: Any) -> Any:
    """Return a != b of bools (TVM's LLVM code for that comparison is invalid)."""
    return tirx.Or(tirx.And(a, tirx.Not(b)), tirx.And(tirx.Not(a), b))


def libm(name: str, *operands: Any) -> Any:
    """Return a function of C's library by its name in float64; halves are computed in float32."""
    dtype = dtype_of(operands[0])
    if dtype == "float64":
        return tirx.call_pure_extern("float64", name, *operands)
    single = tirx.call_pure_extern("float32", f"{name}f", *(x.astype("float32") for x in operands))
    return single if dtype == "float32" else single.astype(dtype)


def floor_divide(a: Any, b: Any) -> Any:
    """Return the quotient rounded down, as ``torch.floor_divide``."""
    dtype = dtype_of(a)
    if "float" not in dtype:
        return tirx.floordiv(a, safe_divisor(b))  # names its operands once: in chains they are inlined
    zero = tirx.const(0, dtype)
    mod = libm("fmod", a, b)
    quotient = (a - mod) / b
    quotient = tirx.Select(tirx.And(mod != zero, _differ(b < zero, mod < zero)), quotient - tirx.const(1, dtype), quotient)
    # a whole number but for rounding, which a fused multiplication before the subtraction changes: never to the next whole number below
    rounded = tirx.nearbyint(quotient)
    return tirx.Select(b == zero, a / b, tirx.Select(rounded == zero, multiply(zero, a / b), rounded))


def trunc_divide(a: Any, b: Any) -> Any:
    """Return the quotient rounded towards zero."""
    if "float" not in dtype_of(a):
        return tirx.truncdiv(a, safe_divisor(b))
    return tirx.trunc(a / b)


def remainder(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of the divisor, as ``torch.remainder``."""
    dtype = dtype_of(a)
    zero = tirx.const(0, dtype)
    if "float" not in dtype:
        return tirx.Select(b == zero, zero, tirx.floormod(a, safe_divisor(b)))
    mod = libm("fmod", a, b)
    return tirx.Select(tirx.And(mod != zero, _differ(b < zero, mod < zero)), mod + b, mod)


def fmod(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of the dividend."""
    if "float" not in dtype_of(a):
        return a - tirx.truncdiv(a, safe_divisor(b)) * b
    return libm("fmod", a, b)


def bfloat16_of(x: Any) -> Any:
    """Return the nearest float32 that is a bfloat16, ties to even."""
    bits = tirx.reinterpret("uint32", x)
    odd = tirx.bitwise_and(tirx.shift_right(bits, tirx.const(16, "uint32")), tirx.const(1, "uint32"))
    nearest = tirx.bitwise_and(bits + tirx.const(0x7FFF, "uint32") + odd, tirx.const(0xFFFF0000, "uint32"))
    return tirx.Select(is_nan(x), x, tirx.reinterpret("float32", nearest))


def lowest(dtype: str) -> Any:
    """Return the identity of max."""
    return (
        tirx.const(float("-inf"), dtype) if "float" in dtype else (tirx.const(False, "bool") if dtype == "bool" else tirx.min_value(dtype))
    )


def highest(dtype: str) -> Any:
    """Return the identity of min."""
    return tirx.const(float("inf"), dtype) if "float" in dtype else (tirx.const(True, "bool") if dtype == "bool" else tirx.max_value(dtype))


max_reducer = te.comm_reducer(maximum, lowest, name="max_nan")
min_reducer = te.comm_reducer(minimum, highest, name="min_nan")


def arg_combine(is_max: bool, lhs: Any, rhs: Any, last_nan: bool = False) -> tuple[Any, Any]:
    """Return the better of two (index, value) pairs: the first NaN wins (the last if ``last_nan``), else the first of the best."""
    better = lhs[1] > rhs[1] if is_max else lhs[1] < rhs[1]
    tie = lhs[1] == rhs[1]
    if "float" in dtype_of(lhs[1]):
        # NaN beats everything; between two NaN the earlier one
        better = tirx.Or(better, tirx.And(is_nan(lhs[1]), tirx.Not(is_nan(rhs[1]))))
        both = tirx.And(is_nan(lhs[1]), is_nan(rhs[1]))
        if last_nan:
            better = tirx.Or(better, tirx.And(both, lhs[0] > rhs[0]))
        else:
            tie = tirx.Or(tie, both)
    # the identity has index -1: it never wins a tie against a real element
    earlier = tirx.Or(rhs[0] < tirx.const(0, dtype_of(rhs[0])), tirx.And(lhs[0] < rhs[0], lhs[0] >= tirx.const(0, dtype_of(lhs[0]))))
    left = tirx.Or(better, tirx.And(tie, earlier))
    return tirx.Select(left, lhs[0], rhs[0]), tirx.Select(left, lhs[1], rhs[1])


def arg_identity(is_max: bool, index_type: str, value_type: str) -> tuple[Any, Any]:
    """Return the pair that never wins."""
    return tirx.const(-1, index_type), (lowest if is_max else highest)(value_type)


def arg_reducer(is_max: bool, last_nan: bool = False) -> Any:
    """Return the reducer of (index, value) pairs."""

    def combine(lhs: Any, rhs: Any) -> Any:
        return arg_combine(is_max, lhs, rhs, last_nan)

    def identity(index_type: str, value_type: str) -> Any:
        return arg_identity(is_max, index_type, value_type)

    return te.comm_reducer(combine, identity, name=("argmax" if is_max else "argmin") + ("_last_nan" if last_nan else "_nan"))
