# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions in bfloat16, as products without a matrix of patches.

A piece rounds the input that it reaches to a padded copy of bfloat16 pairs (:mod:`padded_copy`), of which all tiles of outputs (blocks
of channels x rows x columns, in registers) read.
Error: see :mod:`bf16`; tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, ROUNDED, bf16_func, cycles_per_second, dot, has_instructions, pairs, word
from dycl_tvm.backends.tir_cpu.words.convolution import Problem, cut, narrow_groups, problem, tiles
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.padded_copy import CopyCosts, TiledCopy, piece_choices
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor

#: Sums that must be under way to hide the latency of an instruction.
_IN_FLIGHT = 7
#: Cycles of a load, where there are more loads than sums: broadcasts of pairs.
_LOAD = 1.4
#: Instructions in the body of the innermost loop.
_BODY = 200
#: Cycles to round and copy a vector.
_ROUNDING = 3.0
_MOST_PLANS = 12


@dataclass(frozen=True)
class Bf16ConvPlan(Plan):
    """Blocks of outputs, rows and columns of a tile; parts of the outputs and of the positions."""

    blocks: int
    rows: int
    columns: int
    output_parts: int
    parts: int


class _Bf16Conv:
    """The family ``bf16`` of convolutions."""

    name = "bf16"

    def plans(self, work: Conv2D, machine: Machine) -> list[Bf16ConvPlan]:
        """Return tile choices, best estimate first.

        [] unless factors are bfloat16, input and output are packed float32, and groups are whole blocks of channels.
        """
        if not has_instructions(machine) or work.dtypes != ROUNDED or not work.macs:
            return []
        if {work.x.block, work.y.block} != {LANES} or narrow_groups(work):
            return []
        p = problem(work)
        found = sorted((plan for tile in _tiles(p, machine) for plan in _cuts(work, p, tile, machine)[:2]), key=lambda plan: plan.seconds)
        return found[:_MOST_PLANS]

    def packed(self, work: Conv2D, plan: Bf16ConvPlan, machine: Machine) -> Tensor:
        """Vectors of words in the order in which the kernel reads them."""
        p = problem(work)
        return Tensor((p.groups * p.outputs * _steps(p), LANES))

    def pack(self, work: Conv2D, plan: Bf16ConvPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), words): tile of outputs by tile, block of inputs, tap, pair,
        one vector for each block of outputs."""
        p, (kh, kw) = problem(work), work.kernel
        count = _pairs(p)

        def body(weights: Any, packed: Any) -> None:
            for run in cut(p.outputs, plan.blocks):
                with T.serial(0, p.groups) as g, T.serial(0, run.last - run.first) as t, T.serial(0, p.inputs) as c:
                    with T.serial(0, kh) as i, T.serial(0, kw) as k, T.serial(0, count) as e:
                        first = g * p.outputs + run.start + t * run.size
                        at = first * _steps(p) + (((c * kh + i) * kw + k) * count + e) * run.size
                        with T.serial(0, run.size) as j, T.serial(0, LANES) as lane:
                            out, channel = (first + j) * LANES + lane, c * LANES + 2 * e

                            def weight(channel: Any, out: Any = out, i: Any = i, k: Any = k) -> Any:
                                known = tirx.all(out < work.y.shape[1], channel < p.channels)
                                safe = tirx.min(out, work.y.shape[1] - 1), tirx.min(channel, p.channels - 1)
                                return tirx.if_then_else(known, weights[safe[0], safe[1], i, k], T.float32(0))

                            store(packed, [at + j, lane], word(weight(channel), weight(channel + 1)))

        shape = self.packed(work, plan, machine).physical
        return prim_func([("weights", work.weight_shape, "float32"), ("packed", shape, "float32")], body)

    def kernel(self, work: Conv2D, plan: Bf16ConvPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, words, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, plan, machine, epilogue, x, weights, rest[:-1], rest[-1]).emit()

        return bf16_func(buffers, body)


FAMILY = _Bf16Conv()


def _pairs(p: Problem) -> int:
    """Return the pairs of a block of inputs that are computed with."""
    return PAIRS if p.inputs > 1 else -(-p.channels // 2)


def _steps(p: Problem) -> int:
    """Return the pairs that an output sums."""
    return p.inputs * p.rows.kernel * p.columns.kernel * _pairs(p)


class _Emitter(TiledCopy):
    """Writes one kernel."""

    def __init__(
        self, work: Conv2D, plan: Bf16ConvPlan, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any
    ) -> None:
        super().__init__(work, machine, epilogue, x, weights, operands, y, plan.blocks)
        self.plan, self.lane = plan, T.ramp(0, 1, LANES)

    def emit(self) -> None:
        p, plan = self.p, self.plan
        parts, out_parts = plan.parts, plan.output_parts
        seconds = work_seconds(p, self.machine)
        with parallel(p.images * out_parts * parts, self.machine, seconds) as piece:
            out_part = self.take(piece, parts, plan.rows, plan.columns)
            self.copy = T.alloc_buffer((p.inputs, self.rows.extent, self.columns.extent, PAIRS), "int32")
            self.groups(out_part, out_parts, tiles(cut(p.outputs, plan.blocks)))

    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """See :class:`TiledCopy`."""
        words = T.broadcast(T.int32(0), PAIRS) if values is None else pairs(values)
        store(self.copy, [c, i, j, T.ramp(0, 1, PAIRS)], words)

    def tile(self, block: Any, blocks: int, height: int, row: Any, width: int, column: Any) -> None:
        """Emit one tile of outputs."""
        p = self.p
        lane, count = self.lane, _pairs(p)
        sums = {(a, b, j): T.alloc_buffer((LANES,), "float32") for a in range(height) for b in range(width) for j in range(blocks)}
        for acc in sums.values():
            store(acc, [lane], T.broadcast(T.float32(0), LANES))
        unroll = next(u for u in range(count, 0, -1) if count % u == 0 and (u == 1 or u * len(sums) <= _BODY))
        top, left = (row - self.rows.first) * self.rows.step, (column - self.columns.first) * self.columns.step
        with T.serial(0, p.inputs) as c, T.serial(0, p.rows.kernel) as i, T.serial(0, p.columns.kernel) as k:
            with T.serial(0, count // unroll) as outer, T.unroll(0, unroll) as inner:
                e = outer * unroll + inner
                step = ((c * p.rows.kernel + i) * p.columns.kernel + k) * count + e
                first = block * _steps(p) + step * blocks
                for a in range(height):
                    for b in range(width):
                        at = top + a * self.rows.step + i * p.rows.dilation, left + b * self.columns.step + k * p.columns.dilation
                        pair = self.copy[c, at[0], at[1], e]
                        for j in range(blocks):
                            acc = sums[a, b, j]
                            store(acc, [lane], dot(acc[lane], pair, self.weights[first + j, lane]))
        for (a, b, j), acc in sums.items():
            image, y_row, y_column = p.place(self.n, row + a, column + b)
            with T.vectorized(0, LANES) as v:
                index = [image, block + j, y_row, y_column]
                store(self.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, acc[v], index, v))


# ---- choice of tiles -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tile:
    blocks: int
    rows: int
    columns: int


def work_seconds(p: Problem, machine: Machine) -> float:
    """Return about how long one core takes: whether threads are worth it."""
    return p.groups * p.images * p.outputs * p.rows.out * p.columns.out * _steps(p) / cycles_per_second(machine)


def _tiles(p: Problem, machine: Machine) -> Iterator[_Tile]:
    """Yield the tiles that fit the registers, next to a vector of weights a block and one pair."""
    for blocks in range(1, min(p.outputs, 8) + 1):
        if blocks > 1 and -(-p.outputs // blocks) == -(-p.outputs // (blocks - 1)):
            continue
        points = (machine.registers - 1 - blocks) // blocks
        for rows in range(1, min(p.rows.out, 4, points) + 1):
            if rows > 1 and p.columns.out > 8:
                break  # several rows are for images narrower than a tile
            counts = {-(-p.columns.out // c) for c in range(max(1, points // rows // 2), points // rows + 1)}
            for columns in sorted({-(-p.columns.out // n) for n in counts}):
                yield _Tile(blocks, rows, columns)


def _cycles(p: Problem, t: _Tile) -> float:
    """Return the cycles of all tiles on one core."""
    total = 0.0
    for out in cut(p.outputs, t.blocks):
        for row in cut(p.rows.out, t.rows):
            for column in cut(p.columns.out, t.columns):
                number = (out.last - out.first) * (row.last - row.first) * (column.last - column.first)
                points = row.size * column.size
                sums = points * out.size
                total += number * (_steps(p) * max(1.06 * sums, _LOAD * (points + out.size), _IN_FLIGHT) + 3 * sums + 20)
    return total * p.groups * p.images


def _cuts(work: Conv2D, p: Problem, t: _Tile, machine: Machine) -> list[Bf16ConvPlan]:
    """Return plans with this tile for different pieces, best first."""
    seconds = work_seconds(p, machine)
    weights = 4.0 * p.groups * p.outputs * _steps(p) * LANES
    costs = CopyCosts(cycles_per_second(machine), _cycles(p, t), _ROUNDING, 4 * PAIRS, weights, seconds <= 3 * machine.launch)
    found = piece_choices(work, (t.blocks, t.rows, t.columns), costs, machine)
    return sorted((Bf16ConvPlan(s, t.blocks, t.rows, t.columns, *parts) for s, *parts in found), key=lambda plan: plan.seconds)
