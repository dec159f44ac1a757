# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exact sums of products of 8-bit integers, four at a time, by the dot products of VNNI or by what AVX2 and AVX-512 have.

A *quad* is four neighbours of the sum in one 32-bit word, the first in the low byte. ``dot`` adds to each of the machine's lanes the
products of one quad of uint8 with a quad of int8 of its own. Without VNNI the quad is two pairs of 16 bits (bytes 0 and 2, 1 and 3),
whose products ``vpmaddwd`` adds exactly; ``vpmaddubsw``, which adds neighbours in 16 bits, saturates and is not used. Sums wrap around
like those of int32; that they do not is for the graph to know.

Packed weights are arrays of int8, a vector's lanes by four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import func_with
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import DTypes

#: Elements of a quad.
QUAD = 4

_VNNI = """
declare <{n} x i32> @llvm.x86.avx512.vpdpbusd.{bits}(<{n} x i32>, <{bytes} x i8>, <{bytes} x i8>)

define linkonce_odr hidden <{n} x i32> @dycl_int8_dot_{n}(<{n} x i32> %sum, <{n} x i32> %x, <{n} x i32> %w) alwaysinline {{
  %a = bitcast <{n} x i32> %x to <{bytes} x i8>
  %b = bitcast <{n} x i32> %w to <{bytes} x i8>
  %r = call <{n} x i32> @llvm.x86.avx512.vpdpbusd.{bits}(<{n} x i32> %sum, <{bytes} x i8> %a, <{bytes} x i8> %b)
  ret <{n} x i32> %r
}}
"""

_PAIRS = """
declare <{n} x i32> @llvm.x86.{name}(<{half} x i16>, <{half} x i16>)

define linkonce_odr hidden <{n} x i32> @dycl_int8_dot_{n}(<{n} x i32> %sum, <{n} x i32> %x, <{n} x i32> %w) alwaysinline {{
  %even = and <{n} x i32> %x, splat (i32 16711935)
  %down = lshr <{n} x i32> %x, splat (i32 8)
  %odd = and <{n} x i32> %down, splat (i32 16711935)
  %a = bitcast <{n} x i32> %even to <{half} x i16>
  %b = bitcast <{n} x i32> %odd to <{half} x i16>
  %v = bitcast <{n} x i32> %w to <{half} x i16>
  %up = shl <{half} x i16> %v, splat (i16 8)
  %c = ashr <{half} x i16> %up, splat (i16 8)
  %d = ashr <{half} x i16> %v, splat (i16 8)
  %p = call <{n} x i32> @llvm.x86.{name}(<{half} x i16> %a, <{half} x i16> %c)
  %q = call <{n} x i32> @llvm.x86.{name}(<{half} x i16> %b, <{half} x i16> %d)
  %s = add <{n} x i32> %sum, %p
  %r = add <{n} x i32> %s, %q
  ret <{n} x i32> %r
}}
"""


_COLUMNS = """
define linkonce_odr hidden <{n} x i32> @dycl_int8_columns_{n}(<{n} x i32> %x) alwaysinline {{
  %a = bitcast <{n} x i32> %x to <{bytes} x i8>
  %b = shufflevector <{bytes} x i8> %a, <{bytes} x i8> poison, <{bytes} x i32> <{order}>
  %r = bitcast <{bytes} x i8> %b to <{n} x i32>
  ret <{n} x i32> %r
}}
"""


def takes(dtypes: DTypes) -> bool:
    """Whether :func:`dot` computes sums of such types."""
    return (dtypes.x, dtypes.weights, dtypes.accumulator) == ("uint8", "int8", "int32")


def allowed(machine: Machine) -> bool:
    """Whether the CPU has vectors of integers of 32 or 64 bytes."""
    return machine.isa in ("avx2", "avx512")


def cost(machine: Machine) -> float:
    """Return the instructions of one :func:`dot`."""
    return 1.0 if machine.vnni else 5.0


def cycles_per_second(machine: Machine) -> float:
    """Return the instructions on whole vectors that a core does in a second; one of products in a cycle and a bit."""
    return machine.gflops * 1e9 / (2 * machine.lanes)


def integer_func(
    vnni: str, pairs: str, buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None], machine: Machine, more: str = ""
) -> Any:
    """Return a PrimFunc whose body may use a dot product of integers in LLVM's language: by VNNI, or by the additions of ``vpmaddwd``.

    ``more`` is what else it uses.
    """
    n = machine.lanes
    if machine.vnni:
        text, feature = vnni.format(n=n, bits=32 * n, half=2 * n, bytes=4 * n), "avx512vnni" if n == 16 else "avxvnni"
    else:
        name, feature = ("avx512.pmaddw.d.512", "avx512bw") if n == 16 else ("avx2.pmadd.wd", "avx2")
        text = pairs.format(n=n, half=2 * n, name=name)
    return func_with(text + more, [feature], buffers, body)


def int8_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None], machine: Machine) -> Any:
    """Return a PrimFunc whose body may use :func:`dot`, :func:`dots` and :func:`columns_as_quads`."""
    n = machine.lanes
    order = ", ".join(f"i32 {column * n + channel}" for channel in range(n) for column in range(QUAD))
    return integer_func(_VNNI, _PAIRS, buffers, body, machine, _COLUMNS.format(n=n, bytes=QUAD * n, order=order))


def dots(total: Any, quads: Any, weights: Any, lanes: int) -> Any:
    """Return the sums plus the products of each lane's quad with one of its own, which are given as int32 and as int8."""
    words = T.reinterpret(f"int32x{lanes}", weights)
    return T.call_extern(f"int32x{lanes}", f"dycl_int8_dot_{lanes}", total, quads, words)


def dot(total: Any, quad: Any, weights: Any, lanes: int) -> Any:
    """Return the sums plus the products of one quad with a vector of quads, which is given as int8."""
    return dots(total, T.broadcast(quad, lanes), weights, lanes)


def columns_as_quads(columns: Any, lanes: int) -> Any:
    """Return four vectors of bytes that follow each other as one of quads: of each lane, its bytes of the four."""
    return T.call_extern(f"int32x{lanes}", f"dycl_int8_columns_{lanes}", T.reinterpret(f"int32x{lanes}", columns))
