# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recognising operators whose output channel c depends on input channel c only: pooling, padding, resizing, slices, element-wise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var

from dycl_tvm.backends.tir_cpu.reading.ranges import branches, conjunction, is_conditional
from dycl_tvm.backends.tir_cpu.reading.stages import (
    Stage,
    deciding_loads_of,
    inlined,
    loads_of,
    read_stages,
    replace_loads,
    substitute,
    tensor_of,
    uses,
)
from dycl_tvm.backends.tir_cpu.words.workload import PACKED_DTYPES, Tensor


@dataclass(frozen=True, eq=False)
class Reduction:
    """The reduction of ``element`` over ``axes`` by an associative ``combine``.

    Attributes
    ----------
    axes : tuple of Var
    extents : tuple of int
    init : PrimExpr
        The identity of the reduction.
    element : PrimExpr
        What is reduced, where ``guard`` holds; elsewhere it is the identity.
    guard : tuple of PrimExpr
        Conditions that must all hold.
    total, item : Var
        The free variables of ``combine``.
    combine : PrimExpr
    """

    axes: tuple[Any, ...]
    extents: tuple[int, ...]
    init: Any
    element: Any
    guard: tuple[Any, ...]
    total: Any
    item: Any
    combine: Any

    def combined(self, total: Any, item: Any) -> Any:
        """Return the combination of two expressions."""
        return substitute(self.combine, [self.total, self.item], [total, item])


@dataclass(frozen=True, eq=False)
class ChannelwiseOp:
    """``y[n, c, ...] = value``, where every tensor that has channels is read at c.

    Attributes
    ----------
    params : tuple of Var
        The input buffers that ``value`` reads.
    inputs, y : Tensor
        Their plain types.
    channel_dims : tuple of (int or None)
        Which dimension of each input is the channel; None if it has none.
    axes, extents : tuple
        Batch, channel and spatial axes of the output.
    value : PrimExpr
        May read ``result``, the variable that stands for the reduction.
    reduction : Reduction or None
    """

    params: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    y: Tensor
    channel_dims: tuple[int | None, ...]
    axes: tuple[Any, ...]
    extents: tuple[int, ...]
    value: Any
    result: Any
    reduction: Reduction | None

    @property
    def batch_rows(self) -> list[tuple[int, ...]]:
        """Of each input, whether row r of the batch depends on its row r alone, as ``loops.ROWS`` has it.

        What decides an address or divides a whole number has no rows: all that is read of it must have been computed.
        """
        exprs = [self.value, *(() if self.reduction is None else (self.reduction.element, *self.reduction.guard))]
        loads, deciding = ([load for e in exprs for load in of(e)] for of in (loads_of, deciding_loads_of))
        firsts = [[load.indices[0] for load in loads if load.indices and load.source.same_as(p)] for p in self.params]
        whole = [any(load.source.same_as(p) for load in deciding) for p in self.params]
        return [(0,) if found and not w and all(i.same_as(self.axes[0]) for i in found) else () for found, w in zip(firsts, whole)]

    @property
    def reach(self) -> list[list[tuple[int, int, int]]]:
        """Of each input, of each of its dimensions, how far back a row of the output reaches, as ``loops.REACH`` has it."""
        exprs = [self.value, *(() if self.reduction is None else (self.reduction.element, *self.reduction.guard))]
        loads, deciding = ([load for e in exprs for load in of(e)] for of in (loads_of, deciding_loads_of))
        found = []
        for p, tensor in zip(self.params, self.inputs):
            own = [load for load in loads if load.source.same_as(p)]
            known = own and not any(load.source.same_as(p) for load in deciding)
            found.append([self._reach([load.indices[d] for load in own]) if known else (-1, 0, 0) for d in range(len(tensor.shape))])
        return found

    @property
    def choosing(self) -> list[list[int]]:
        """Of each input, the inputs of truth values that choose it, as ``loops.CHOOSING`` has it."""
        found: list[list[int] | None] = [None for _ in self.params]

        def visit(expr: Any, masks: list[int]) -> None:
            if isinstance(expr, tirx.Select) or is_conditional(expr):
                condition, then, orelse = branches(expr)
                visit(condition, masks)
                visit(then, [*masks, *(k for k in map(self._truth, conjunction(condition)) if k is not None)])
                visit(orelse, masks)
                return
            for load in loads_of(expr):
                k = next((k for k, p in enumerate(self.params) if load.source.same_as(p)), None)
                if k is not None:
                    known = found[k]
                    found[k] = masks if known is None else [m for m in known if m in masks]

        for expr in (self.value, *(() if self.reduction is None else (self.reduction.element, *self.reduction.guard))):
            visit(expr, [])
        return [masks or [] for masks in found]

    @property
    def masking(self) -> tuple[int, ...]:
        """If this is a choice and nothing else, its inputs as ``loops.MASKING`` has them."""
        if self.reduction is not None or not (isinstance(self.value, tirx.Select) or is_conditional(self.value)):
            return ()
        condition, then, orelse = branches(self.value)
        if not (isinstance(then, TensorLoad) and isinstance(orelse, TensorLoad)):
            return ()
        here = len(then.indices) == len(self.axes) and all(i.same_as(a) for i, a in zip(then.indices, self.axes))
        numbers = [next((k for k, p in enumerate(self.params) if load.source.same_as(p)), None) for load in (then, orelse)]
        found = [self._truth(condition), *numbers]
        if not here or any(k is None for k in found) or math.prod(self.inputs[found[2] or 0].shape) != 1:
            return ()
        return tuple(k for k in found if k is not None)

    def _truth(self, expr: Any) -> int | None:
        """Return which input a condition is, if it is read at the place of the output, or is of one element along a dimension."""
        if isinstance(expr, tirx.LT) and isinstance(expr.a, tirx.IntImm) and not int(expr.a) and isinstance(expr.b, tirx.Cast):
            expr = expr.b.value  # as TVM asks for a truth value
        if not isinstance(expr, TensorLoad) or str(expr.ty.dtype) != "bool" or len(expr.indices) != len(self.axes):
            return None
        here = all(i.same_as(a) or (isinstance(i, tirx.IntImm) and not int(i)) for i, a in zip(expr.indices, self.axes))
        return next((k for k, p in enumerate(self.params) if here and expr.source.same_as(p)), None)

    def _reach(self, indices: Sequence[Any]) -> tuple[int, int, int]:
        windows = [] if self.reduction is None else list(zip(self.reduction.axes, self.reduction.extents))
        variables = [*self.axes, *(axis for axis, _ in windows)]
        found: list[tuple[int, int, int]] = []
        for index in indices:
            if isinstance(index, TensorLoad) and len(index.indices) == 1:
                axis = next((d for d, a in enumerate(self.axes) if index.indices[0].same_as(a)), None)
                table = next((k for k, p in enumerate(self.params) if index.source.same_as(p)), None)
                if axis is None or table is None:
                    return -1, 0, 0
                found.append((axis, 0, table))
                continue
            parts = tvm.sym.detect_linear_equation(index, variables)
            if len(parts) != len(variables) + 1 or not all(isinstance(n, tirx.IntImm) and int(n) >= 0 for n in parts[:-1]):
                return -1, 0, 0
            *factors, offset = parts
            axes = [d for d in range(len(self.axes)) if int(factors[d])]
            if len(axes) != 1 or axes == [1] or not isinstance(offset, tirx.IntImm):
                return -1, 0, 0
            last = int(offset) + sum(int(n) * (extent - 1) for n, (_, extent) in zip(factors[len(self.axes) :], windows))
            found.append((axes[0], int(factors[axes[0]]), last))
        same = {(d, stride) for d, stride, _ in found}
        tables = {table for _, stride, table in found if not stride}
        return max(found) if len(same) == 1 and len(tables) < 2 else (-1, 0, 0)


def channelwise(fn: tirx.PrimFunc) -> ChannelwiseOp | None:
    """Return what an unscheduled function computes, channel by channel, or None if it does not.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Inputs first, the output (N, C, *spatial) last, C greater than 1, float32. At least one input is of the form (N, C, *spatial)
        with one or more spatial dimensions; at most one reduction, over axes other than the channels.
    """
    stages = read_stages(fn)
    stages = None if stages is None else inlined(stages)
    if not stages or len(stages) > 2 or (len(stages) == 2 and (stages[1].reduced or not stages[0].reduced)):
        return None
    *params, last = fn.params
    final = stages[-1]
    if not final.out.same_as(last) or len(final.axes) < 2 or final.extents[1] < 2 or str(last.dtype) not in PACKED_DTYPES:
        return None
    result = Var("result", str(stages[0].out.dtype))
    reduction, value = None, final.value
    if stages[0].reduced:
        reduction = read_reduction(stages[0], final)
        if len(stages) == 1:
            value = result
        elif stages[0].extents != final.extents or any(not _is_own(v, stages[0], final) for v in loads_of(value)):
            return None
        else:
            value = replace_loads(value, lambda load: result if load.source.same_as(stages[0].out) else load)
        if reduction is None:
            return None
    parts = [value, *([] if reduction is None else [reduction.element, *reduction.guard])]
    dims = _channel_dims(parts, params, final.axes[1], final.extents[1])
    if dims is None:
        return None
    inputs = tuple(tensor_of(p) for p in params)
    if not any(len(t.shape) >= 3 and d == 1 for t, d in zip(inputs, dims)):
        return None
    return ChannelwiseOp(tuple(params), inputs, tensor_of(last), dims, final.axes, final.extents, value, result, reduction)


def _is_own(load: Any, stage: Stage, final: Stage) -> bool:
    """Whether a load of a stage's result is at the reader's own index (loads of others are)."""
    return not load.source.same_as(stage.out) or all(i.same_as(a) for i, a in zip(load.indices, final.axes))


def read_reduction(stage: Stage, final: Stage) -> Reduction | None:
    """Return the reduction of a stage, at the axes of ``final``, or None if it is none of one tensor's elements."""
    total, item = Var("total", str(stage.out.dtype)), Var("item", str(stage.out.dtype))
    items: list[Any] = []

    def is_total(e: Any) -> bool:
        return isinstance(e, TensorLoad) and e.source.same_as(stage.out)

    def walk(e: Any) -> Any | None:
        if is_total(e):
            return total if all(i.same_as(a) for i, a in zip(e.indices, stage.axes)) else None
        if not any(is_total(load) for load in loads_of(e)):
            if isinstance(e, (tirx.IntImm, tirx.FloatImm)):
                return e
            items.append(e)
            return item
        if isinstance(e, tirx.Select):
            c, t, f = (walk(p) for p in branches(e))
            return None if c is None or t is None or f is None else tirx.Select(c, t, f)
        if hasattr(e, "a") and hasattr(e, "b"):
            a, b = walk(e.a), walk(e.b)
            return None if a is None or b is None else type(e)(a, b)
        return None

    combine = walk(stage.value)
    if combine is None or not items or any(not tvm_ffi.structural_equal(items[0], e) for e in items[1:]):
        return None
    if str(items[0].ty.dtype) != str(stage.out.dtype):
        return None
    element, guard = items[0], []
    if is_conditional(element):
        condition, inside, outside = branches(element)
        if tvm_ffi.structural_equal(outside, stage.init):
            element, guard = inside, conjunction(condition)

    def moved(e: Any) -> Any:
        return substitute(e, stage.axes, final.axes)

    return Reduction(stage.reduced, stage.windows, stage.init, moved(element), tuple(moved(g) for g in guard), total, item, combine)


def _channel_dims(parts: Sequence[Any], params: Sequence[Any], channel: Any, channels: int) -> tuple[int | None, ...] | None:
    """Return the channel dimension of each input; None if something depends on channels in another way."""
    found: dict[int, int | None] = {}
    for load in (v for part in parts for v in loads_of(part)):
        number = next((k for k, p in enumerate(params) if load.source.same_as(p)), None)
        at = [k for k, i in enumerate(load.indices) if i.same_as(channel)]
        if number is None or len(at) > 1 or any(uses(i, [channel]) for k, i in enumerate(load.indices) if k not in at):
            return None
        dim = at[0] if at else None
        if found.setdefault(number, dim) != dim or (dim is not None and int(load.source.shape[dim]) != channels):
            return None
    hidden = tirx.const(0, "float32")
    for part in parts:
        if uses(replace_loads(part, lambda load: hidden), [channel]):
            return None
    dims = tuple(found.get(k) for k in range(len(params)))
    return dims if all(_is_layout(tensor_of(p), d) for p, d in zip(params, dims)) else None


def _is_layout(tensor: Tensor, dim: int | None) -> bool:
    """Whether an input's channels, if it has any, are where packed layouts have them."""
    if len(tensor.shape) >= 3 and tensor.shape[1] > 1:
        return dim == 1 and tensor.dtype in ("float32", "uint8")
    return dim is None or dim <= 1
