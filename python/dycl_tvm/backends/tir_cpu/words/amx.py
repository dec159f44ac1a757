# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products by the tiles of AMX (Sapphire Rapids and later), of bfloat16 and of 8-bit integers.

A tile is up to 16 rows of 16 words. A word of factors holds neighbours of the sum: a pair of bfloat16, or a quad of bytes. ``tdpbf16ps``
and ``tdpbusd`` add to a tile of 16 x 16 sums the products of a *left* tile (rows x words of factors) and a *right* one (words x 16 columns
of weights). There are eight tiles: ``high`` x ``wide`` of sums, ``high`` left ones, the rest right ones. Two by two is the square that
loads least; one row of four is for few rows.

The shapes of the tiles are a state of the thread, which a task of a kernel sets once (:meth:`Tiles.configure`) and gives back
(:func:`release`): between the two no other kernel runs on the thread. Rows are cut into as few tiles as can be, all of one height, so
that no task needs a second setting. Rows beyond the last one are read from memory of the kernel's own, and their sums are dropped.

Quads are those of :mod:`int8`, uint8 by int8; their sums are exact. Rounding, pairs and packed words of bfloat16 are those of :mod:`bf16`.
``tdpbf16ps`` sums the first and the second products of the 16 pairs apart, then adds both to the sum: fewer than k + 8 roundings, so the
bound of :mod:`bf16` holds.

For ``bf16x3`` a factor is the sum of three bfloat16, its planes: with 8 bits each they hold the 24 of a float32 exactly, but for denormal
numbers. The six products of planes down to 2^-16 of the whole are summed; those left out are about 2^-23 of |x w| at most. With the
roundings of the instructions, |error| <= (2 k + 40) 2^-24 sum |x w|. An infinite factor makes NaN: its product with a plane that is
zero is no number.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.bf16 import FUNCTIONS as BF16_FUNCTIONS
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, has_instructions, pairs, rest, rest_of_weight, word, zipped
from dycl_tvm.backends.tir_cpu.words.int8 import QUAD
from dycl_tvm.backends.tir_cpu.words.int8 import takes as takes_quads
from dycl_tvm.backends.tir_cpu.words.loops import INSTRUCTIONS, func_with, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.planes import quads
from dycl_tvm.backends.tir_cpu.words.storage import takes
from dycl_tvm.backends.tir_cpu.words.workload import DTypes
from dycl_tvm.errors import UsageError

#: LLVM's names of the features. Linux grants the registers only to processes that ask for them.
FEATURES = ("amx-bf16", "amx-int8")
#: The system call arch_prctl of x86-64, its request of a permission, and what for (Documentation/arch/x86/xstate.rst of Linux).
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
#: Rows of a tile; also words of a row.
ROWS = 16
#: Tiles of sums at a time; the next numbers are those of left tiles, then of right ones.
_SUMS, _TILES = 4, 8
#: Cycles from a product to the next that adds to the same sums.
_LATENCY = 52
#: Cycles to load a row of a tile from L1, and from L2 (measured: 0.55 and 1.5).
_LOAD, _LOAD_L2 = 0.6, 1.5
#: Cycles of a row of 16 sums from the tile to the output, and of a tile of sums before its first and after its last product.
_STORE, _FILL = 4.0, 60.0


class Factors(ABC):
    """What the words of left and right tiles hold.

    Attributes
    ----------
    elements : int
        Neighbours of the sum in a word.
    planes : int
        Of how many numbers of so few bits each factor is the sum.
    sums : str
        The type of the sums.
    plain, packed : str
        The types of plain weights, and of the array of packed ones.
    features : tuple of str
        LLVM's names of what the CPU must have.
    instruction : str
        What multiplies tiles.
    """

    elements: int
    planes: int = 1
    sums: str
    plain: str
    packed: str
    features: tuple[str, ...]
    instruction: str

    @property
    def words(self) -> int:
        """Words of a block of 16 channels."""
        return LANES // self.elements

    @property
    def columns(self) -> int:
        """Elements of the packed array in a row of a right tile."""
        return LANES * self.elements if self.packed == "int8" else LANES

    @property
    def products(self) -> list[tuple[int, int]]:
        """The planes of the left and of the right side whose products are summed: those above 2^-24 of the whole."""
        return [(i, j) for i in range(self.planes) for j in range(self.planes) if i + j < self.planes]

    @property
    def zero(self) -> Any:
        """The weight that adds nothing."""
        return tirx.const(0, self.plain)

    @abstractmethod
    def functions(self) -> str:
        """Return what kernels may call, in LLVM's language."""

    @abstractmethod
    def split(self, values: Any, put: Callable[[int, Any], None]) -> None:
        """Emit ``put(plane, words)`` for the planes of a vector of neighbours: 16, or also more of bytes."""

    @abstractmethod
    def join(self, channels: Sequence[Any], width: int, put: Callable[[int, Any], None]) -> None:
        """Emit ``put(plane, words)`` for the planes of neighbours that are vectors of their own, each of ``width`` places.

        The words of a place follow each other. Of bytes there are up to four neighbours, of bfloat16 any number.
        """

    @abstractmethod
    def fill(self, count: int, border: int, put: Callable[[int, Any], None]) -> None:
        """Emit ``put(plane, words)`` for ``count`` words of which each byte is ``border``."""

    @abstractmethod
    def split_weights(self, weight: Callable[[int], Any], put: Callable[[int, int, Any], None]) -> None:
        """Emit ``put(plane, element, packed)`` for the planes of a word of weights, whose neighbours ``weight`` gives.

        ``element`` is one of the :attr:`columns` / 16 of a word.
        """

    def dot(self, total: int, left: int, right: int) -> str:
        """Return the name of the function that adds the product of two tiles to a third."""
        return f"{self.instruction}_{total}_{left}_{right}"


class Pairs(Factors):
    """bfloat16, or sums of three."""

    elements, sums, plain, packed = 2, "float32", "float32", "float32"
    features, instruction = ("avx512bf16", "amx-bf16"), "tdpbf16ps"

    def __init__(self, planes: int) -> None:
        self.planes = planes

    def functions(self) -> str:
        """See :class:`Factors`."""
        return BF16_FUNCTIONS + _functions(self.instruction)

    def split(self, values: Any, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        for plane in range(self.planes):
            put(plane, pairs(values))
            values = rest(values)

    def join(self, channels: Sequence[Any], width: int, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        zero = T.float32(0) if width == 1 else T.broadcast(T.float32(0), width)
        values = [*channels, zero] if len(channels) % 2 else list(channels)
        count, dtype = len(values) // 2, "int32" if width == 1 else f"int32x{width}"
        zip_pairs, remainder = (word, rest_of_weight) if width == 1 else (zipped, rest)
        for plane in range(self.planes):
            words = [T.reinterpret(dtype, zip_pairs(*values[2 * k : 2 * k + 2])) for k in range(count)]
            # of all words, those of the first place, then those of the next
            order = [k * width + at for at in range(width) for k in range(count)]
            put(plane, words[0] if count == 1 else T.Shuffle(words, order))
            values = [T.bind(remainder(v)) for v in values] if plane + 1 < self.planes else []

    def fill(self, count: int, border: int, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        assert not border
        for plane in range(self.planes):
            put(plane, T.broadcast(T.int32(0), count))

    def split_weights(self, weight: Callable[[int], Any], put: Callable[[int, int, Any], None]) -> None:
        """See :class:`Factors`."""
        both = T.alloc_buffer((2,), "float32")
        for half in range(2):
            store(both, [half], weight(half))
        for plane in range(self.planes):
            put(plane, 0, word(both[0], both[1]))
            for half in range(2):
                store(both, [half], rest_of_weight(both[half]))


class Quads(Factors):
    """uint8 by int8."""

    elements, sums, plain, packed = QUAD, "int32", "int8", "int8"
    features, instruction = ("amx-int8",), "tdpbusd"

    def functions(self) -> str:
        """See :class:`Factors`."""
        return _functions(self.instruction)

    def split(self, values: Any, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        put(0, T.reinterpret(f"int32x{values.ty.dtype.lanes // QUAD}", values))

    def join(self, channels: Sequence[Any], width: int, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        put(0, quads(channels, width))

    def fill(self, count: int, border: int, put: Callable[[int, Any], None]) -> None:
        """See :class:`Factors`."""
        put(0, T.broadcast(T.int32(int.from_bytes(bytes([border] * QUAD), "little", signed=True)), count))

    def split_weights(self, weight: Callable[[int], Any], put: Callable[[int, int, Any], None]) -> None:
        """See :class:`Factors`."""
        for q in range(QUAD):
            put(0, q, weight(q))


#: By the type of the weights of a workload that tiles compute.
FACTORS: dict[str, Factors] = {"bfloat16": Pairs(1), "bfloat16x3": Pairs(3), "int8": Quads()}


def can_multiply(dtypes: DTypes, machine: Machine, halves: str = "") -> bool:
    """Whether the CPU's tiles compute with such types, of :data:`FACTORS`.

    ``halves`` are those of x and y that may be stored as bfloat16, where factors are one of it.
    """
    if takes_quads(dtypes):
        return machine.amx_int8
    factors = FACTORS.get(dtypes.weights)
    return isinstance(factors, Pairs) and has_tiles(machine) and takes(dtypes, halves if factors.planes == 1 else "", dtypes.weights)


def _function(name: str, parameters: str, instruction: str) -> str:
    types = "ptr %p" if parameters == "p" else "ptr %p, i64 %s" if parameters else ""
    asm = f'asm sideeffect "{instruction}", "{"r," * len(parameters)}~{{memory}}"'
    head = f"define linkonce_odr hidden void @dycl_amx_{name}({types}) alwaysinline nounwind"
    return f"{head} {{\n  call void {asm}({types})\n  ret void\n}}\n"


@functools.lru_cache(None)
def _functions(instruction: str) -> str:
    """Return a function for each instruction on each tile, in LLVM's language.

    They hold assembly: LLVM renames the tiles of its own intrinsics where that helps its order of the instructions (LLVM 22,
    ``-mcpu=znver4 -mattr=+amx-bf16``), but a tile of another number has another shape.
    """
    sums, factors = range(_SUMS), range(_SUMS, _TILES)
    found = [_function("configure", "p", "ldtilecfg ($0)"), _function("release", "", "tilerelease")]
    found += [_function(f"zero_{t}", "", f"tilezero %tmm{t}") for t in sums]
    found += [_function(f"store_{t}", "ps", f"tilestored %tmm{t}, ($0,$1,1)") for t in sums]
    found += [_function(f"load_{t}", "ps", f"tileloadd ($0,$1,1), %tmm{t}") for t in factors]
    for left, right in itertools.permutations(factors, 2):
        found += [_function(f"{instruction}_{t}_{left}_{right}", "", f"{instruction} %tmm{right}, %tmm{left}, %tmm{t}") for t in sums]
    return "\n".join(found)


def has_tiles(machine: Machine) -> bool:
    """Whether the CPU has tiles of bfloat16."""
    return machine.amx and has_instructions(machine)


def used_by(kernels: Iterable[Any]) -> tuple[str, ...]:
    """Return which of the :data:`FEATURES` some PrimFuncs use."""
    used = {str(feature) for fn in kernels for feature in fn.attrs.get(INSTRUCTIONS, ())}
    return tuple(feature for feature in FEATURES if feature in used)


def amx_func(factors: Factors, buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None]) -> Any:
    """Return a PrimFunc whose body may use tiles of such factors."""
    return func_with(factors.functions(), factors.features, buffers, body)


def _emit(name: str, *args: Any) -> None:
    T.evaluate(T.call_extern("void", f"dycl_amx_{name}", *args))


@dataclass(frozen=True)
class Tiles:
    """The shapes of the tiles of a kernel.

    Attributes
    ----------
    rows : int
        Of left tiles and of sums.
    words : int
        In a row of a left tile; the rows of a right one.
    high, wide : int
        Tiles of sums below and beside each other.
    factors : Factors
    """

    rows: int
    words: int
    high: int
    wide: int
    factors: Factors

    def __post_init__(self) -> None:
        assert 1 <= self.rows <= ROWS and 1 <= self.words <= ROWS and self.high * self.wide <= _SUMS and self.high < _TILES - _SUMS

    def configuration(self) -> list[int]:
        """Return the operand of ``ldtilecfg`` as words: palette 1, at byte 16 the bytes of a row and at 48 the rows of each tile."""
        left = range(_SUMS, _SUMS + self.high)
        rows = [self.rows if t < _SUMS or t in left else self.words for t in range(_TILES)]
        columns = [4 * self.words if t in left else 4 * LANES for t in range(_TILES)]
        operand = bytes([1]).ljust(16, b"\0") + b"".join(c.to_bytes(2, "little") for c in columns).ljust(32, b"\0")
        operand += bytes(rows).ljust(16, b"\0")
        return [int.from_bytes(operand[i : i + 4], "little") for i in range(0, 64, 4)]

    def configure(self) -> None:
        """Emit the setting of the thread's tiles."""
        operand = T.alloc_buffer((16,), "int32")
        for i, value in enumerate(self.configuration()):
            store(operand, [i], T.int32(value))
        _emit("configure", T.address_of(operand[0]))

    def clear(self, high: int, wide: int) -> None:
        """Emit zeros to ``high`` x ``wide`` tiles of sums."""
        for t in range(high * wide):
            _emit(f"zero_{t}")

    def step(self, left: Sequence[Any], left_stride: int, right: Sequence[Any]) -> None:
        """Emit one product of left tiles (addresses; bytes between rows) with right ones (addresses; rows follow each other)."""
        first_right = _SUMS + self.high
        for i, address in enumerate(left):
            _emit(f"load_{_SUMS + i}", address, tirx.const(left_stride, "int64"))
        for j, address in enumerate(right):
            number = first_right + j % (_TILES - first_right)
            _emit(f"load_{number}", address, tirx.const(4 * LANES, "int64"))
            for i in range(len(left)):
                _emit(self.factors.dot(i * len(right) + j, _SUMS + i, number))

    def keep(self, high: int, wide: int, sums: Any, column: Any = 0) -> None:
        """Emit the sums to a buffer, at least (high * rows, wide * 16) from ``column`` on."""
        for i in range(high):
            for j in range(wide):
                row_bytes = tirx.const(4 * int(sums.shape[1]), "int64")
                _emit(f"store_{i * wide + j}", T.address_of(sums[i * self.rows, column + j * LANES]), row_bytes)

    def step_cycles(self, high: int, wide: int, steps: int, machine: Machine) -> float:
        """Estimate the cycles of one of ``steps`` for all products of planes; right tiles come from L1 if a panel of them fits there."""
        panel = 4 * LANES * wide * self.words * steps * self.factors.planes
        loads = _LOAD * high * self.rows + (_LOAD if 2 * panel <= machine.l1 else _LOAD_L2) * wide * self.words
        return len(self.factors.products) * max(high * wide * max(self.rows, self.words), loads, _LATENCY)

    def end_cycles(self, high: int, wide: int) -> float:
        """Estimate the cycles of :meth:`clear`, :meth:`keep` and the epilogue."""
        return _FILL + high * wide * self.rows * _STORE


def release() -> None:
    """Emit the return of the thread's tiles."""
    _emit("release")


def even_rows(total: int) -> int:
    """Return the rows of a tile so that as few tiles as there can be are as equal as can be."""
    return -(-total // -(-total // ROWS))


def shapes(row_tiles: int, column_tiles: int) -> list[tuple[int, int]]:
    """Return (high, wide) worth a try, the best for large products first."""
    if row_tiles == 1:
        return [(1, min(column_tiles, wide)) for wide in (4, 2)]
    return [(2, min(column_tiles, 2)), (1, min(column_tiles, 4))]


def cycles_per_second(machine: Machine) -> float:
    """Return the clock: a core with AMX has two units of multiply-adds."""
    return machine.gflops * 1e9 / (4 * LANES)


def request() -> None:
    """Ask Linux for the registers of this process, which measures kernels.

    Raises
    ------
    UsageError
        If it does not give them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)):
        why = os.strerror(ctypes.get_errno())
        raise UsageError(f"Linux does not give the registers of AMX to this process ({why}); tune with disable_families=['amx']")
