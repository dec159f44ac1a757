# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The random numbers of PyTorch on CUDA, in NumPy's integers: cuRAND's Philox4x32-10, and which thread draws which element.

The words are a function of a seed, of the number of a thread and of how often that thread has drawn before; so an element of a draw is a
function of (seed, offset, element). Source: ``curand_philox4x32_x.h``, ``curand_uniform.h`` and ``curand_normal.h`` of CUDA, and PyTorch's
``DistributionTemplates.h``, ``Dropout.cu`` and ``CUDAApplyUtils.cuh``. The kernels have the same in ``compile/ops/philox.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Constants of the generator: factors of the two products of a round, and what is added to the two words of the key.
FACTORS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
#: Threads of a block; draws of so many elements are the same on every GPU, for each runs as many threads at once.
BLOCK, SMALL = 256, 1024
#: What the generator's offset is a multiple of.
CALL = 4
#: Of the default generator's bytes: the seed, then the offset.
STATE_BYTES = 16
#: cuRAND's factors in float32: 2**-32, and that times 2 pi.
UNIT, ANGLE = 2.0**-32, float(np.float32(2.0**-32) * np.float32(6.2831855))

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


@dataclass
class Device:
    """The GPU for which numbers are drawn on this machine.

    ``threads`` is how many it runs at once, in whole blocks: larger draws go round in them. A library asks its driver;
    this is that of an H100 and an H200, for graphs that are interpreted.
    """

    threads: int = 132 * 2048


DEVICE = Device()


@dataclass(frozen=True)
class Way:
    """How the elements of a draw are spread over threads.

    Attributes
    ----------
    numel : int
    per_call : int
        How many elements a thread gets from the four words of one call.
    neighbours : int
        How many of them are neighbours in memory; the others are as many elements apart as there are threads.
    """

    numel: int
    per_call: int = 4
    neighbours: int = 1

    def stride(self, threads: int) -> int:
        """Return the number of threads that draw, of a GPU that runs ``threads`` at once."""
        return min(-(-self.numel // BLOCK), threads // BLOCK) * BLOCK

    def advance(self, threads: int) -> int:
        """Return by how much a draw moves the offset on."""
        return ((self.numel - 1) // (self.stride(threads) * self.per_call) + 1) * CALL


#: A tensor of probabilities is drawn by as many threads as it needs; PyTorch moves the offset by ten, rounded up.
EACH_ADVANCE = 12


def words(state: Any, thread: Any, call: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four words that threads get in a call, each as an array of uint64 below 2**32."""
    seed, offset = unpacked(state)
    counter = np.uint64(offset // CALL) + np.asarray(call, np.uint64)
    thread = np.asarray(thread, np.uint64)
    return philox((counter & _LOW, counter >> _WORD, thread & _LOW, thread >> _WORD), (seed & 0xFFFFFFFF, seed >> 32))


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Return Philox4x32-10 of counters and a key."""
    a, b, c, d = (np.asarray(x, np.uint64) for x in counter)
    k, m = key
    for _ in range(ROUNDS):
        first, second = a * np.uint64(FACTORS[0]), c * np.uint64(FACTORS[1])
        a, b, c, d = (second >> _WORD) ^ b ^ np.uint64(k), second & _LOW, (first >> _WORD) ^ d ^ np.uint64(m), first & _LOW
        k, m = (k + STEPS[0]) & 0xFFFFFFFF, (m + STEPS[1]) & 0xFFFFFFFF
    return a, b, c, d


def drawn(state: Any, way: Way) -> tuple[tuple[Any, Any, Any, Any], Any]:
    """Return the words of the call of each element, and which of the call's numbers it gets."""
    stride = way.stride(DEVICE.threads)
    element = np.arange(way.numel)
    group, inner = element // way.neighbours, element % way.neighbours
    thread, turn = group % stride, group // stride
    if way.neighbours > 1:  # each turn is a call, of which some numbers may be left over
        return words(state, thread, turn), inner
    return words(state, thread, turn // way.per_call), turn % way.per_call


def unpacked(state: Any) -> tuple[int, int]:
    """Return the seed and the offset of a state, an array of bytes."""
    seed, offset = np.frombuffer(np.ascontiguousarray(state).tobytes(), np.uint64)
    return int(seed), int(offset)


def packed(seed: int, offset: int) -> Any:
    """Return a state as an array of bytes."""
    return np.frombuffer(np.array([seed % (1 << 64), offset % (1 << 64)], np.uint64).tobytes(), np.uint8).copy()


# -- from words to numbers ---------------------------------------------------------------------------------------------
def chosen(numbers: Any, component: Any) -> Any:
    """Return one of several arrays, element by element."""
    return np.choose(component, numbers) if len(numbers) > 1 else numbers[0]


def uniform(found: tuple[Any, Any, Any, Any], component: Any, double: bool) -> Any:
    """Return numbers in (0, 1], as float32 or float64 has them."""
    if double:
        x, y = chosen((found[0], found[2]), component), chosen((found[1], found[3]), component)
        return (x ^ (y << np.uint64(21))).astype(np.float64) * 2.0**-53 + 2.0**-54
    x = chosen(found, component).astype(np.float32)
    return x * np.float32(UNIT) + np.float32(UNIT / 2)


def normal(found: tuple[Any, Any, Any, Any], component: Any, double: bool) -> Any:
    """Return normally distributed numbers by the method of Box and Muller."""
    if double:
        one, second = uniform(found, np.zeros_like(component), True), component == 1
        angle = (found[2] ^ (found[3] << np.uint64(21))).astype(np.float64) * 2.0**-52 + 2.0**-53
        angle = angle * np.pi
    else:
        one, second = uniform(found, component & 2, False), component % 2 == 1
        angle = fused(chosen(found, component | 1).astype(np.float32), np.float32(ANGLE), np.float32(ANGLE / 2))
    radius = np.sqrt(one.dtype.type(-2) * rounded("log", one))
    return np.where(second, rounded("cos", angle), rounded("sin", angle)) * radius


def rounded(name: str, x: Any) -> Any:
    """Return a function of the C library of floats: of float32 as exact as float32 is; a GPU has approximations of its own."""
    function = getattr(math, name)
    if x.dtype == np.float32:
        return getattr(np, name)(x.astype(np.float64)).astype(np.float32)
    return np.array([function(v) for v in x.reshape(-1).tolist()]).reshape(x.shape)


def fused(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` rounded once, in the type of ``a``, as the compiler of PyTorch's kernels contracts it.

    Source: S. Boldo and G. Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd, 2008.
    """
    dtype = a.dtype
    x, y, z = (np.asarray(t, np.float64) for t in (a, b, c))
    if dtype == np.float32:  # the product is exact in float64
        return _odd_sum(*np.broadcast_arrays(x * y, z)).astype(np.float32)
    high, low = _product(x, y)
    top, rest = _sum(z, low)
    result, left = _sum(high, top)
    return result + _odd_sum(*np.broadcast_arrays(rest, left))


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a sum and its error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a product and its error."""

    def split(x: Any) -> tuple[Any, Any]:
        t = x * 134217729.0
        high = t - (t - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return p, al * bl - (((p - ah * bh) - al * bh) - ah * bl)


def _odd_sum(a: Any, b: Any) -> Any:
    """Return a sum rounded to odd: the last bit of an inexact one is set, so that rounding it again is as rounding once."""
    s, error = _sum(a, b)
    bits = s.view(np.int64).copy()
    inexact = (error != 0) & (bits & 1 == 0)
    # towards the exact value: away from zero if the error has the sum's sign
    bits += np.where(inexact, np.where((error > 0) == (s > 0), 1, -1), 0)
    return bits.view(np.float64)
