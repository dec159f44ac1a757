# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rows of float32 as fixed-point numbers of 30 bits, for exact sums of their products with small integers.

A block of a row becomes the integers nearest to x / s, below 2^29, where s is a power of two by the largest number of the block: what is
lost is at most 2^-29 of that number, and numbers of at least a 16th of it lose nothing. Each is two *digits* of 16 bits,
high * 2^15 + low. :func:`dot` adds the products of pairs of digits with pairs of integers, by ``vpdpwssd`` of VNNI or by ``vpmaddwd``;
with integers from -128 to 127 the sums of 128 products stay below 2^29.

Rows that hold no number, one of at least 2^96 (a sum might be infinite where the product is not), or a block of nothing but numbers
below 2^-97 (they lose more) that are not all zero, have to be computed otherwise: ``Rows.usual`` says of a row that it is none of these.
No other row plays a part in that: behind a size of the call rows hold what was left in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.int8 import of_x86
from dycl_tvm.backends.tir_cpu.words.loops import func_with, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.vectors import across

#: Bits of the low digit.
LOW = 15
#: Bits of the integers, without their sign.
_BITS = 29
#: The bits of a float32's exponent, and where they begin; exponents of 1, of the least scale and of the largest number but one.
_EXPONENT, _MANTISSA, _ONE, _LARGE = 0x7F800000, 23, 127, 127 + 96
_LEAST = _BITS + 1
#: Elements of four bytes that make an array too large for the stack.
_NOT_ON_STACK = 256

_VNNI = """
declare <{n} x i32> @llvm.x86.avx512.vpdpwssd.{bits}(<{n} x i32>, <{half} x i16>, <{half} x i16>)

define linkonce_odr hidden <{n} x i32> @dycl_pair_dot_{n}(<{n} x i32> %sum, <{n} x i32> %x, <{half} x i16> %w) alwaysinline {{
  %a = bitcast <{n} x i32> %x to <{half} x i16>
  %r = call <{n} x i32> @llvm.x86.avx512.vpdpwssd.{bits}(<{n} x i32> %sum, <{half} x i16> %w, <{half} x i16> %a)
  ret <{n} x i32> %r
}}
"""

_MADD = """
declare <{n} x i32> @llvm.x86.{name}(<{half} x i16>, <{half} x i16>)

define linkonce_odr hidden <{n} x i32> @dycl_pair_dot_{n}(<{n} x i32> %sum, <{n} x i32> %x, <{half} x i16> %w) alwaysinline {{
  %a = bitcast <{n} x i32> %x to <{half} x i16>
  %p = call <{n} x i32> @llvm.x86.{name}(<{half} x i16> %w, <{half} x i16> %a)
  %r = add <{n} x i32> %sum, %p
  ret <{n} x i32> %r
}}
"""


def fixed_point_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None], machine: Machine) -> Any:
    """Return a PrimFunc whose body may use :func:`dot`."""
    text, feature = of_x86(_VNNI, _MADD, machine)
    return func_with(text, [feature], buffers, body)


def dot(total: Any, pair: Any, integers: Any, lanes: int) -> Any:
    """Return the sums plus the products of one pair of digits, a word, with a vector of pairs of int16."""
    return T.call_extern(f"int32x{lanes}", f"dycl_pair_dot_{lanes}", total, T.broadcast(pair, lanes), integers)


class Rows:
    """Fixed-point rows, while a kernel is written.

    Parameters
    ----------
    count, k, block : int
        Rows, elements of one, elements of a block: an even number.
    lanes : int
    """

    def __init__(self, count: int, k: int, block: int, lanes: int) -> None:
        self.count, self.k, self.block, self.lanes = count, k, block, lanes
        chunks = -(-k // lanes)
        #: The digits in pairs, high ones and low ones, and zeros behind them; the scales; the largest bits of each row's numbers.
        self.high, self.low = (_shared(count, chunks * lanes // 2, "int32") for _ in range(2))
        self.scales = _shared(count, -(-k // block), "float32")
        self._largest = _shared(count, 1, "int32")

    def usual(self, row: Any) -> Any:
        """Whether a row can be computed with."""
        return self._largest[row, 0] < T.int32(_LARGE << _MANTISSA)

    def fill(self, source: Callable[[Any, Any], Any]) -> None:
        """Emit the rows, of which ``source(row, k)`` loads an element or a vector of them."""
        with T.serial(0, self.count) as row:
            store(self._largest, [row, 0], T.int32(0))
            whole, rest = divmod(self.k, self.block)
            if whole:
                with T.serial(0, whole) as b:
                    self._block(lambda k: source(row, k), row, b, self.block)
            if rest:
                self._block(lambda k: source(row, k), row, whole, rest)

    def _block(self, source: Callable[[Any], Any], row: Any, b: Any, elements: int) -> None:
        lanes, first = self.lanes, b * self.block
        whole, rest = divmod(elements, lanes)
        lane, behind = T.ramp(0, 1, lanes), first + whole * lanes
        tail, most = T.alloc_buffer((lanes,), "float32"), T.alloc_buffer((lanes,), "int32")
        if rest:
            store(tail, [lane], T.broadcast(T.float32(0), lanes))
            for j in range(rest):
                store(tail, [j], source(behind + j))
        store(most, [lane], self._spread(0))

        def each(emit: Callable[[Any, Any], None]) -> None:
            if whole:
                with T.serial(0, whole) as i:
                    emit(source(T.ramp(first + i * lanes, 1, lanes)), first + i * lanes)
            if rest:
                emit(tail[lane], behind)

        def look(vector: Any, at: Any) -> None:
            store(most, [lane], tirx.max(most[lane], T.reinterpret(f"int32x{lanes}", vector) & self._spread(0x7FFFFFFF)))

        each(look)
        across(most, lanes, tirx.max)
        small = tirx.all(most[0] > T.int32(0), most[0] < T.int32(_LEAST << _MANTISSA))
        store(self._largest, [row, 0], tirx.max(self._largest[row, 0], tirx.Select(small, T.int32(_LARGE << _MANTISSA), most[0])))
        exponent = tirx.max(most[0] & T.int32(_EXPONENT), T.int32(_LEAST << _MANTISSA))
        biased = T.shift_right(exponent, T.int32(_MANTISSA))
        scale, inverse = (T.shift_left(e, T.int32(_MANTISSA)) for e in (biased - (_BITS - 1), (2 * _ONE + _BITS - 1) - biased))
        store(self.scales, [row, b], T.reinterpret("float32", scale))

        def digits(vector: Any, at: Any) -> None:
            number = tirx.nearbyint(vector * T.broadcast(T.reinterpret("float32", inverse), lanes)).astype(f"int32x{lanes}")
            high = T.shift_right(number + self._spread(1 << (LOW - 1)), self._spread(LOW))
            low = number - T.shift_left(high, self._spread(LOW))
            pairs = T.ramp(at // 2, 1, lanes // 2)
            for buffer, digit in ((self.high, high), (self.low, low)):
                store(buffer, [row, pairs], T.reinterpret(f"int32x{lanes // 2}", digit.astype(f"int16x{lanes}")))

        each(digits)

    def _spread(self, value: int) -> Any:
        return T.broadcast(T.int32(value), self.lanes)


def _shared(rows: int, columns: int, dtype: str) -> Any:
    """Declare an array that all threads see: of a size that is not put on the stack."""
    return T.alloc_buffer((max(rows, -(-_NOT_ON_STACK // columns)), columns), dtype)
