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

from dycl_tvm.backends.tir_cpu.channelwise_op import read_reduction
from dycl_tvm.backends.tir_cpu.expression import operations_of
from dycl_tvm.backends.tir_cpu.families.reducers import ArgExtreme, Extreme, Fold, Reducer
from dycl_tvm.backends.tir_cpu.stages import Stage, inlined, loads_of, read_nests, read_stage, replace_loads, substitute, uses

#: The annotation of a block that computes pairs of an index and a value, ``argmax`` or ``argmin``: the index of the first NaN or else of
#: the first extreme element along the only reduction axis, and that element.
REDUCER = "dycl.reducer"

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
    outputs = 1 if pair is None else 2
    *params, out = fn.params if pair is None else fn.params[:-1]
    if not final.out.same_as(fn.params[-1]) or (pair is not None and not pair[1].same_as(out)):
        return None
    space = math.prod(reduction.extents) * math.prod(reduction.windows)
    repeated = [s for s in stages if not s.reduced and s is not stages[-1] and math.prod(s.extents) < space]
    if any(_before(s, reduction, stages) and not isinstance(s.value, TensorLoad) for s in repeated) or space >= 2**31:
        return None  # what is broadcast would be computed many times
    reducer, element = _reducer(reduction) if pair is None else (pair[2], reduction.value)
    if reducer is None or any(d not in (*_DTYPES, "bool") for d in (str(p.dtype) for p in fn.params)):
        return None
    return _assembled(list(params), fn, reduction, final, reducer, element, outputs)


def _before(stage: Stage, reduction: Stage, stages: Sequence[Stage]) -> bool:
    return [s.out.same_as(stage.out) for s in stages].index(True) < [s.out.same_as(reduction.out) for s in stages].index(True)


def _reducer(stage: Stage) -> tuple[Reducer | None, Any]:
    """Return the reducer of a stage and what it reduces."""
    found = read_reduction(stage, stage)
    dtype = str(stage.out.dtype)
    if found is None or found.guard or dtype not in _DTYPES:
        return None, None
    if "float" in dtype and not isinstance(found.combine, (tirx.Add, tirx.Mul)):
        extreme = next((Extreme(dtype, m) for m in (True, False) if tvm_ffi.structural_equal(found.combine, _extreme(found, m))), None)
        return extreme, found.element
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
    name = "" if block is None else str(block.annotations.get(REDUCER, ""))
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


def _assembled(
    params: list[Any], fn: Any, reduction: Stage, final: Stage, reducer: Reducer, element: Any, outputs: int
) -> ReductionOp | None:
    axes, extents = (*reduction.axes, *reduction.reduced), (*reduction.extents, *reduction.windows)
    names, reads, strides = [], [], []
    rest = [(a, e) for a, e in zip(final.axes, final.extents) if e > 1]
    if [e for _, e in rest] != [e for e in reduction.extents if e > 1]:
        return None

    def named(expr: Any, axes: Sequence[Any], extents: Sequence[int]) -> Any | None:
        """Replace loads by variables."""
        own: list[Any] = []
        for load in loads_of(expr):
            number = next((k for k, p in enumerate(params) if load.source.same_as(p)), None)
            where = None if number is None else _linear(load, axes, extents)
            if number is None or where is None:
                return None
            if any(tvm_ffi.structural_equal(load, o) for o, _ in own):
                continue
            name = Var(f"read_{len(names)}", str(load.source.dtype))
            own.append((load, name))
            names.append(name)
            reads.append(Read(number, where[0]))
            strides.append(dict(zip(axes, where[1])))
        result = replace_loads(expr, lambda load: next(n for o, n in own if tvm_ffi.structural_equal(load, o)))
        return None if uses(result, axes) else result

    value = named(element, axes, extents)
    if value is None:
        return None
    count = len(reads)
    result = Var("result", str(reduction.out.dtype))
    after: Any = result
    if final is not reduction:
        row_major = [math.prod(e for _, e in rest[k + 1 :]) for k in range(len(rest))]
        for load in loads_of(final.value):
            if load.source.same_as(reduction.out):
                where = _linear(load, final.axes, final.extents)
                if where is None or where[0] or [s for s, e in zip(where[1], final.extents) if e > 1] != row_major:
                    return None
        opened = replace_loads(final.value, lambda load: result if load.source.same_as(reduction.out) else load)
        # the axes of the reduction and those of what follows differ in axes of extent 1 only
        same = dict(zip((a for a, _ in rest), (a for a, e in zip(reduction.axes, reduction.extents) if e > 1)))
        zeros = [tirx.const(0, a.ty.dtype) if a not in same else same[a] for a in final.axes]
        after = named(substitute(opened, final.axes, zeros), reduction.axes, reduction.extents)
        if after is None:
            return None
    if len(reads) > 12:
        return None
    spatial = [Axis(e, tuple(s.get(a, 0) for s in strides)) for a, e in zip(reduction.axes, reduction.extents)]
    reduced = [Axis(e, tuple(s.get(a, 0) for s in strides)) for a, e in zip(reduction.reduced, reduction.windows)]
    reduced.sort(key=lambda a: -max((abs(s) for s in a.strides), default=0))

    def at_end(value: Any, loads: Sequence[Any]) -> Any:
        return substitute(after, [result, *names[count:]], [value, *loads])

    return ReductionOp(
        tuple((tuple(int(d) for d in p.shape), str(p.dtype)) for p in fn.params),
        outputs,
        _merged(spatial),
        _merged(reduced),
        tuple(reads),
        count,
        lambda loads: substitute(value, names[:count], loads),
        at_end,
        reducer,
        operations_of(value),
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
