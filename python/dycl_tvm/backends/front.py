# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is wanted of a kernel's output, as its function says it, and where the function's stores lie.

Those who shorten a kernel (loops on a CPU, grids on a GPU) ask the same question: is any of what this part writes wanted?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Var

from dycl_tvm.backends.extents import Bounds, Digits, Extent, Limit, Wanted, parts_of, sizes_of

#: Of a function: what is wanted of its one output, as rows of a dimension and, of each that was merged to it (or of itself alone), its
#: size, the place of a size of the call in SIZES, factor and constant; place -1 and factor 0 where no size of the call plays a part.
FRONT = "dycl.front"
#: The sizes that a kernel asks for, in order.
SIZES = "dycl.sizes"


def with_front(fn: Any, wanted: Wanted) -> Any:
    """Return a function that is to be given a front."""
    sizes, shape = sizes_of(wanted), [int(n) for n in fn.params[-1].shape]
    rows = []
    for dim, limit in enumerate(wanted):
        if limit is not None:
            row = [dim]
            for n, extent in parts_of(shape[dim], limit):
                e = Extent.number(n) if extent is None else extent
                row += [n, sizes.index(e.size) if e.factor else -1, e.factor, e.constant]
            rows.append(row)
    return fn.with_attr(FRONT, rows).with_attr(SIZES, sizes) if rows else fn


def _limit_of(row: Sequence[int]) -> Limit:
    """Return the limit that a row of FRONT says, without its dimension."""
    parts = [(row[k], Extent(*row[k + 1 : k + 4])) for k in range(0, len(row), 4)]
    if len(parts) == 1:
        return parts[0][1]
    first, (_, extent) = parts[0][0], parts[0]
    known = None if not extent.factor and extent.constant >= first else extent
    return Digits(tuple(n for n, _ in parts), (known, *(e for _, e in parts[1:])))


def same_front(fn: Any, of: Any) -> Any:
    """Return a function that is to be given the front of another one, if that is to be given one."""
    return fn.with_attr(FRONT, of.attrs[FRONT]).with_attr(SIZES, of.attrs[SIZES]) if has_front(of) else fn


def has_front(fn: Any) -> bool:
    """Whether a function is to be given a front."""
    return bool(fn.attrs) and FRONT in fn.attrs


class Stores:
    """What is wanted where a function of plain loops, with buffers of many dimensions, stores.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        One that is to be given a front.
    out : tvm.tirx.Buffer
        Its output.

    Attributes
    ----------
    wanted : list
        The output and its known views, with what is wanted of each: limits whose sizes are places in SIZES.
    """

    def __init__(self, fn: Any, out: Any) -> None:
        shape = [int(s) for s in out.shape]
        wanted: list[Limit | None] = [None] * len(shape)
        for dim, *row in fn.attrs[FRONT]:
            wanted[int(dim)] = _limit_of([int(n) for n in row])
        self.wanted: list[tuple[Any, Wanted]] = [(out, tuple(wanted))]
        #: A view that is not known has no limit: no size is ever small enough.
        views = found(fn.body, tirx.DeclBuffer)
        self._aliases: list[tuple[Any, Any]] = [(v.buffer, _buffer_of(v.data)) for v in views]
        never_whole = Bounds([(-(1 << 62), 1 << 62)] * len(fn.attrs[SIZES]))
        for view, of in self._aliases:
            if of is not None and of.same_as(out) and view.dtype == out.dtype:
                self.wanted.append((view, never_whole.reshaped(tuple(wanted), shape, [int(s) for s in view.shape])))

    def of(self, buffer: Any) -> Wanted | None:
        """Return what is wanted of the output as a buffer shows it; None for a buffer of which that is not known."""
        return next((w for b, w in self.wanted if b.same_as(buffer)), None)

    def owner(self, buffer: Any) -> Any:
        """Return the buffer whose memory a view shows."""
        for view, of in self._aliases:
            if view.same_as(buffer):
                return self.owner(of) if of is not None else buffer
        return buffer


def end(index: Any, inner: Sequence[tuple[Any, Any, Any]], values: dict[Any, Any], which: str) -> Any:
    """Return the least ("min_value") or the largest ("max_value") that an index can be; None if that cannot be told.

    ``inner`` are variables with their least value and their extent, outer ones first, ``values`` variables and what they stand for.
    """
    index = replaced(index, values)
    if isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and int(index.stride) >= 0:
        index = index.base + (int(index.lanes) - 1) * int(index.stride) if which == "max_value" else index.base
    if found(index, tirx.Ramp):  # several at once, in no order
        return None
    analyzer, variables = tvm.sym.Analyzer(), variables_of(index)
    for var, first, extent in reversed(inner):
        if var in variables:
            # an extent may be a variable of the body too
            trips_of = tvm.sym.IntervalSet(*(replaced(e, values) for e in (first, first + extent - 1)))
            index = getattr(analyzer.int_set(index, {var: trips_of}), which)
            if not isinstance(index, tvm.ir.Expr) or "inf" in str(index) or var in (variables := variables_of(index)):
                return None
    return analyzer.simplify(index)


def replaced(expr: Any, values: dict[Any, Any]) -> Any:
    """Return an expression with what its variables stand for in their places, and what those of that do."""
    for _ in range(len(values)):
        if not any(v in values for v in found(expr, Var)):
            break
        expr = tvm_ffi.structural_map(expr, (Var, lambda v: values.get(v, v)))
    return expr


def trips(loops: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Return the variables of loops with their least value and their extent."""
    return [(loop.loop_var, loop.min, loop.extent) for loop in loops]


def found(stmt: Any, kind: Any) -> list[Any]:
    """Return the nodes of a kind, outer ones first."""
    nodes: list[Any] = []
    tvm_ffi.structural_walk(stmt, [(kind, nodes.append)], order="pre")
    return nodes


def variables_of(expr: Any) -> set[Any]:
    """Return the variables that an expression depends on."""
    return set(found(expr, Var))


def mentions(expr: Any, variable: Any) -> bool:
    """Whether an expression depends on a variable."""
    return variable in variables_of(expr)


def is_one_of(buffer: Any, buffers: Sequence[Any]) -> bool:
    """Whether a buffer is among others."""
    return any(buffer.same_as(b) for b in buffers)


def _buffer_of(data: Any) -> Any:
    """Return the buffer whose memory an expression is, None if it is another one."""
    return data.args[0] if isinstance(data, tvm.ir.Call) and getattr(data.op, "name", "") == "tirx.buffer_data" else None
