# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Element-wise operators as expressions of their operands' elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var

from dycl_tvm.backends.tir_cpu.reading.stages import inlined, loads_of, read_stages, replace_loads, substitute, tensor_of, uses
from dycl_tvm.backends.tir_cpu.words.workload import Tensor

#: What a call of a mathematical function costs, in additions.
_CALL_COST = 12

#: Calls that are an instruction or nothing.
_CHEAP = {"if_then_else", "reinterpret", "isnan", "fabs", "bitwise_and", "bitwise_or", "bitwise_xor"}


@dataclass(frozen=True)
class Elementwise:
    """``out[i] = element(inputs at i)``.

    Attributes
    ----------
    inputs : tuple of Tensor
        With the rank of the output: each dimension is the output's, or 1. An input of lower rank has dimensions of 1 put in, which
        leaves its array as it is.
    out : Tensor
    element : callable
        Returns the expression of an element, given those of the inputs' elements.
    key : str
        Equal keys compute the same from inputs of equal types.
    operations : int
        Floating point operations an element; a function such as ``exp`` counts for several.
    """

    inputs: tuple[Tensor, ...]
    out: Tensor
    element: Callable[[Sequence[Any]], Any]
    key: str
    operations: int


def elementwise(fn: tirx.PrimFunc) -> Elementwise | None:
    """Return what an unscheduled function computes element by element, or None if it does not.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Inputs first, the output last. Chains of element-wise loop nests are one expression.

    Notes
    -----
    None for reductions, for inputs that are read at anything but the output's own index or at 0 of a broadcast dimension, and for
    values that depend on where they are (``arange``).
    """
    stages = read_stages(fn)
    stages = None if stages is None else inlined(stages)
    if stages is None or len(stages) != 1 or stages[0].reduced:
        return None
    stage = stages[0]
    *params, last = fn.params
    if not stage.out.same_as(last):
        return None
    shapes: dict[int, tuple[int, ...]] = {}
    for load in loads_of(stage.value):
        number = next((k for k, p in enumerate(params) if load.source.same_as(p)), None)
        shape = None if number is None else _aligned(load, stage.axes, stage.extents)
        if number is None or shape is None or shapes.setdefault(number, shape) != shape:
            return None
    inputs = tuple(
        Tensor(shapes.get(k, (1,) * (len(stage.axes) - len(p.shape)) + tensor_of(p).shape), str(p.dtype)) for k, p in enumerate(params)
    )
    names = [Var(f"input_{k}", str(p.dtype)) for k, p in enumerate(params)]
    value = replace_loads(stage.value, lambda load: next(n for n, p in zip(names, params) if load.source.same_as(p)))
    if uses(value, stage.axes):
        return None
    key = f"({', '.join(t.dtype for t in inputs)}) -> {stage.out.dtype}: {value.script(show_meta=False)}"
    return Elementwise(inputs, tensor_of(last), lambda loads: substitute(value, names, loads), key, operations_of(value))


def _aligned(load: Any, axes: Sequence[Any], extents: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of what is loaded, with a dimension for each axis, or None if it is not at the axes in order."""
    shape, at = [1] * len(axes), -1
    for index, size in zip(load.indices, load.source.shape):
        size = int(size)
        place = next((k for k, axis in enumerate(axes) if index.same_as(axis)), None)
        if place is None:
            if size != 1 or not (isinstance(index, tirx.IntImm) and int(index) == 0):
                return None
        elif place <= at or size != extents[place]:
            return None
        else:
            at = place
            shape[place] = size
    return tuple(shape)


def operations_of(expr: Any) -> int:
    """Return the floating point operations of an expression; equal parts are computed once."""
    seen: dict[Any, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, (Var, TensorLoad, tirx.IntImm, tirx.FloatImm)) or not hasattr(node, "ty"):
            return
        cost = 0
        if isinstance(node, Call):
            name = str(getattr(node.op, "name", "")).rpartition(".")[2]
            cost = 1 if name in _CHEAP else _CALL_COST if hasattr(node.op, "name") else 0
        elif hasattr(node, "a") or isinstance(node, (tirx.Select, tirx.Cast)):
            cost = 1
        if cost:
            seen[tvm_ffi.StructuralKey(node)] = cost

    tvm_ffi.structural_walk(expr, visit)
    return sum(seen.values())
