# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Grids that follow from sizes of the call: which blocks of a launch write nothing that is wanted.

A kernel is scheduled for the largest size, and its device code is that of a static one. Along each axis of a launch's grid the least
index that a block can store at grows with its number; where that index is behind what is wanted the block and all after it need not be
launched. The number of blocks is found by turning the least index around, step by step; each step rounds up. A block that reaches over
what is wanted computes its whole tile, which lies within the buffer. A launch that writes anything but the output has its whole grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from dycl_tvm.backends.extents import Extent, outer
from dycl_tvm.backends.front import FRONT, SIZES, Stores, end, found, mentions

#: The axes of a grid.
AXES = {"x": 0, "y": 1, "z": 2}
#: Of a function: for each of its launches rows (axis, blocks at most, size, multiply, add, divide, multiply, add, divide, ...).
_GRIDS = "dycl.grids"
#: What hands a part of a buffer to an instruction or a function.
_RAW = ("tirx.address_of", "tirx.buffer_data", "tirx.tvm_access_ptr")

Step = tuple[int, int, int]
#: Axis, blocks at most, size, and the steps from the size to the number of blocks.
Grid = tuple[int, int, int, tuple[Step, ...]]


def with_grids(fn: Any) -> Any:
    """Return a function of plain loops with the grids of its launches, which :func:`grids_of` reads."""
    stores = Stores(fn, fn.params[-1])
    sizes = [int(k) for k in fn.attrs[SIZES]]
    rows = [
        [[axis, most, sizes[size], *(n for step in steps for n in step)] for axis, most, size, steps in _of_launch(fn, launch, stores)]
        for launch in _launches(fn.body)
    ]
    return fn.without_attr(FRONT).without_attr(SIZES).with_attr(_GRIDS, rows)


def grids_of(fn: Any) -> list[list[Grid]]:
    """Return for each launch of a function the axes along which sizes of the call decide how many blocks there are."""
    if not fn.attrs or _GRIDS not in fn.attrs:
        return []
    launches: list[list[Grid]] = []
    for launch in fn.attrs[_GRIDS]:
        launches.append([])
        for row in launch:
            axis, most, size, *flat = (int(n) for n in row)
            launches[-1].append((axis, most, size, tuple((flat[k], flat[k + 1], flat[k + 2]) for k in range(0, len(flat), 3))))
    return launches


def _launches(body: Any) -> list[Any]:
    """Return the outermost statements that have threads, in order."""
    if isinstance(body, tirx.AttrStmt):
        return [body] if body.attr_key == "thread_extent" else _launches(body.body)
    if isinstance(body, tirx.SeqStmt):
        return [launch for stmt in body.seq for launch in _launches(stmt)]
    if isinstance(body, tirx.IfThenElse):
        return [*_launches(body.then_case), *([] if body.else_case is None else _launches(body.else_case))]
    return []


def _of_launch(fn: Any, launch: Any, stores: Stores) -> list[Grid]:
    threads = [(t.node.var, str(t.node.thread_tag), t.value) for t in found(launch, tirx.AttrStmt) if t.attr_key == "thread_extent"]
    written = _written(fn, launch, stores)
    if not written or not all(isinstance(extent, tirx.IntImm) for *_, extent in threads):
        return []
    loops = [(v, tirx.const(0, v.ty.dtype), e.astype(v.ty.dtype)) for v, _, e in threads]
    loops += [(f.loop_var, f.min, f.extent) for f in found(launch, tirx.For)]
    values = {b.var: b.value for b in found(launch, tirx.Bind)}
    grids = []
    for var, tag, extent in threads:
        kind, _, axis = tag.partition(".")
        if kind == "blockIdx" and sum(t == tag for _, t, _ in threads) == 1:
            others = [loop for loop in loops if not loop[0].same_as(var)]
            steps = _blocks(written, var, int(extent), others, values)
            if steps is not None:
                grids.append((AXES[axis], int(extent), *steps))
    return grids


def _written(fn: Any, launch: Any, stores: Stores) -> list[tuple[Any, list[Extent | None]]]:
    """Return the stores to the output with what is wanted there; none if anything else is written that others can see."""
    handed = [c for s in found(launch, tirx.Evaluate) for c in found(s, tvm.ir.Call) if getattr(c.op, "name", "") in _RAW]
    inputs = list(fn.params[:-1])
    for call in handed:
        buffer = _handed_buffer(call)
        owner = None if buffer is None else stores.owner(buffer)
        if owner is None or (_is_global(owner) and not any(owner.same_as(p) for p in inputs)):
            return []
    written = []
    for store in found(launch, tirx.BufferStore):
        if not _is_global(store.buffer):
            continue
        wanted = stores.of(store.buffer)
        if wanted is None:
            return []
        written.append((store, [outer(limit) for limit in wanted]))
    return written


def _handed_buffer(call: Any) -> Any:
    first = call.args[0]
    return first if isinstance(first, tirx.Buffer) else getattr(first, "source", None)


def _is_global(buffer: Any) -> bool:
    return str(buffer.scope()) in ("", "global")


def _blocks(
    written: Sequence[tuple[Any, Sequence[Extent | None]]], var: Any, most: int, others: Sequence[Any], values: dict[Any, Any]
) -> tuple[int, tuple[Step, ...]] | None:
    """Return the size, and the steps from it to the number of blocks along an axis, of the first dimension that decides it."""
    for dim, extent in enumerate(written[0][1]):
        if extent is None or not extent.factor or any(dim >= len(wanted) or wanted[dim] != extent for _, wanted in written):
            continue
        ways = [_around(end(store.indices[dim], others, values, "min_value"), var, most) for store, _ in written]
        if ways[0] is not None and all(way == ways[0] for way in ways):
            return extent.size, _joined([(extent.factor, extent.constant, 1), *ways[0]])
    return None


def _around(index: Any, var: Any, most: int) -> list[Step] | None:
    """Return the steps from an index to the first block that stores at none below it; None if the index does not grow with the block."""
    if index is None:
        return None
    if isinstance(index, tirx.Var) and index.same_as(var):
        return []
    if isinstance(index, tirx.Cast) and "int" in str(index.ty.dtype):
        return _around(index.value, var, most)
    if isinstance(index, tirx.Mul) and isinstance(index.b, tirx.IntImm) and int(index.b) > 0:
        return _then((1, 0, int(index.b)), _around(index.a, var, most))
    if isinstance(index, tirx.FloorDiv) and isinstance(index.b, tirx.IntImm) and int(index.b) > 0:
        return _then((int(index.b), 0, 1), _around(index.a, var, most))
    if isinstance(index, tirx.Add):
        for kept, left_out in ((index.a, index.b), (index.b, index.a)):
            # what is left out is never less than its least
            bound = _least_number(left_out, var, most)
            steps = _around(kept, var, most) if mentions(kept, var) and bound is not None else None
            if steps is not None:
                return _then((1, -bound, 1), steps)  # type: ignore[operator]  # it is a number
    return None


def _least_number(expr: Any, var: Any, most: int) -> int | None:
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(var, tvm.ir.Range(tirx.const(0, var.ty.dtype), tirx.const(most, var.ty.dtype)))
    bound = int(analyzer.const_int_bound(expr).min_value)
    return bound if abs(bound) < 1 << 40 else None


def _then(step: Step, steps: list[Step] | None) -> list[Step] | None:
    return None if steps is None else [step, *steps]


def _joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the same steps, fewer of them: nothing is rounded where nothing is divided, nor twice where a quotient is divided again."""
    joined: list[Step] = []
    for step in steps:
        multiply, add, divide = step
        if joined and joined[-1][2] == 1:
            before = joined.pop()
            joined.append((before[0] * multiply, before[1] * multiply + add, divide))
        elif joined and (multiply, add) == (1, 0):
            before = joined.pop()
            joined.append((before[0], before[1], before[2] * divide))
        else:
            joined.append(step)
    return tuple(joined)
