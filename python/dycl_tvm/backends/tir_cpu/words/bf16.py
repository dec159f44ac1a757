# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products of bfloat16 pairs, accumulated in float32, by the instructions of AVX512-BF16.

A pair is two neighbours of the sum in one 32-bit word, the first in the low half. ``dot`` adds the products of 16 pairs of weights and of
factors to 16 sums. Factors are rounded to the nearest bfloat16, ties to even; NaN stays NaN, infinities stay; what is larger than
the largest bfloat16 (3.39e38) becomes infinite, and denormal numbers count as zero, as the instructions have it.

Packed weights are arrays of float32 as everywhere, whose bits are the words: they are only copied, never computed with.

The unit roundoff of bfloat16 is u = 2^-8, so a sum of k products differs by at most (2 u + u^2 + k 2^-23) sum |x w| from the exact
one, where 2^-23 is for the additions (two roundings a pair). Random signs make that about 2e-3 of the largest output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import func_with, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import memory_type
from dycl_tvm.backends.tir_cpu.words.sums import along_k, in_order
from dycl_tvm.backends.tir_cpu.words.workload import HALF, DTypes

#: Lanes of the sums; elements that one instruction rounds.
LANES = 16
#: Pairs of so many elements.
PAIRS = LANES // 2

#: What :func:`dot`, :func:`pairs` and :func:`rest` call, in LLVM's language: TVM turns every bfloat16 into other types before it generates
#: code, so the types that the instructions want exist in here only.
FUNCTIONS = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)

define linkonce_odr hidden <16 x float> @dycl_bf16_dot(<16 x float> %sum, <16 x i32> %x, <16 x float> %w) alwaysinline {
  %a = bitcast <16 x i32> %x to <32 x bfloat>
  %b = bitcast <16 x float> %w to <32 x bfloat>
  %result = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %result
}

define linkonce_odr hidden <16 x float> @dycl_bf16_rest(<16 x float> %x) alwaysinline {
  %rounded = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %bits = bitcast <16 x bfloat> %rounded to <16 x i16>
  %wide = zext <16 x i16> %bits to <16 x i32>
  %high = shl <16 x i32> %wide, splat (i32 16)
  %near = bitcast <16 x i32> %high to <16 x float>
  %rest = fsub <16 x float> %x, %near
  %exponent = and <16 x i32> %high, splat (i32 2139095040)
  %finite = icmp ne <16 x i32> %exponent, splat (i32 2139095040)
  %result = select <16 x i1> %finite, <16 x float> %rest, <16 x float> zeroinitializer
  ret <16 x float> %result
}

define linkonce_odr hidden <8 x i32> @dycl_bf16_pairs(<16 x float> %x) alwaysinline {
  %rounded = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %result = bitcast <16 x bfloat> %rounded to <8 x i32>
  ret <8 x i32> %result
}

define linkonce_odr hidden <16 x float> @dycl_bf16_zip(<16 x float> %x, <16 x float> %y) alwaysinline {
  %a = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %b = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %y)
  %both = shufflevector <16 x bfloat> %a, <16 x bfloat> %b, <32 x i32> <INTERLEAVED>
  %result = bitcast <32 x bfloat> %both to <16 x float>
  ret <16 x float> %result
}
""".replace("INTERLEAVED", ", ".join(f"i32 {j + LANES * k}" for j in range(LANES) for k in range(2)))


#: Types of workloads whose kernels round factors of float32 themselves.
ROUNDED = DTypes(weights="bfloat16")


def has_instructions(machine: Machine) -> bool:
    """Whether the CPU computes with bfloat16."""
    return machine.bf16 and machine.lanes == LANES


def bf16_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None]) -> Any:
    """Return a PrimFunc whose body may use :func:`dot` and :func:`pairs`."""
    return func_with(FUNCTIONS, ["avx512bf16"], buffers, body)


def dot(total: Any, pair: Any, weights: Any) -> Any:
    """Return the 16 sums plus the products of one pair of factors with 16 pairs of weights."""
    return T.call_extern("float32x16", "dycl_bf16_dot", total, T.broadcast(pair, LANES), weights)


def add_pairs(totals: Sequence[Any], width: int, left: Callable[[int], Any], right: Callable[[int], Any]) -> None:
    """Emit totals[row][j] += the products of the pairs left(row) and right(start), those of a vector of columns: one step of a product."""
    for row, start in in_order(len(totals), width, LANES):
        lane = T.ramp(start, 1, LANES)
        store(totals[row], [lane], dot(totals[row][lane], left(row), right(start)))


def pairs(values: Any) -> Any:
    """Return 16 float32, or 16 bfloat16 as they lie in memory, as 8 words of int32."""
    if str(values.ty.dtype) == f"{memory_type(HALF)}x{LANES}":
        return T.reinterpret(f"int32x{PAIRS}", values)
    return T.call_extern("int32x8", "dycl_bf16_pairs", values)


def multiply_add_pairs(
    totals: Sequence[Any], width: int, steps: Any, left: Callable[[int, Any], Any], right: Callable[[Any, int], Any], splits: int = 1
) -> None:
    """Emit totals[row * splits + s] += the products of left(row, k) and right(k, start) over the k < steps with k % splits == s."""

    def step(k: Any, split: int) -> None:
        add_pairs(totals[split::splits], width, lambda row: left(row, k), lambda start: right(k, start))

    along_k(steps, splits, step)


def zipped(first: Any, second: Any) -> Any:
    """Return the 16 pairs of an element of each of two vectors of float32, as words of float32."""
    return T.call_extern("float32x16", "dycl_bf16_zip", first, second)


def rest(values: Any) -> Any:
    """Return what rounding takes away from 16 float32, exactly; zero where they become infinite or are no numbers."""
    return T.call_extern("float32x16", "dycl_bf16_rest", values)


def word(first: Any, second: Any) -> Any:
    """Return two float32 weights as a word, in operations of any CPU, as weights may be packed on another one."""
    return T.reinterpret("float32", _rounded(first) | (_rounded(second) << _bits(16)))


def rest_of_weight(value: Any) -> Any:
    """Return :func:`rest` of one weight, in operations of any CPU."""
    near = _rounded(value) << _bits(16)
    finite = (near & _bits(0x7F800000)) != _bits(0x7F800000)
    return tirx.Select(finite, value - T.reinterpret("float32", near), T.float32(0))


def _rounded(value: Any) -> Any:
    bits = T.reinterpret("uint32", value)
    nearest = (bits + _bits(0x7FFF) + ((bits >> _bits(16)) & _bits(1))) >> _bits(16)
    is_nan = (bits & _bits(0x7FFFFFFF)) > _bits(0x7F800000)
    return tirx.Select(is_nan, (bits >> _bits(16)) | _bits(0x40), nearest)


def _bits(value: int) -> Any:
    return tirx.const(value, "uint32")


def cycles_per_second(machine: Machine) -> float:
    """Return the instructions on whole vectors that a core does in a second."""
    return machine.gflops * 1e9 / (2 * LANES)
