# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exact sums of products of 8-bit integers, four at a time, by the instructions that a CPU has for them.

A *quad* is four neighbours of the sum in one 32-bit word, the first in the low byte. ``dots`` adds to each of the machine's lanes the
products of a quad of uint8 with a quad of int8, both its own; a word may be the quad of all lanes. Sums wrap around like those of int32;
that they do not is for the graph to know. :func:`products` says how a machine does it:

* VNNI and ARM's i8mm have the instruction (``vpdpbusd``, ``sudot``);
* AVX2 and AVX-512 take two pairs of 16 bits (bytes 0 and 2, 1 and 3), whose products ``vpmaddwd`` adds exactly; ``vpmaddubsw``, which
  adds neighbours in 16 bits, saturates and is not used;
* ARM's ``sdot`` multiplies int8 by int8, so a byte x is read as x - 128, which flips its upper bit;
* NEON without it adds two products in 16 bits (``smull``, ``smlsl2``), and pairs of these to the sum (``sadalp``). The sum of two products
  of int8 may be 2^15, which 16 bits do not hold. So the third and fourth byte are read as 127 - x, the other seven bits flipped, and
  their products are subtracted: then all is within -32640 and 32640.

Where bytes are flipped, sums begin at an *offset*, what this takes from them: a vector behind the packed weights.

Packed weights are arrays of int8, a vector's lanes by four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import func_with, store
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

_SDOT = """
declare <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)

define linkonce_odr hidden <4 x i32> @dycl_int8_dot_4(<4 x i32> %sum, <4 x i32> %x, <4 x i32> %w) alwaysinline {{
  %a = bitcast <4 x i32> %x to <16 x i8>
  %b = bitcast <4 x i32> %w to <16 x i8>
  %r = call <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32> %sum, <16 x i8> {factors})
  ret <4 x i32> %r
}}
"""

# both factors have the first two bytes of all quads, then the others
_NEON = """
declare <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)
declare <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)
declare <16 x i8> @llvm.aarch64.neon.tbl1.v16i8(<16 x i8>, <16 x i8>)

define linkonce_odr hidden <4 x i32> @dycl_int8_dot_4(<4 x i32> %sum, <4 x i32> %x, <4 x i32> %w) alwaysinline {
  %a = bitcast <4 x i32> %x to <16 x i8>
  %b = bitcast <4 x i32> %w to <16 x i8>
  %al = shufflevector <16 x i8> %a, <16 x i8> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %ah = shufflevector <16 x i8> %a, <16 x i8> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %bl = shufflevector <16 x i8> %b, <16 x i8> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %bh = shufflevector <16 x i8> %b, <16 x i8> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %p = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %al, <8 x i8> %bl)
  %q = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %ah, <8 x i8> %bh)
  %d = sub <8 x i16> %p, %q
  %s = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16> %d)
  %r = add <4 x i32> %sum, %s
  ret <4 x i32> %r
}
"""

_COLUMNS = """
define linkonce_odr hidden <{n} x i32> @dycl_int8_columns_{n}(<{n} x i32> %x) alwaysinline {{
  %a = bitcast <{n} x i32> %x to <{bytes} x i8>
  %b = shufflevector <{bytes} x i8> %a, <{bytes} x i8> poison, <{bytes} x i32> <{order}>
  %r = bitcast <{bytes} x i8> %b to <{n} x i32>
  ret <{n} x i32> %r
}}
"""

_LANE = """
define linkonce_odr hidden <4 x i32> @dycl_int8_lane_{k}(<4 x i32> %x) alwaysinline {{
  %r = shufflevector <4 x i32> %x, <4 x i32> poison, <4 x i32> <i32 {k}, i32 {k}, i32 {k}, i32 {k}>
  ret <4 x i32> %r
}}
"""

# one instruction: LLVM makes several of a shuffle
_LANE_IN_HALVES = """
define linkonce_odr hidden <4 x i32> @dycl_int8_lane_{k}(<4 x i32> %x) alwaysinline {{
  %a = bitcast <4 x i32> %x to <16 x i8>
  %b = call <16 x i8> @llvm.aarch64.neon.tbl1.v16i8(<16 x i8> %a, <16 x i8> <{order}>)
  %r = bitcast <16 x i8> %b to <4 x i32>
  ret <4 x i32> %r
}}
"""


@dataclass(frozen=True)
class Products:
    """How a machine multiplies quads.

    Attributes
    ----------
    text : str
        ``dycl_int8_dot`` in LLVM's language.
    feature : str
        LLVM's name of what the CPU must have.
    cost : float
        The instructions of one :func:`dots`.
    registers, registers_a_vector : int
        What a tile of sums takes beside them, and for each vector of weights.
    flips : tuple of int
        What the bytes of a quad are xored with before :func:`dots` reads them: the first two alike, and the last two.
    lanes : bool
        Whether instructions take a word of a vector of words for all lanes.
    spread : float
        The instructions that a word takes until it is a factor of all lanes.
    loading : float
        The part of a load that takes the place of other instructions.
    halves : bool
        Whether vectors of weights, and of factors of all lanes, have the first two bytes of all quads, and behind them the others.
    """

    text: str
    feature: str
    cost: float
    registers: int
    registers_a_vector: int
    flips: tuple[int, int, int, int] = (0, 0, 0, 0)
    lanes: bool = False
    spread: float = 0.0
    loading: float = 0.0
    halves: bool = False

    @property
    def offset(self) -> bool:
        """Whether sums begin at an offset."""
        return any(self.flips)

    def at(self, lane: Any, byte: Any, lanes: int) -> Any:
        """Return where a byte of a lane's quad is in a vector of weights."""
        pair = QUAD // 2
        return byte // pair * (pair * lanes) + lane * pair + byte % pair if self.halves else lane * QUAD + byte


def takes(dtypes: DTypes) -> bool:
    """Whether :func:`dots` computes sums of such types."""
    return (dtypes.x, dtypes.weights, dtypes.accumulator) == ("uint8", "int8", "int32")


def allowed(machine: Machine) -> bool:
    """Whether the CPU has vectors of integers that are worth it: of 32 or 64 bytes, or ARM's."""
    return machine.isa in ("avx2", "avx512", "neon")


def products(machine: Machine) -> Products:
    """Return how the machine multiplies quads."""
    if machine.isa == "neon":
        if machine.i8mm:
            return Products(_SDOT.format(name="usdot", factors="%a, <16 x i8> %b"), "i8mm", 1.0, 6, 1, lanes=True, loading=0.5)
        if machine.dotprod:
            return Products(
                _SDOT.format(name="sdot", factors="%b, <16 x i8> %a"), "dotprod", 1.0, 6, 1, (0x80, 0x80, 0x80, 0x80), True, loading=0.5
            )
        return Products(_NEON, "neon", 3.0, 10, 1, (0x80, 0x80, 0x7F, 0x7F), True, 1.0, 0.5, True)
    text, feature = of_x86(_VNNI, _PAIRS, machine)
    return Products(text, feature, 1.0, 1, 1) if machine.vnni else Products(text, feature, 5.0, 4, 2)


def of_x86(vnni: str, pairs: str, machine: Machine) -> tuple[str, str]:
    """Return a dot product of integers in LLVM's language, by VNNI or by the additions of ``vpmaddwd``, and the feature that it needs."""
    n = machine.lanes
    if machine.vnni:
        return vnni.format(n=n, bits=32 * n, half=2 * n, bytes=4 * n), "avx512vnni" if n == 16 else "avxvnni"
    name, feature = ("avx512.pmaddw.d.512", "avx512bw") if n == 16 else ("avx2.pmadd.wd", "avx2")
    return pairs.format(n=n, half=2 * n, name=name), feature


def cost(machine: Machine) -> float:
    """Return the instructions of one :func:`dots`."""
    return products(machine).cost


def cycles_per_second(machine: Machine) -> float:
    """Return the instructions on whole vectors that a core does in a second; one of products in a cycle and a bit."""
    return machine.gflops * 1e9 / (2 * machine.lanes)


def int8_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None], machine: Machine) -> Any:
    """Return a PrimFunc whose body may use :func:`dots`, :func:`columns_as_quads` and :func:`lane_of`."""
    n, how = machine.lanes, products(machine)
    places = sorted((how.at(lane, byte, n), lane, byte) for lane in range(n) for byte in range(QUAD))
    text = how.text + _COLUMNS.format(n=n, bytes=QUAD * n, order=", ".join(f"i32 {byte * n + lane}" for _, lane, byte in places))
    for k in range(QUAD if how.lanes else 0):
        order = ", ".join(f"i8 {k * QUAD + byte}" for _, _, byte in places)
        text += (_LANE_IN_HALVES if how.halves else _LANE).format(k=k, order=order)
    return func_with(text, [how.feature], buffers, body)


def dots(total: Any, quads: Any, weights: Any, lanes: int) -> Any:
    """Return the sums plus the products of each lane's quads, which are given as int32 and as int8."""
    words = T.reinterpret(f"int32x{lanes}", weights)
    return T.call_extern(f"int32x{lanes}", f"dycl_int8_dot_{lanes}", total, quads, words)


def for_all(word: Any, lanes: int, how: Products) -> Any:
    """Return a word as a factor of all lanes."""
    words = T.broadcast(word, lanes)
    return lane_of(words, 0) if how.halves else words


def lane_of(words: Any, k: int) -> Any:
    """Return one of four words as a factor of all lanes, where the machine's instructions take it (:attr:`Products.lanes`)."""
    return T.call_extern("int32x4", f"dycl_int8_lane_{k}", words)


def flipped(words: Any, count: int, how: Products) -> Any:
    """Return ``count`` quads of uint8, given as int32, with the bytes flipped that :func:`dots` wants so."""
    flips = how.flips * count
    return _xor(words, [int.from_bytes(bytes(flips[k : k + QUAD]), "little", signed=True) for k in range(0, len(flips), QUAD)])


def columns_as_quads(columns: Any, lanes: int, how: Products) -> Any:
    """Return four vectors of bytes that follow each other as one of quads for :func:`dots`: of each lane, its bytes of the four."""
    words = T.reinterpret(f"int32x{lanes}", columns)
    flips = [int.from_bytes(bytes([how.flips[k * QUAD // lanes]] * QUAD), "little", signed=True) for k in range(lanes)]
    return T.call_extern(f"int32x{lanes}", f"dycl_int8_columns_{lanes}", _xor(words, flips))


def _xor(words: Any, flips: Sequence[int]) -> Any:
    if not any(flips):
        return words
    if len(set(flips)) == 1:
        return T.bitwise_xor(words, T.int32(flips[0]) if len(flips) == 1 else T.broadcast(T.int32(flips[0]), len(flips)))
    return T.bitwise_xor(words, T.Shuffle([T.int32(flip) for flip in flips], list(range(len(flips)))))


def start_of(offset: Any, lanes: int) -> Any:
    """Return what sums begin at: the vector behind the packed weights, which is given as int8, or 0 for None."""
    return T.broadcast(T.int32(0), lanes) if offset is None else T.reinterpret(f"int32x{lanes}", offset)


def store_offset(
    packed: Any, index: Sequence[Any], lane: Any, weights: Callable[[Callable[[Any, Any], None]], None], how: Products
) -> None:
    """Emit the offset of a lane, in a vector of packed weights at ``index``.

    ``weights`` emits loops and calls what it is given with each weight of the lane, and with the byte of a quad that it multiplies.
    """
    total = T.alloc_buffer((1,), "int32")
    store(total, [0], T.int32(0))

    def add(weight: Any, byte: Any) -> None:
        first, last = (T.int32(flip) for flip in (how.flips[0], how.flips[-1]))
        store(total, [0], total[0] + weight.astype("int32") * tirx.Select(byte < QUAD // 2, first, last))

    weights(add)
    for byte in range(QUAD):
        store(packed, [*index, lane * QUAD + byte], T.shift_right(total[0], T.int32(8 * byte)).astype("int8"))
