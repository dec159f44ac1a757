# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions of 8-bit integers: the loops of bf16_conv.py, with quads in the place of pairs.

A piece (a band of output positions of an image) copies the input that it reaches, with the zeros of the border, so all tiles
of outputs (blocks of channels x rows x columns, in registers) are alike. Sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import Problem, cut, narrow_groups, problem, tiles
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.int8 import QUAD, allowed, cost, cycles_per_second, dot, int8_func, takes
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.padded_copy import CopyCosts, TiledCopy, piece_choices
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor

#: Sums that must be under way to hide the latency of an instruction.
_IN_FLIGHT = 8
#: Cycles of a load, where there are more loads than sums: broadcasts of quads.
_LOAD = 1.0
#: Instructions in the body of the innermost loop.
_BODY = 200
#: Cycles to copy the channels of a block.
_COPYING = 2.0
_MOST_PLANS = 12


@dataclass(frozen=True)
class Int8ConvPlan(Plan):
    """Blocks of outputs, rows and columns of a tile; parts of the outputs and of the positions."""

    blocks: int
    rows: int
    columns: int
    output_parts: int
    parts: int


class _Int8Conv:
    """The family ``int8`` of convolutions."""

    name = "int8"

    def plans(self, work: Conv2D, machine: Machine) -> list[Int8ConvPlan]:
        """Return tile choices, best estimate first; input and output are packed, and groups are whole blocks of channels."""
        if not allowed(machine) or not work.macs or not takes(work.dtypes) or {work.x.block, work.y.block} != {machine.lanes}:
            return []
        if narrow_groups(work):
            return []
        p = problem(work)
        found = [plan for tile in _tiles(p, machine) for plan in _cuts(work, p, tile, machine)[:2]]
        return sorted(found, key=lambda plan: (plan.seconds, plan.params))[:_MOST_PLANS]

    def packed(self, work: Conv2D, plan: Int8ConvPlan, machine: Machine) -> Tensor:
        """Vectors of quads in the order in which the kernel reads them."""
        p = problem(work)
        return Tensor((p.groups * p.outputs * _steps(p, machine.lanes), QUAD * machine.lanes), "int8")

    def pack(self, work: Conv2D, plan: Int8ConvPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), quads): tile of outputs by tile, block of inputs, tap, quad, one
        vector for each block of outputs."""
        p, (kh, kw), lanes = problem(work), work.kernel, machine.lanes
        count, steps = _quads(p, lanes), _steps(p, lanes)

        def body(weights: Any, packed: Any) -> None:
            for run in cut(p.outputs, plan.blocks):
                with T.serial(0, p.groups) as g, T.serial(0, run.last - run.first) as t, T.serial(0, p.inputs) as c:
                    with T.serial(0, kh) as i, T.serial(0, kw) as k, T.serial(0, count) as e:
                        first = g * p.outputs + run.start + t * run.size
                        at = first * steps + (((c * kh + i) * kw + k) * count + e) * run.size
                        with T.serial(0, run.size) as j, T.serial(0, lanes) as lane, T.serial(0, QUAD) as q:
                            out, channel = (first + j) * lanes + lane, c * lanes + QUAD * e + q
                            known = tirx.all(out < work.y.shape[1], channel < p.channels)
                            safe = tirx.min(out, work.y.shape[1] - 1), tirx.min(channel, p.channels - 1)
                            value = tirx.if_then_else(known, weights[safe[0], safe[1], i, k], T.int8(0))
                            store(packed, [at + j, lane * QUAD + q], value)

        shape = self.packed(work, plan, machine).shape
        return prim_func([("weights", work.weight_shape, "int8"), ("packed", shape, "int8")], body)

    def kernel(self, work: Conv2D, plan: Int8ConvPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, quads, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, plan, machine, epilogue, x, weights, rest[:-1], rest[-1]).emit()

        return int8_func(buffers, body, machine)


FAMILY = _Int8Conv()


def _quads(p: Problem, lanes: int) -> int:
    """Return the quads of a block of inputs that are computed with."""
    return lanes // QUAD if p.inputs > 1 else -(-p.channels // QUAD)


def _steps(p: Problem, lanes: int) -> int:
    """Return the quads that an output sums."""
    return p.inputs * p.rows.kernel * p.columns.kernel * _quads(p, lanes)


class _Emitter(TiledCopy):
    """Writes one kernel."""

    def __init__(
        self, work: Conv2D, plan: Int8ConvPlan, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any
    ) -> None:
        super().__init__(work, machine, epilogue, x, weights, operands, y, plan.blocks)
        self.plan = plan

    def emit(self) -> None:
        p, plan = self.p, self.plan
        self.lanes = self.machine.lanes
        self.lane = T.ramp(0, 1, self.lanes)
        parts, out_parts = plan.parts, plan.output_parts
        with parallel(p.images * out_parts * parts, self.machine, _work_seconds(p, self.machine)) as piece:
            out_part = self.take(piece, parts, plan.rows, plan.columns)
            self.copy = T.alloc_buffer((p.inputs, self.rows.extent, self.columns.extent, self.lanes // QUAD), "int32")
            # one epilogue for all sums of a tile: it is long, and each copy of it takes the compiler time
            most = max(r.size for r in cut(p.rows.out, plan.rows)), max(c.size for c in cut(p.columns.out, plan.columns))
            self.sums = T.alloc_buffer((max(o.size for o in cut(p.outputs, plan.blocks)), *most, self.lanes), "int32")
            self.groups(out_part, out_parts, tiles(cut(p.outputs, plan.blocks)))

    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """Emit the store of a block of channels at a place of the copy; by default of zeros."""
        count = self.lanes // QUAD
        words = T.broadcast(T.int32(0), count) if values is None else T.reinterpret(f"int32x{count}", values)
        store(self.copy, [c, i, j, T.ramp(0, 1, count)], words)

    def tile(self, block: Any, blocks: int, height: int, row: Any, width: int, column: Any) -> None:
        """Emit one tile of outputs."""
        p, lane, lanes = self.p, self.lane, self.lanes
        count, steps = _quads(p, lanes), _steps(p, lanes)
        sums = {(a, b, j): T.alloc_buffer((lanes,), "int32") for a in range(height) for b in range(width) for j in range(blocks)}
        for acc in sums.values():
            store(acc, [lane], T.broadcast(T.int32(0), lanes))
        unroll = next(u for u in range(count, 0, -1) if count % u == 0 and (u == 1 or u * len(sums) <= _BODY))
        top, left = (row - self.rows.first) * self.rows.step, (column - self.columns.first) * self.columns.step
        with T.serial(0, p.inputs) as c, T.serial(0, p.rows.kernel) as i, T.serial(0, p.columns.kernel) as k:
            with T.serial(0, count // unroll) as outer, T.unroll(0, unroll) as inner:
                e = outer * unroll + inner
                step = ((c * p.rows.kernel + i) * p.columns.kernel + k) * count + e
                first = block * steps + step * blocks
                for a in range(height):
                    for b in range(width):
                        at = top + a * self.rows.step + i * p.rows.dilation, left + b * self.columns.step + k * p.columns.dilation
                        quad = self.copy[c, at[0], at[1], e]
                        for j in range(blocks):
                            acc = sums[a, b, j]
                            store(acc, [lane], dot(acc[lane], quad, self.weights[first + j, T.ramp(0, 1, QUAD * lanes)], lanes))
        for (a, b, j), acc in sums.items():
            store(self.sums, [j, a, b, lane], acc[lane])
        with T.serial(0, blocks) as j, T.serial(0, height) as a, T.serial(0, width) as b, T.vectorized(0, lanes) as v:
            image, y_row, y_column = p.place(self.n, row + a, column + b)
            index = [image, block + j, y_row, y_column]
            store(self.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, self.sums[j, a, b, v], index, v))


# ---- choice of tiles -------------------------------------------------------------------------------------------------

_Tile = tuple[int, int, int]


def _work_seconds(p: Problem, machine: Machine) -> float:
    """Return about how long one core takes: whether threads are worth it."""
    products = p.groups * p.images * p.outputs * p.rows.out * p.columns.out * _steps(p, machine.lanes)
    return products * cost(machine) / cycles_per_second(machine)


def _tiles(p: Problem, machine: Machine) -> Iterator[_Tile]:
    """Yield (blocks, rows, columns) that fit the registers, next to a vector of weights a block and one quad."""
    spare = 1 if machine.vnni else 4
    for blocks in range(1, min(p.outputs, 8) + 1):
        if blocks > 1 and -(-p.outputs // blocks) == -(-p.outputs // (blocks - 1)):
            continue
        points = (machine.registers - spare - blocks * (1 if machine.vnni else 2)) // blocks
        if points < 1:
            break
        for rows in range(1, min(p.rows.out, 4, points) + 1):
            if rows > 1 and p.columns.out > 8:
                break  # several rows are for images narrower than a tile
            counts = {-(-p.columns.out // c) for c in range(max(1, points // rows // 2), points // rows + 1)}
            for columns in sorted({-(-p.columns.out // n) for n in counts}):
                yield blocks, rows, columns


def _cycles(p: Problem, t: _Tile, machine: Machine) -> float:
    """Return the cycles of all tiles on one core."""
    total, steps, each = 0.0, _steps(p, machine.lanes), cost(machine)
    for out in cut(p.outputs, t[0]):
        for row in cut(p.rows.out, t[1]):
            for column in cut(p.columns.out, t[2]):
                number = (out.last - out.first) * (row.last - row.first) * (column.last - column.first)
                points = row.size * column.size
                sums = points * out.size
                total += number * (steps * max(1.06 * each * sums, _LOAD * (points + out.size), _IN_FLIGHT) + 8 * sums + 20)
    return total * p.groups * p.images


def _cuts(work: Conv2D, p: Problem, t: _Tile, machine: Machine) -> list[Int8ConvPlan]:
    """Return plans with this tile for different pieces, best first."""
    lanes, seconds = machine.lanes, _work_seconds(p, machine)
    weights = 4.0 * p.groups * p.outputs * _steps(p, lanes) * lanes
    costs = CopyCosts(cycles_per_second(machine), _cycles(p, t, machine), _COPYING, lanes, weights, seconds <= 3 * machine.launch)
    plans = [Int8ConvPlan(s, *t, *parts) for s, *parts in piece_choices(work, t, costs, machine)]
    return sorted(plans, key=lambda plan: (plan.seconds, plan.params))
