# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Layer, group, instance and RMS normalisation: statistics in two passes over a row in cache, then scale and shift.

The variance is that of the centred row, as the sum of squares less the square of the sum cancels. What rounding left of the mean is found
by the second pass and taken away by the shift, so the error does not grow with the mean: 1e-6 of the largest |y| for rows up to
1e5 elements and means up to 1e7 standard deviations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.cost import pieces_of_rows
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.vector_math import let
from dycl_tvm.backends.tir_cpu.words.vectors import across, along, fill, merge

#: Vectors of each sum that are under way at once.
_CHAINS = 4


def layer_norm(
    shape: Sequence[int], axes: int, eps: float, machine: Machine, weight: bool = True, bias: bool = True, centred: bool = True
) -> Any:
    """Return the PrimFunc (x, weight, bias, y) that normalises the last ``axes`` axes; ``centred=False`` is RMS normalisation.

    Weight and bias have the shape of those axes; a PrimFunc without one lacks its argument.
    """
    shape = tuple(shape)
    n = math.prod(shape[-axes:])
    return _kernel(shape, shape[-axes:], math.prod(shape) // n, n, 1, 1, eps, machine, weight, bias, centred)


def group_norm(shape: Sequence[int], groups: int, eps: float, machine: Machine, weight: bool = True, bias: bool = True) -> Any:
    """Return the PrimFunc (x (N, C, ...), weight (C), bias (C), y) that normalises groups of channels (``groups`` C: instance norm)."""
    shape = tuple(shape)
    space = math.prod(shape[2:])
    return _kernel(shape, (shape[1],), shape[0] * groups, shape[1] // groups, space, groups, eps, machine, weight, bias, True)


def _kernel(
    shape: tuple[int, ...],
    affine: tuple[int, ...],
    rows: int,
    channels: int,
    space: int,
    groups: int,
    eps: float,
    machine: Machine,
    weight: bool,
    bias: bool,
    centred: bool,
) -> Any:
    n, lanes = channels * space, machine.lanes
    minus, zero, one = (tirx.const(v, "float32") for v in (-1, 0, 1))

    def body(x: Any, *rest: Any) -> None:
        tables = [T.decl_buffer((groups * channels,), "float32", data=b.data) for b in rest[:-1]]
        x = T.decl_buffer((rows, n), "float32", data=x.data)
        y = T.decl_buffer((rows, n), "float32", data=rest[-1].data)
        pieces = pieces_of_rows(rows, machine)
        with (
            parallel(pieces, machine, rows * n * 1.5e-9 / lanes) as piece,
            T.serial(piece * rows // pieces, (piece + 1) * rows // pieces) as row,
        ):
            row_of(x, y, tables, row)

    def row_of(x: Any, y: Any, tables: list[Any], row: Any) -> None:
        count, scale = tirx.const(n, "float32"), T.alloc_buffer((1,), "float32")
        offset, shift = T.alloc_buffer((1,), "float32"), T.alloc_buffer((1,), "float32")

        def moved(j: Any) -> Any:
            return x[row, j] + offset[0] if centred else x[row, j]

        if centred:
            (total,) = _sums(n, lanes, lambda j: [x[row, j]])
            store(offset, [0], minus * total[0] / count)
            rest, squares = _sums(n, lanes, lambda j: [moved(j), let(moved(j), lambda v: v * v)], 2)
            store(rest, [0], minus * rest[0] / count)
            variance = squares[0] / count - rest[0] * rest[0]
            store(squares, [0], tirx.Select(variance < zero, zero, variance))
        else:
            (squares,) = _sums(n, lanes, lambda j: [x[row, j] * x[row, j]])
            store(squares, [0], squares[0] / count)
        store(scale, [0], one / tirx.sqrt(squares[0] + tirx.const(eps, "float32")))
        if centred:
            store(shift, [0], rest[0] * scale[0])

        def put(j: Any, at: Any) -> None:
            value = moved(j) * scale[0] + shift[0] if centred else x[row, j] * scale[0]
            if weight:
                value = value * tables[0][at]
            store(y, [row, j], value + tables[-1][at] if bias else value)

        if space == 1:
            along(n, lanes, lambda c, v, j: put(j, row % groups * channels + j))
        else:
            with T.serial(0, channels) as channel:
                along(space, lanes, lambda c, v, j: put(channel * space + j, row % groups * channels + channel))

    tables = [(name, affine, "float32") for name, there in (("weight", weight), ("bias", bias)) if there]
    return prim_func([("x", shape, "float32"), *tables, ("y", shape, "float32")], body)


def _sums(n: int, lanes: int, terms: Callable[[Any], Sequence[Any]], count: int = 1) -> list[Any]:
    """Emit ``count`` sums over n elements in one pass; return buffers whose first elements they are."""
    chains = [[T.alloc_buffer((lanes,), "float32") for _ in range(count)] for _ in range(min(_CHAINS, -(-n // lanes)))]
    for sums in chains:
        for total in sums:
            fill(total, lanes, lanes, 0.0)

    def add(chain: int, v: Any, j: Any) -> None:
        for total, term in zip(chains[chain], terms(j)):
            store(total, [v], total[v] + term)

    along(n, lanes, add, _CHAINS)
    for k, first in enumerate(chains[0]):
        for sums in chains[1:]:
            merge(first, sums[k], lanes, lanes, operator.add)
        across(first, lanes, operator.add)
    return chains[0]
