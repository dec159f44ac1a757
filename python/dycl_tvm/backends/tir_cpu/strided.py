# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reading through transpositions, slices and broadcasts: a kernel that takes strides needs no copy that they made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.tir_cpu.graph import Node, Var
from dycl_tvm.backends.tir_cpu.reading.stages import read_stages
from dycl_tvm.backends.tir_cpu.words.attention import Strided

#: Of one dimension of what is read: a number, and the factors of the axes.
Linear = tuple[int, dict[int, int]]


def moved_from(mod: tvm.IRModule, node: Node) -> list[Linear] | None:
    """Return where a node reads each of its elements from, by dimension of its input, or None if it does more than move elements."""
    if node.anchor != "tir" or len(node.inputs) != 1 or node.output is None or node.host is not None:
        return None
    stages = read_stages(mod[node.value.args[0]])
    if stages is None or len(stages) != 1 or stages[0].reduced or not isinstance(stages[0].value, TensorLoad):
        return None
    value = stages[0].value
    if node.inputs[0].tensor.dtype != node.output.tensor.dtype or tuple(int(s) for s in value.source.shape) != node.inputs[0].tensor.shape:
        return None
    found = [_linear(index, stages[0].axes) for index in value.indices]
    return None if any(f is None for f in found) else [f for f in found if f is not None]


def _linear(expr: Any, axes: Sequence[Any]) -> Linear | None:
    """Return an index as a number and the factors of axes; None for all but sums of axes times numbers."""
    if isinstance(expr, tirx.IntImm):
        return int(expr), {}
    axis = next((k for k, a in enumerate(axes) if expr.same_as(a)), None)
    if axis is not None:
        return 0, {axis: 1}
    if not isinstance(expr, (tirx.Add, tirx.Mul)):
        return None
    a, b = _linear(expr.a, axes), _linear(expr.b, axes)
    if a is None or b is None:
        return None
    if isinstance(expr, tirx.Add):
        return a[0] + b[0], {k: a[1].get(k, 0) + b[1].get(k, 0) for k in (*a[1], *b[1])}
    if a[1] and b[1]:
        return None
    factor, (number, factors) = (b[0], a) if a[1] else (a[0], b)
    return factor * number, {k: factor * f for k, f in factors.items()}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def source_of(mod: tvm.IRModule, var: Var, shape: Sequence[int], strides: tuple[int, ...]) -> tuple[Var, Strided]:
    """Follow a tensor to the array whose elements it shows.

    Parameters
    ----------
    mod : tvm.IRModule
    var : Var
    shape, strides : sequence of int
        How the tensor is read, in elements of its array.

    Returns
    -------
    tuple
        The array, and how it is read. Rows that are contiguous in ``var`` stay so, and matrices that are transposed in it may
        become so; else its copy is the better array.
    """
    where, last = Strided(var.tensor.numel, 0, strides), strides[-1]
    best = var, where
    while var.producer is not None and not var.constant:
        node = var.producer
        if node.anchor != "view":
            moved = moved_from(mod, node)
            through = None if moved is None else _through(moved, var.tensor.shape, node.inputs[0].tensor.shape, shape, where)
            if through is None:
                break
            where = through
        var = node.inputs[0]
        if where.strides[-1] == 1 or (last != 1 and where.strides[-2] == 1):
            best = var, where
    return best


def _through(
    moved: Sequence[Linear], shape: Sequence[int], source: Sequence[int], extents: Sequence[int], where: Strided
) -> Strided | None:
    """Return how the input of a moving node is read where its output, of ``shape``, is read at ``where``; None if no strides say that."""
    steps = [digits(stride, shape) for stride in where.strides]
    start = digits(where.offset, shape)
    for k, size in enumerate(shape):  # an index that carries into the next dimension has no stride
        if start[k] + sum((extent - 1) * step[k] for extent, step in zip(extents, steps)) >= size:
            return None
    weights = row_major(source)
    offset = sum(w * (number + sum(f * start[k] for k, f in factors.items())) for w, (number, factors) in zip(weights, moved))
    strides = [sum(w * f * step[k] for w, (_, factors) in zip(weights, moved) for k, f in factors.items()) for step in steps]
    return Strided(math.prod(source), offset, tuple(strides))


def digits(number: int, shape: Sequence[int]) -> list[int]:
    """Return an index into an array as indices of its dimensions."""
    digits = []
    for weight in row_major(shape):
        digits.append(number // weight)
        number %= weight
    return digits
