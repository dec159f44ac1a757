# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products of bfloat16 pairs by the tiles of AMX (Sapphire Rapids and later).

A tile is up to 16 rows of 64 bytes. ``tdpbf16ps`` adds to a tile of 16 x 16 float32 sums the products of a *left* tile (rows x pairs of
factors) and a *right* one (pairs x 16 columns of weights). There are eight tiles: ``high`` x ``wide`` of sums, ``high`` left ones, the rest
right ones. Two by two is the square that loads least; one row of four is for few rows.

The shapes of the tiles are a state of the thread, which a task of a kernel sets once (:meth:`Tiles.configure`) and gives back
(:func:`release`): between the two no other kernel runs on the thread. Rows are cut into as few tiles as can be, all of one height, so
that no task needs a second setting. Rows beyond the last one are read from memory of the kernel's own, and their sums are dropped.

Rounding, pairs and packed words are those of :mod:`bf16`. ``tdpbf16ps`` sums the first and the second products of the 16 pairs apart, then
adds both to the sum: fewer than k + 8 roundings, so the bound of :mod:`bf16` holds.

For ``bf16x3`` a factor is the sum of three bfloat16, its planes: with 8 bits each they hold the 24 of a float32 exactly, but for denormal
numbers. The six products of planes down to 2^-16 of the whole are summed; those left out are about 2^-23 of |x w| at most. With the
roundings of the instructions, |error| <= (2 k + 40) 2^-24 sum |x w|. An infinite factor makes NaN: its product with a plane that is
zero is no number.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, bf16_func, has_instructions, pairs, rest, rest_of_weight, word
from dycl_tvm.backends.tir_cpu.words.loops import INSTRUCTIONS, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import takes
from dycl_tvm.backends.tir_cpu.words.workload import DTypes
from dycl_tvm.errors import UsageError

#: LLVM's name of the feature. Linux grants the registers only to processes that ask for them.
FEATURE = "amx-bf16"
#: The system call arch_prctl of x86-64, its request of a permission, and what for (Documentation/arch/x86/xstate.rst of Linux).
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
#: Rows of a tile; also pairs of a row.
ROWS = 16
#: Tiles of sums at a time; the next numbers are those of left tiles, then of right ones.
_SUMS, _TILES = 4, 8
#: Cycles from a product to the next that adds to the same sums.
_LATENCY = 52
#: Cycles to load a row of a tile, from L1 or L2.
_LOAD = 0.7
#: Cycles of a row of 16 sums from the tile to the output, and of a tile of sums before its first and after its last product.
_STORE, _FILL = 4.0, 60.0


def _function(name: str, parameters: str, instruction: str) -> str:
    types = "ptr %p" if parameters == "p" else "ptr %p, i64 %s" if parameters else ""
    asm = f'asm sideeffect "{instruction}", "{"r," * len(parameters)}~{{memory}}"'
    head = f"define linkonce_odr hidden void @dycl_amx_{name}({types}) alwaysinline nounwind"
    return f"{head} {{\n  call void {asm}({types})\n  ret void\n}}\n"


def _functions() -> str:
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
        found += [_function(f"dot_{t}_{left}_{right}", "", f"tdpbf16ps %tmm{right}, %tmm{left}, %tmm{t}") for t in sums]
    return "\n".join(found)


_FUNCTIONS = _functions()


#: Of the types of factors that tiles multiply, of how many bfloat16 each is the sum.
PLANES = {"bfloat16": 1, "bfloat16x3": 3}


def planes_of(dtypes: DTypes, halves: str = "") -> int:
    """Return of how many bfloat16 each factor is the sum, and 0 for what tiles do not compute.

    ``halves`` are those of x and y that may be stored as bfloat16, where factors are one of it.
    """
    planes = PLANES.get(dtypes.weights, 0)
    return planes if takes(dtypes, halves if planes == 1 else "", dtypes.weights) else 0


def has_tiles(machine: Machine) -> bool:
    """Whether the CPU has tiles of bfloat16."""
    return machine.amx and has_instructions(machine)


def used_by(kernels: Iterable[Any]) -> bool:
    """Whether one of some PrimFuncs uses tiles."""
    return any(FEATURE in fn.attrs.get(INSTRUCTIONS, ()) for fn in kernels)


def products(planes: int) -> list[tuple[int, int]]:
    """Return the planes of the left and of the right side whose products are summed: those above 2^-24 of the whole."""
    return [(i, j) for i in range(planes) for j in range(planes) if i + j < planes]


def split(values: Any, planes: int, put: Callable[[int, Any], None]) -> None:
    """Emit ``put(plane, words)`` for the planes of 16 factors; None stands for zeros."""
    for plane in range(planes):
        put(plane, T.broadcast(T.int32(0), PAIRS) if values is None else pairs(values))
        values = None if values is None else rest(values)


def split_weights(first: Any, second: Any, planes: int, put: Callable[[int, Any], None]) -> None:
    """Emit ``put(plane, word)`` for the planes of a pair of weights."""
    both = T.alloc_buffer((2,), "float32")
    for half, value in enumerate((first, second)):
        store(both, [half], value)
    for plane in range(planes):
        put(plane, word(both[0], both[1]))
        for half in range(2):
            store(both, [half], rest_of_weight(both[half]))


def amx_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None]) -> Any:
    """Return a PrimFunc whose body may use tiles, and all that :func:`bf16.bf16_func` lets it use."""
    return bf16_func(buffers, body, _FUNCTIONS).with_attr(INSTRUCTIONS, ["avx512bf16", FEATURE])


def scratch(shape: Sequence[int], dtype: str) -> Any:
    """Return a buffer that tiles are loaded from or stored to.

    TVM makes a buffer as small as the elements that it sees used, and of a tile it sees the first one: so the ends are used here.
    """
    buffer = T.alloc_buffer(tuple(shape), dtype)
    for end in ([0] * len(shape), [extent - 1 for extent in shape]):
        store(buffer, end, tirx.const(0, dtype))
    return buffer


def _emit(name: str, *args: Any) -> None:
    T.evaluate(T.call_extern("void", f"dycl_amx_{name}", *args))


@dataclass(frozen=True)
class Tiles:
    """The shapes of the tiles of a kernel.

    Attributes
    ----------
    rows : int
        Of left tiles and of sums.
    pairs : int
        In a row of a left tile; the rows of a right one.
    high, wide : int
        Tiles of sums below and beside each other.
    planes : int
        Of bfloat16 in a factor.
    """

    rows: int
    pairs: int
    high: int
    wide: int
    planes: int = 1

    def __post_init__(self) -> None:
        assert 1 <= self.rows <= ROWS and 1 <= self.pairs <= ROWS and self.high * self.wide <= _SUMS and self.high < _TILES - _SUMS

    def configuration(self) -> list[int]:
        """Return the operand of ``ldtilecfg`` as words: palette 1, at byte 16 the bytes of a row and at 48 the rows of each tile."""
        left = range(_SUMS, _SUMS + self.high)
        rows = [self.rows if t < _SUMS or t in left else self.pairs for t in range(_TILES)]
        columns = [4 * self.pairs if t in left else 4 * LANES for t in range(_TILES)]
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
                _emit(f"dot_{i * len(right) + j}_{_SUMS + i}_{number}")

    def keep(self, high: int, wide: int, sums: Any) -> None:
        """Emit the sums to a buffer (at least high * rows, at least wide * 16)."""
        for i in range(high):
            for j in range(wide):
                row_bytes = tirx.const(4 * int(sums.shape[1]), "int64")
                _emit(f"store_{i * wide + j}", T.address_of(sums[i * self.rows, j * LANES]), row_bytes)

    def step_cycles(self, high: int, wide: int) -> float:
        """Estimate the cycles of a step for all products of planes; nothing here was measured."""
        once = max(high * wide * max(self.rows, self.pairs), _LOAD * (high * self.rows + wide * self.pairs), _LATENCY)
        return len(products(self.planes)) * once

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
