# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recognising reductions, with what is computed element by element before and after them, whatever they are called.

All that is read must lie at an offset that is linear in the axes: transposed, sliced, broadcast and reshaped tensors do. Then axes whose
strides continue each other become one, and which axis is contiguous decides the kernel (``families/reduction.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var

from dycl_tvm.backends.tir_cpu.reading.channelwise_op import read_reduction
from dycl_tvm.backends.tir_cpu.reading.expression import operations_of
from dycl_tvm.backends.tir_cpu.reading.reducers import ArgExtreme, Extreme, Fold, Reducer
from dycl_tvm.backends.tir_cpu.reading.stages import Stage, inlined, loads_of, read_nests, read_stage, replace_loads, substitute, uses

#: The annotation of a block that computes pairs of an index and a value, ``argmax`` or ``argmin``: the index of the first NaN or else of
#: the first extreme element along the only reduction axis, and that element.
REDUCER = "dycl.reducer"

#: Loads of one expression.
_MOST_READS = 12

_DTYPES = ("float32", "float64", "int8", "uint8", "int32", "int64")


@dataclass(frozen=True)
class Axis:
    """A loop, and by how much it moves each of the loads."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """A load: the number of its buffer and where in it, flat, the loops begin."""

    buffer: int
    offset: int


@dataclass(frozen=True, eq=False)
class Follower:
    """``y[axes] = element(result, loads)`` where y is not the result's shape: a mean that is subtracted from what it is the mean of.

    Attributes
    ----------
    axes : tuple of Axis
        Those of y, row-major; strides of the loads of ``reads``, then of the result.
    reads : tuple of Read
    element : callable
    operations : int
    """

    axes: tuple[Axis, ...]
    reads: tuple[Read, ...]
    element: Callable[[Any, Sequence[Any]], Any]
    operations: int


@dataclass(frozen=True, eq=False)
class ReductionOp:
    """``y[spatial] = finish(reduction of element over reduced)``, spatial row-major in each output.

    Attributes
    ----------
    buffers : tuple of (shape, dtype)
        The parameters, outputs last.
    outputs : int
        How many are outputs: two for pairs of index and value.
    spatial, reduced : tuple of Axis
        Outer ones first, none of extent 1, strides of the loads of ``reads``.
    reads : tuple of Read
        What ``element`` reads, then what ``finish`` reads; these have stride 0 along reduced axes.
    elements : int
        How many of them ``element`` reads.
    element, finish : callable
        ``element(loads)`` and ``finish(value, loads)``.
    reducer : Reducer
    operations : int
        Of one element, without the reduction.
    follower : Follower or None
        What is computed of the result when all of it is there; the only output is then the follower's.
    """

    buffers: tuple[tuple[tuple[int, ...], str], ...]
    outputs: int
    spatial: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    reads: tuple[Read, ...]
    elements: int
    element: Callable[[Sequence[Any]], Any]
    finish: Callable[[Any, Sequence[Any]], Any]
    reducer: Reducer
    operations: int
    follower: Follower | None = None


def reduction_op(fn: tirx.PrimFunc) -> ReductionOp | None:
    """Return what an unscheduled function computes, or None if it is not one reduction between element-wise steps.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Inputs first, outputs last, as FuseTIR leaves it.
    """
    nests = read_nests(fn)
    if not nests:
        return None
    pair = _pair_stage(nests[-1])
    last = read_stage(nests[-1]) if pair is None else pair[0]
    written = [last] if last is None else [*map(read_stage, nests[:-1]), last]
    if any(s is None for s in written):
        return None
    stages = [s for s in written if s is not None]
    kept = inlined(stages)
    if kept is None or len(kept) > 2 or not kept[0].reduced or (len(kept) == 2 and (kept[1].reduced or pair is not None)):
        return None
    reduction, final = kept[0], kept[-1]
    *params, out = fn.params if pair is None else fn.params[:-1]
    if not final.out.same_as(fn.params[-1]) or (pair is not None and not pair[1].same_as(out)):
        return None
    space = math.prod(reduction.extents) * math.prod(reduction.windows)
    repeated = [s for s in stages if not s.reduced and s is not stages[-1] and math.prod(s.extents) < space]
    if any(_before(s, reduction, stages) and not isinstance(s.value, TensorLoad) for s in repeated) or not 0 < space < 2**31:
        return None  # what is broadcast would be computed many times
    reducer, element = _reducer(reduction) if pair is None else (pair[2], reduction.value)
    if reducer is None or any(d not in (*_DTYPES, "bool") for d in (str(p.dtype) for p in fn.params)):
        return None
    return _assembled(list(params), fn, reduction, final, reducer, element)


def _before(stage: Stage, reduction: Stage, stages: Sequence[Stage]) -> bool:
    return [s.out.same_as(stage.out) for s in stages].index(True) < [s.out.same_as(reduction.out) for s in stages].index(True)


def _reducer(stage: Stage) -> tuple[Reducer | None, Any]:
    """Return the reducer of a stage and what it reduces."""
    found = read_reduction(stage, stage)
    dtype = str(stage.out.dtype)
    if found is None or found.guard or dtype not in _DTYPES:
        return None, None
    if "float" in dtype and not isinstance(found.combine, (tirx.Add, tirx.Mul)):
        for extreme in (Extreme(dtype, True), Extreme(dtype, False)):
            identity = extreme.start(None)[1]
            if tvm_ffi.structural_equal(found.combine, _extreme(found, extreme.is_max)) and tvm_ffi.structural_equal(found.init, identity):
                return extreme, found.element
        return None, None
    return Fold(dtype, found.init, found.combined), found.element


def _extreme(found: Any, is_max: bool) -> Any:
    """Return how the operators of PyTorch are written that keep NaN."""
    a, b = found.total, found.item
    if is_max:
        return tirx.Select(a > b, a, tirx.Select(b >= a, b, a + b))
    return tirx.Select(a < b, a, tirx.Select(b <= a, b, a + b))


def _pair_stage(nest: Any) -> tuple[Stage, Any, Reducer] | None:
    """Return the stage of the values, the buffer of the indices and the reducer of a block that computes pairs."""
    loop = nest
    while isinstance(loop, tirx.For):
        loop = loop.body
    block = getattr(loop, "block", None)
    if block is None:
        return None
    name = str(block.annotations.get(REDUCER, ""))
    if name not in ("argmax", "argmin") or not isinstance(block.body, tirx.SeqStmt) or not isinstance(block.init, tirx.SeqStmt):
        return None
    binds = {s.var: s.value for s in block.body.seq if isinstance(s, tirx.Bind)}
    stores = [s for s in block.body.seq if isinstance(s, tirx.BufferStore)]
    if len(stores) != 2 or len(binds) != 2:
        return None
    index, value = (binds.get(s.value) for s in stores)
    if not isinstance(index, tirx.Select) or not isinstance(value, tirx.Select):
        return None
    store = tirx.BufferStore(stores[1].buffer, value.false_value, stores[1].indices)
    stage = read_stage(nest, store, block.init.seq[1])
    if stage is None or len(stage.reduced) != 1 or not index.false_value.same_as(stage.reduced[0]) or stage.init is None:
        return None
    dtype = str(stage.out.dtype)
    return (stage, stores[0].buffer, ArgExtreme(dtype, name == "argmax", stage.init)) if dtype in _DTYPES else None


# -- linear offsets ----------------------------------------------------------------------------------------------------


def _linear(load: Any, axes: Sequence[Any], extents: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """Return the flat offset of a load where all axes are 0, and its stride along each."""
    analyzer = tvm.sym.Analyzer()
    for axis, extent in zip(axes, extents):
        analyzer.bind(axis, tvm.ir.Range(tirx.const(0, axis.ty.dtype), tirx.const(extent, axis.ty.dtype)))
    flat: Any = tirx.const(0, "int64")
    for index, size in zip(load.indices, load.source.shape):
        flat = flat * int(size) + index.astype("int64")
    parts = tvm.sym.detect_linear_equation(analyzer.simplify(flat), list(axes))
    if len(parts) != len(axes) + 1 or not all(isinstance(p, tirx.IntImm) for p in parts):
        return None
    *strides, offset = (int(p) for p in parts)
    return offset, tuple(strides)


class _Opened:
    """An expression over axes whose loads have become variables, with where these loads are."""

    def __init__(self, expr: Any, params: Sequence[Any], axes: Sequence[Any], extents: Sequence[int]) -> None:
        self.reads: list[Read] = []
        self.strides: list[dict[Any, int]] = []
        self.names: list[Any] = []
        self.operations = operations_of(expr)
        self.linear = True
        loads: list[Any] = []
        for load in loads_of(expr):
            number = next((k for k, p in enumerate(params) if load.source.same_as(p)), None)
            where = None if number is None else _linear(load, axes, extents)
            if number is None or where is None:
                self.linear = False
                return
            if not any(tvm_ffi.structural_equal(load, other) for other in loads):
                loads.append(load)
                self.names.append(Var(f"read_{len(loads)}", str(load.source.dtype)))
                self.reads.append(Read(number, where[0]))
                self.strides.append(dict(zip(axes, where[1])))
        self.expr = replace_loads(expr, lambda load: next(n for n, o in zip(self.names, loads) if tvm_ffi.structural_equal(load, o)))
        self.linear = len(loads) <= _MOST_READS and not uses(self.expr, axes)

    def put(self, loads: Sequence[Any]) -> Any:
        """Return the expression with these loads."""
        return substitute(self.expr, self.names, loads)


def _assembled(params: list[Any], fn: Any, reduction: Stage, final: Stage, reducer: Reducer, element: Any) -> ReductionOp | None:
    value = _Opened(element, params, (*reduction.axes, *reduction.reduced), (*reduction.extents, *reduction.windows))
    if not value.linear:
        return None
    result = Var("result", str(reduction.out.dtype))
    after = _Opened(result, [], [], [])
    follower = None
    if final is not reduction and not _is_epilogue(final, reduction):
        follower = _follower(final, reduction, params)
        if follower is None:
            return None
    elif final is not reduction:
        opened = replace_loads(final.value, lambda load: result if load.source.same_as(reduction.out) else load)
        # the axes of the reduction and those of what follows differ in axes of extent 1 only
        own = iter([a for a, e in zip(reduction.axes, reduction.extents) if e > 1])
        moved = [next(own) if e > 1 else tirx.const(0, a.ty.dtype) for a, e in zip(final.axes, final.extents)]
        after = _Opened(substitute(opened, final.axes, moved), params, reduction.axes, reduction.extents)
        if not after.linear:
            return None
    strides = [*value.strides, *after.strides]
    spatial = [Axis(e, tuple(s.get(a, 0) for s in strides)) for a, e in zip(reduction.axes, reduction.extents)]
    reduced = [Axis(e, tuple(s.get(a, 0) for s in strides)) for a, e in zip(reduction.reduced, reduction.windows)]
    reduced.sort(key=lambda a: -max((abs(s) for s in a.strides), default=0))
    return ReductionOp(
        tuple((tuple(int(d) for d in p.shape), str(p.dtype)) for p in fn.params),
        len(fn.params) - len(params),
        _merged(spatial),
        _merged(reduced),
        (*value.reads, *after.reads),
        len(value.reads),
        value.put,
        lambda total, loads: substitute(after.expr, [result, *after.names], [total, *loads]),
        reducer,
        value.operations,
        follower,
    )


def _is_epilogue(final: Stage, reduction: Stage) -> bool:
    """Whether a stage has the shape of the reduction, but for dimensions of 1, and reads it at its own index only."""
    extents = [e for e in final.extents if e > 1]
    if extents != [e for e in reduction.extents if e > 1]:
        return False
    row_major = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
    for load in loads_of(final.value):
        if load.source.same_as(reduction.out):
            where = _linear(load, final.axes, final.extents)
            if where is None or where[0] or [s for s, e in zip(where[1], final.extents) if e > 1] != row_major:
                return False
    return True


def _follower(final: Stage, reduction: Stage, params: Sequence[Any]) -> Follower | None:
    opened = _Opened(final.value, [*params, reduction.out], final.axes, final.extents)
    results = [k for k, r in enumerate(opened.reads) if r.buffer == len(params)]
    if not opened.linear or len(results) != 1 or opened.reads[results[0]].offset:
        return None
    at = results[0]
    order = [k for k in range(len(opened.reads)) if k != at]
    axes = [Axis(e, tuple(opened.strides[k].get(a, 0) for k in (*order, at))) for a, e in zip(final.axes, final.extents)]
    names = [opened.names[k] for k in (*order, at)]
    return Follower(
        _merged(axes),
        tuple(opened.reads[k] for k in order),
        lambda result, loads: substitute(opened.expr, names, [*loads, result]),
        opened.operations,
    )


def _merged(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Drop axes of extent 1, and make one of neighbours that walk through memory as one."""
    found: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        before = found[-1] if found else None
        if before is not None and all(s == t * axis.extent for s, t in zip(before.strides, axis.strides)):
            found[-1] = replace(axis, extent=before.extent * axis.extent)
        else:
            found.append(axis)
    return tuple(found)
