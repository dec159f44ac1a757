# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shifts, powers and divisors of integers: TVM's own leave undefined what PyTorch defines, or compute in floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter
from dycl_tvm.compile.ops.elements import element_by_element

_BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _shift(op: str) -> Callable[..., Any]:
    def shifted(a: Any, b: Any) -> Any:
        """Shift as PyTorch does: by the whole width or more, or by a negative amount, all bits leave."""
        dtype = semantics.dtype_of(a)
        width = _BITS[dtype]
        inside = tirx.And(b >= tirx.const(0, dtype), b < tirx.const(width, dtype))
        by = tirx.Select(inside, b, tirx.const(0, dtype))
        if op == "left":
            return tirx.Select(inside, tirx.shift_left(a, by), tirx.const(0, dtype))
        zero = tirx.const(0, dtype)
        gone = zero if dtype == "uint8" else tirx.Select(a < zero, tirx.const(-1, dtype), zero)
        return tirx.Select(inside, tirx.shift_right(a, by), gone)

    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        dtype = ctx.type.dtype
        if dtype not in _BITS:
            raise NotConvertible(f"a shift of {dtype}")
        return ctx.elementwise(shifted, ctx.operand(a, dtype), ctx.operand(b, dtype), name=f"shift_{op}")

    return convert


for _op in ("left", "right"):
    _fn = _shift(_op)
    _short = f"__{_op[0]}shift__"
    _overloads = [f"bitwise_{_op}_shift.{kinds}" for kinds in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]
    converter(*_overloads, f"{_short}.Tensor", f"{_short}.Scalar")(_fn)


#: The most divisions that Euclid's algorithm takes for integers of 64 bits.
_DIVISIONS = 92


@converter("gcd.default")
def _gcd(ctx: OpContext, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    if dtype not in _BITS or not semantics.is_for_cpu():
        raise NotConvertible(f"gcd of {dtype}" if semantics.is_for_cpu() else "gcd on a GPU")
    zero = tirx.const(0, dtype)

    def magnitude(e: Any) -> Any:
        return e if dtype == "uint8" else tirx.Select(e < zero, -e, e)

    def euclid(a: Any, b: Any) -> Any:
        x, y, rest = (T.alloc_buffer((1,), dtype) for _ in range(3))
        store(x, [0], magnitude(a))
        store(y, [0], magnitude(b))
        with T.serial(0, _DIVISIONS):
            with T.If(x[0] != zero), T.Then():
                store(rest, [0], tirx.truncmod(y[0], x[0]))
                store(y, [0], x[0])
                store(x, [0], rest[0])
        return y[0]

    return element_by_element(ctx, [a, b], dtype, _DIVISIONS, "gcd", euclid)


#: Bits of the exponent that one kernel takes; TVM's simplifier runs out of stack on longer chains of named values.
_STEP = 8


def integer_power(ctx: OpContext, base: Any, exponent: Any) -> Any:
    """Emit ``base ** exponent`` by squaring, exact modulo the width; below exponent 0 the quotient 1 / base ** -exponent, as PyTorch."""
    dtype = ctx.type.dtype
    if dtype not in _BITS:
        raise NotConvertible(f"a power of {dtype}")
    zero, one, minus = (tirx.const(v, dtype) for v in (0, 1, 0 if dtype == "uint8" else -1))

    def squared(x: Any) -> Any:
        def steps(name: Callable[[Any], Any]) -> Any:
            s = x
            for _ in range(_STEP):
                s = name(s * s)
            return s

        return _named(steps)

    def extended(first: int) -> Callable[..., Any]:
        def product(result: Any, square: Any, e: Any) -> Any:
            def steps(name: Callable[[Any], Any]) -> Any:
                r, s = result, square
                for k in range(_STEP):
                    s = name(s * s) if k else s
                    bit = tirx.bitwise_and(tirx.shift_right(e, tirx.const(first + k, dtype)), one)
                    r = name(tirx.Select(bit != zero, r * s, r))
                return r

            return _named(steps)

        return product

    def below_zero(x: Any, e: Any, result: Any) -> Any:
        sign = tirx.Select(tirx.bitwise_and(e, one) != zero, minus, one)
        quotient = tirx.Select(x == one, one, tirx.Select(x == minus, sign, zero))
        return tirx.Select(e < zero, quotient, result)

    result, square = ctx.const(1, dtype), base
    for first in range(0, _BITS[dtype], _STEP):
        if first:
            square = ctx.elementwise(squared, square, name="squared", fusible=False)
        result = ctx.elementwise(extended(first), result, square, exponent, name="integer_power", fusible=False)
    return result if dtype == "uint8" else ctx.elementwise(below_zero, base, exponent, result, name="integer_power")


def _named(expression: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """Return an expression whose intermediate values have names: written out, it would double with every squaring."""
    names: list[tuple[Any, Any]] = []

    def name(value: Any) -> Any:
        names.append((tirx.Var(f"v{len(names)}", semantics.dtype_of(value)), value))
        return names[-1][0]

    result = expression(name)
    for variable, value in reversed(names):
        result = tirx.Let(variable, value, result)
    return result
