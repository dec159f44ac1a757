# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sorting along an axis: stable, NaN the largest.

Elements become integers whose order is the wanted one (:func:`_ordinal`). Then, by length:

* short rows: the place of an element is the number of elements that come before it; quadratic, but whole vectors are compared at once;
* all else: a radix sort from the last digit to the first, linear and stable (Knuth, The Art of Computer Programming, volume 3,
  section 5.2.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.vectors import vectors

#: The longest row whose places are counted.
_SHORT = 96
#: Bits of a digit of the radix sort: its counts are to stay in the first cache.
_DIGIT = 8


@dataclass(frozen=True)
class _Row:
    """The row that code is emitted for: its elements, and where its results go.

    Attributes
    ----------
    load : callable
        From the number of an element to the element.
    put : callable
        ``put(place, number)`` emits that the element ``number`` is at ``place`` of the order.
    n : int
    ordinal : callable
        From an element to an integer of type ``key``.
    key : str
    bits : int
        As many bits of ordinals differ: they are in [-2^(bits - 1), 2^(bits - 1)).
    lanes : int
        Ordinals of a vector.
    """

    load: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    n: int
    ordinal: Callable[[Any], Any]
    key: str
    bits: int
    lanes: int


def kernel(lead: int, n: int, tail: int, dtype: str, descending: bool, values: bool, indices: bool, machine: Machine) -> Any:
    """Return the PrimFunc (x, [values], [indices]) of the elements of each row in order.

    Parameters
    ----------
    lead, n, tail : int
        The shape of x and the results; rows run along n.
    dtype : str
        Of x and the values; indices are int64.
    descending : bool
        Largest first. Of equal elements the one of the lower index comes first, either way.
    values, indices : bool
        Which results are wanted, at least one.
    machine : Machine
    """
    bits = tvm_ffi.dtype(dtype).itemsize * 8
    if "float" in dtype:
        bits = max(bits, 32)
    if dtype == "uint8":
        bits = 16
    key = "int64" if bits == 64 else "int32"
    lanes = machine.vector_bytes // tvm_ffi.dtype(key).itemsize
    emit, step = _sorted, 8e-9 * bits / 32
    if n <= _SHORT:
        emit, step = _counted, 1e-9 * (1 + n / lanes)

    def body(x: Any, *results: Any) -> None:
        with parallel(lead * tail, machine, lead * tail * n * step) as row:
            a, b = row // tail, row % tail

            def put(place: Any, number: Any) -> None:
                if values:
                    store(results[0], [a, place, b], x[a, number, b])
                if indices:
                    store(results[-1], [a, place, b], number.astype("int64"))

            emit(_Row(lambda i: x[a, i, b], put, n, lambda v: _ordinal(v, dtype, descending), key, bits, lanes))

    outputs = [*([("values", (lead, n, tail), dtype)] if values else []), *([("indices", (lead, n, tail), "int64")] if indices else [])]
    return prim_func([("x", (lead, n, tail), dtype), *outputs], body)


def _ordinal(value: Any, dtype: str, descending: bool) -> Any:
    """Return an integer that is less where the value comes earlier, and equal where the values are equal.

    Floats are sign and magnitude; both zeros have the magnitude 0, and NaN has one above that of infinity. There is no sum in it, for TVM
    would move its terms to the other side of a comparison, where they overflow.
    """
    if "float" not in dtype:
        order = value.astype("int64" if dtype == "int64" else "int32")
    else:
        wide = "float64" if dtype == "float64" else "float32"
        key, infinity = ("int64", 0x7FF0000000000000) if wide == "float64" else ("int32", 0x7F800000)
        zero, largest = tirx.const(0, key), tirx.max_value(key)
        pattern = tirx.reinterpret(key, value.astype(wide))
        magnitude = tirx.bitwise_and(pattern, largest)
        signed = tirx.Select(tirx.And(pattern < zero, magnitude > zero), _inverted(magnitude), magnitude)
        order = tirx.Select(magnitude > tirx.const(infinity, key), largest, signed)
    return _inverted(order) if descending else order


def _inverted(order: Any) -> Any:
    """Return -1 - order."""
    return tirx.bitwise_xor(order, tirx.const(-1, str(order.ty.dtype)))


def _counted(row: _Row) -> None:
    """Emit the order of a short row: each element's place is counted."""
    key = T.alloc_buffer((row.n,), row.key)
    place = T.alloc_buffer((row.n,), row.key)
    one, zero = tirx.const(1, row.key), tirx.const(0, row.key)
    vectors(row.n, row.lanes, lambda i: store(key, [i], row.ordinal(row.load(i))))
    vectors(row.n, row.lanes, lambda i: store(place, [i], zero))

    def count(i: Any, j: Any) -> None:
        before = tirx.Or(key[j] < key[i], tirx.And(key[j] == key[i], j < i))
        store(place, [i], place[i] + tirx.Select(before, one, zero))

    with T.serial(0, row.n) as j:
        vectors(row.n, row.lanes, lambda i: count(i, j))
    with T.serial(0, row.n) as i:
        row.put(place[i], i)


def _sorted(row: _Row) -> None:
    """Emit a radix sort of (ordinal, number): from one half of the scratch arrays to the other, digit by digit."""
    n, digits, values = row.n, row.bits // _DIGIT, 1 << _DIGIT
    key, number = T.alloc_buffer((2 * n,), row.key), T.alloc_buffer((2 * n,), "int32")
    starts, half = T.alloc_buffer((digits * values,), "int32"), T.alloc_buffer((1,), "int32")
    total, source = T.alloc_buffer((1,), "int32"), T.alloc_buffer((1,), "int32")

    def digit(ordinal: Any, d: int) -> Any:
        """Return where the count of an ordinal's digit lies; the sign makes the last digit's upper half the lower one."""
        found = tirx.bitwise_and(tirx.shift_right(ordinal, tirx.const(d * _DIGIT, row.key)), tirx.const(values - 1, row.key))
        if d == digits - 1:
            found = tirx.bitwise_xor(found, tirx.const(values // 2, row.key))
        return found.astype("int32") + d * values

    with T.serial(0, digits * values) as i:
        store(starts, [i], tirx.const(0, "int32"))
    with T.serial(0, n) as i:
        store(key, [i], row.ordinal(row.load(i)))
        store(number, [i], i)
        for d in range(digits):
            at = digit(key[i], d)
            store(starts, [at], starts[at] + 1)
    store(half, [0], tirx.const(0, "int32"))
    for d in range(digits):
        # a digit that all elements share orders nothing
        with T.If(starts[digit(key[half[0]], d)] < n), T.Then():
            store(total, [0], tirx.const(0, "int32"))
            with T.serial(0, values) as v:
                store(source, [0], starts[d * values + v])
                store(starts, [d * values + v], total[0])
                store(total, [0], total[0] + source[0])
            store(source, [0], half[0])
            store(half, [0], n - half[0])
            with T.serial(0, n) as i:
                _move(key, number, starts, source[0] + i, half[0], digit(key[source[0] + i], d))
    with T.serial(0, n) as i:
        row.put(i, number[half[0] + i])


def _move(key: Any, number: Any, starts: Any, source: Any, half: Any, at: Any) -> None:
    """Emit the move of one element to the next place of its digit."""
    place = T.alloc_buffer((1,), "int32")
    store(place, [0], starts[at])
    store(starts, [at], place[0] + 1)
    store(key, [half + place[0]], key[source])
    store(number, [half + place[0]], number[source])
