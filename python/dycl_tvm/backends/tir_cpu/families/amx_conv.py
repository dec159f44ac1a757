# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions in bfloat16 and of 8-bit integers by the tiles of AMX, as products without a matrix of patches.

A piece (a band of output positions of an image) rounds the input that it reaches to a padded copy whose channels lie together: (row,
column, words of channels). A left tile is read from it in place: its rows are up to 16 output positions, one stride of the copy apart,
and its columns go on from tap to tap along a row of the window. With stride 1 the positions may run over the ends of the rows (*flat*):
what is computed there is dropped, and is often less than what tiles at the end of each row would leave empty.
Integers of no more channels than a quad has are read in plain layout: the copy makes quads of their planes.
Error: see :mod:`amx`; of bfloat16 tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words import bf16
from dycl_tvm.backends.tir_cpu.words.amx import (
    FACTORS,
    ROWS,
    Factors,
    Tiles,
    amx_func,
    can_multiply,
    cycles_per_second,
    even_rows,
    release,
)
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES
from dycl_tvm.backends.tir_cpu.words.convolution import Problem, narrow_groups, problem
from dycl_tvm.backends.tir_cpu.words.cost import shared_pieces, turns
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.padded_copy import PaddedCopy
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.planes import each_quads, has_planes, in_blocks
from dycl_tvm.backends.tir_cpu.words.storage import write
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor

#: Cycles to round and copy a vector.
_ROUNDING = 3.0
#: The share of L2 that a piece's copy may take.
_COPY_SHARE = 2
_MOST_PLANS = 12


@dataclass(frozen=True)
class AmxConvPlan(Plan):
    """Tiles of sums below and beside each other; whether positions run over the ends of rows; parts of the outputs and the positions."""

    high: int
    wide: int
    flat: int
    output_parts: int
    parts: int


class _AmxConv:
    """The family ``amx`` of convolutions."""

    name = "amx"

    def plans(self, work: Conv2D, machine: Machine) -> list[AmxConvPlan]:
        """Return tile choices, best estimate first.

        [] unless tiles take the factors, images are packed (the input may be planes of bytes), groups are whole blocks of channels, and
        there are several positions.
        """
        if not can_multiply(work.dtypes, machine, halves="xy") or not work.macs:
            return []
        if work.y.block != LANES or not (work.x.block == LANES or has_planes(work)):
            return []
        p, factors = problem(in_blocks(work)), FACTORS[work.weights]
        if narrow_groups(in_blocks(work)) or p.rows.out * p.columns.out == 1:
            return []
        return sorted(_plans(p, machine, factors), key=lambda plan: (plan.seconds, plan.params))[:_MOST_PLANS]

    def packed(self, work: Conv2D, plan: AmxConvPlan, machine: Machine) -> Tensor:
        """Return (blocks of outputs of all groups, steps of the sum, planes, words of a step, outputs of a block)."""
        p, factors = problem(in_blocks(work)), FACTORS[work.weights]
        window = _window(p, factors)
        return Tensor((p.groups * p.outputs, window.steps, factors.planes, window.step, factors.columns), factors.packed)

    def pack(self, work: Conv2D, plan: AmxConvPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), words)."""
        p, factors, packed = problem(in_blocks(work)), FACTORS[work.weights], self.packed(work, plan, machine)
        window, (blocks, _, _, words, columns) = _window(p, factors), packed.physical

        def body(weights: Any, packed: Any) -> None:
            with T.serial(0, blocks) as b, T.serial(0, p.rows.kernel) as i, T.serial(0, window.runs) as k:
                with T.serial(0, window.run // words) as s, T.serial(0, words) as e, T.serial(0, LANES) as j:
                    at = s * words + e
                    out, tap, channel = b * LANES + j, k * window.taps + at // window.words, factors.elements * (at % window.words)

                    def weight(neighbour: int) -> Any:
                        known = tirx.all(out < work.y.shape[1], channel + neighbour < p.channels)
                        safe = tirx.min(out, work.y.shape[1] - 1), tirx.min(channel + neighbour, p.channels - 1)
                        return tirx.if_then_else(known, weights[safe[0], safe[1], i, tap], factors.zero)

                    step, each = (i * window.runs + k) * (window.run // words) + s, columns // LANES
                    factors.split_weights(
                        weight, lambda plane, element, value: store(packed, [b, step, plane, e, j * each + element], value)
                    )

        return prim_func([("weights", work.weight_shape, factors.plain), ("packed", packed.physical, factors.packed)], body)

    def kernel(self, work: Conv2D, plan: AmxConvPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, words, operands of the epilogue, y)."""
        buffers, factors = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y), FACTORS[work.weights]
        emitter = _FromPlanes if has_planes(work) else _AmxEmitter

        def body(x: Any, weights: Any, *rest: Any) -> None:
            emitter(in_blocks(work), plan, machine, factors, epilogue, x, weights, rest[:-1], rest[-1]).emit()

        return amx_func(factors, buffers, body)


FAMILY = _AmxConv()


@dataclass(frozen=True)
class _Window:
    """How the sum of an output is cut into steps.

    Attributes
    ----------
    words : int
        That a position of the copy has, zeros among them.
    taps : int
        Taps along a row that lie one after the other in the copy: a run.
    runs : int
        Runs of a row of the window.
    step : int
        Words of a step.
    steps : int
        Of the sum.
    """

    words: int
    taps: int
    runs: int
    step: int
    steps: int

    @property
    def run(self) -> int:
        """Words of a run."""
        return self.taps * self.words


def _window(p: Problem, factors: Factors) -> _Window:
    taps = p.columns.kernel if p.columns.dilation == 1 else 1
    # words of few channels overlap those of the next position, which is written later; with blocks of zeros there may be fewer steps
    least = min(factors.words, -(-p.channels // factors.elements)) if p.inputs == 1 else factors.words * p.inputs
    choices = [least] if least < factors.words else range(least, least + ROWS, factors.words)
    run, step, words = min(
        (-(-taps * words // step), step, words) for words in choices for step in range(1, ROWS + 1) if taps * words % step == 0
    )
    return _Window(words, taps, p.columns.kernel // taps, step, p.rows.kernel * (p.columns.kernel // taps) * run)


def _flat_ever(p: Problem) -> bool:
    """Whether output positions one after the other are so in the copy, over the ends of rows too."""
    return all(axis.kernel == 1 or axis.stride == 1 for axis in (p.rows, p.columns))


class _AmxEmitter(PaddedCopy):
    """Writes one kernel."""

    def __init__(
        self,
        work: Conv2D,
        plan: AmxConvPlan,
        machine: Machine,
        factors: Factors,
        epilogue: Epilogue,
        x: Any,
        weights: Any,
        operands: Sequence[Any],
        y: Any,
    ) -> None:
        super().__init__(work, machine, epilogue, x, weights, operands, y)
        self.plan, self.factors = plan, factors
        # words of a line of 64 bytes: written whole it is fetched into the nearest cache once
        self.together = ROWS // factors.words

    def emit(self) -> None:
        p, plan, window, factors = self.p, self.plan, _window(self.p, self.factors), self.factors
        parts, out_parts = plan.parts, plan.output_parts
        self.window, self.tiles = window, _tiles(p, plan.high, plan.wide, plan.flat, parts, factors)
        with parallel(p.images * out_parts * parts, self.machine, _work_seconds(p, self.machine, factors)) as piece:
            out_part = self.take(piece, parts, 1, 1)
            self.pitch = self.columns.extent
            # the last tile may reach beyond the last position, and the words of the last one overlap nothing
            beyond = (self.tiles.rows - 1) * self.columns.step * window.words + factors.words
            self.copy = T.alloc_buffer((factors.planes, self.rows.extent * self.pitch * window.words + beyond), "int32")
            self.sums = T.alloc_buffer((self.tiles.high * self.tiles.rows, self.tiles.wide * LANES), factors.sums)
            self.tiles.configure()
            self.groups(out_part, out_parts, -(-p.outputs // plan.wide))
            release()

    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """See :class:`PaddedCopy`."""
        words = self.factors.words
        at = (i * self.pitch + j) * self.window.words + c * words

        def put(plane: int, values: Any) -> None:
            store(self.copy, [plane, T.ramp(at, 1, words)], values)

        if values is None:
            self.factors.fill(words, self.work.border, put)
        else:
            self.factors.split(values, put)

    def group(self, g: Any, span: tuple[Any, Any]) -> None:
        """See :class:`PaddedCopy`."""
        p, wide, words = self.p, self.tiles.wide, self.factors.words
        self.round(g)
        if self.window.words > words * p.inputs:
            with T.serial(0, self.rows.extent) as i, T.serial(0, self.pitch) as j, T.serial(0, self.window.words // words - p.inputs) as c:
                self.put(p.inputs + c, i, j)
        with T.serial(0, span[1] - span[0]) as t:
            block_of(span[0] + t, p.outputs, wide, lambda panel, across: self.panel(g * p.outputs + panel * wide, across))

    def panel(self, block: Any, across: int) -> None:
        """Emit the outputs of ``across`` blocks at all positions of the band."""
        rows, high = self.tiles.rows, self.tiles.high
        height, width = self.rows.end - self.rows.begin, self.columns.end - self.columns.begin
        if self.plan.flat:
            count = _ceil_div((height - 1) * self.pitch + width, rows)
        else:
            count = height * _ceil_div(width, rows)
        with T.serial(0, _ceil_div(count, high)) as t:
            if high == 1 or (isinstance(count, int) and count % high == 0):
                self.product(block, across, t * high, high)
                return
            with T.If(t * high + high <= count):
                with T.Then():
                    self.product(block, across, t * high, high)
                with T.Else():
                    self.product(block, across, t * high, count=1)

    def product(self, block: Any, across: int, first: Any, count: int) -> None:
        """Emit ``count`` tiles of positions, the first of which is ``first`` in the band."""
        p, window, tiles = self.p, self.window, self.tiles
        tiles.clear(count, across)
        with T.serial(0, p.rows.kernel) as i, T.serial(0, window.runs) as k, T.serial(0, window.run // window.step) as s:
            step = (i * window.runs + k) * (window.run // window.step) + s
            tap = i * p.rows.dilation * self.pitch + k * p.columns.dilation
            left = [(self.start(first + t) + tap) * window.words + s * window.step for t in range(count)]
            for x_plane, w_plane in self.factors.products:
                tiles.step(
                    [T.address_of(self.copy[x_plane, at]) for at in left],
                    4 * self.columns.step * window.words,
                    [T.address_of(self.weights[block + j, step, w_plane, 0, 0]) for j in range(across)],
                )
        tiles.keep(count, across, self.sums)
        with T.serial(0, count) as t:
            self.each_run(first + t, lambda at, row, column, length: self.finish(block, across, t * tiles.rows + at, row, column, length))

    def start(self, tile: Any) -> Any:
        """Return where the first position of a tile of the band reaches the copy first."""
        rows = self.tiles.rows
        if self.plan.flat:
            return tile * rows
        across = _ceil_div(self.columns.end - self.columns.begin, rows)
        return tile // across * self.rows.step * self.pitch + tile % across * rows * self.columns.step

    def each_run(self, tile: Any, emit: Callable[[Any, Any, Any, Any], None]) -> None:
        """Emit ``emit(at, row, column, length)`` for the runs of a tile's positions that lie in one row of the band.

        The first is the tile's position ``at``; there are ``length`` of them, or none.
        """
        rows, pitch = self.tiles.rows, self.pitch
        height, width = self.rows.end - self.rows.begin, self.columns.end - self.columns.begin
        if not self.plan.flat:
            across = _ceil_div(width, rows)
            column = T.bind(tile % across * rows)
            emit(0, T.bind(tile // across), column, tirx.min(rows, width - column))
        elif self.p.rows.out == 1:
            emit(0, 0, T.bind(tile * rows), tirx.max(0, tirx.min(rows, width - tile * rows)))
        else:
            top, left = T.bind(tile * rows // pitch), T.bind(tile * rows % pitch)
            with T.serial(0, (rows + pitch - 2) // pitch + 1) as k:
                at = T.bind(tirx.max(0, k * pitch - left))
                column = T.bind(at + left - k * pitch)
                there = tirx.min(rows, at + width - column) - at
                emit(at, top + k, column, tirx.if_then_else(top + k < height, tirx.max(0, there), 0))

    def finish(self, block: Any, across: int, at: Any, row: Any, column: Any, length: Any) -> None:
        """Emit the epilogue of ``length`` positions of a row, whose sums are in the rows of ``sums`` from ``at`` on."""
        with T.serial(0, across) as j, T.serial(0, length) as r:
            image, y_row, y_column = self.p.place(self.n, self.rows.first + row, self.columns.first + column + r)
            with T.vectorized(0, LANES) as v:
                index = [image, block + j, y_row, y_column]
                value = self.sums[at + r, j * LANES + v]
                write(self.y, self.work.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, value, index, v))


class _FromPlanes(_AmxEmitter):
    """Writes a kernel that makes quads of the planes of its input."""

    def span(self, g: Any, blocks: Sequence[Any], i: Any, begin: Any, count: Any) -> None:
        """See :class:`PaddedCopy`."""

        def put(at: Any, width: int, quads: Any) -> None:
            place = i * self.pitch + at
            store(self.copy, [0, T.ramp(place, 1, width) if width > 1 else place], quads)

        each_quads(self, i, begin, count, put)


# ---- choice of tiles -------------------------------------------------------------------------------------------------


def _ceil_div(a: Any, b: int) -> Any:
    return (a + b - 1) // b


def _extents(p: Problem, parts: int) -> tuple[int, int, int]:
    """Return rows and columns of the longest of the bands, and the columns of its copy."""
    height, width = (-(-p.rows.out // parts), p.columns.out) if p.rows.out > 1 else (1, -(-p.columns.out // parts))
    axis = p.columns
    return height, width, (width - 1) * (1 if axis.kernel == 1 else axis.stride) + (axis.kernel - 1) * axis.dilation + 1


def _tiles(p: Problem, high: int, wide: int, flat: int, parts: int, factors: Factors) -> Tiles:
    height, width, pitch = _extents(p, parts)
    return Tiles(even_rows((height - 1) * pitch + width if flat else width), _window(p, factors).step, high, wide, factors)


def _work_seconds(p: Problem, machine: Machine, factors: Factors) -> float:
    """Return about how long one core takes: whether threads are worth it."""
    positions = p.groups * p.images * p.rows.out * p.columns.out
    return len(factors.products) * positions * p.outputs * _window(p, factors).steps / cycles_per_second(machine)


def _plans(p: Problem, machine: Machine, factors: Factors) -> list[AmxConvPlan]:
    window, clock, planes = _window(p, factors), cycles_per_second(machine), factors.planes
    along = p.rows.out if p.rows.out > 1 else p.columns.out
    serial = _work_seconds(p, machine, factors) <= 3 * machine.launch
    weights = 4.0 * planes * p.groups * p.outputs * window.steps * window.step * LANES
    found = []
    for flat in (0, 1) if _flat_ever(p) and p.rows.out > 1 else (int(_flat_ever(p)),):
        for high, wide in ((2, min(2, p.outputs)), (1, min(4, p.outputs))):
            panels = -(-p.outputs // wide)
            for parts in sorted({min(along, 1 << k) for k in range(8)}):
                height, width, pitch = _extents(p, parts)
                tiles = _tiles(p, high, wide, flat, parts, factors)
                count = -(-((height - 1) * pitch + width) // tiles.rows) if flat else height * -(-width // tiles.rows)
                if high > count:
                    continue
                band = (
                    panels
                    * -(-count // high)
                    * (window.steps * tiles.step_cycles(high, wide, window.steps, machine) + tiles.end_cycles(high, wide))
                )
                rows = (height - 1) * (1 if p.rows.kernel == 1 else p.rows.stride) + (p.rows.kernel - 1) * p.rows.dilation + 1
                fits = 4 * planes * window.words * rows * pitch <= machine.l2 // _COPY_SHARE
                across = p.groups if p.groups > 1 else panels
                for output_parts in sorted({min(across, k) for k in (1, 2, 4, 8)}):
                    pieces = parts * output_parts * p.images
                    copies = rows * pitch * p.inputs * p.groups * (1 if p.groups > 1 else output_parts) * planes * _ROUNDING
                    passes = parts * p.images if weights / output_parts > machine.l2 / 2 else machine.cores
                    moved = weights * passes / machine.stream_rate(weights) if weights > machine.l2 / 2 else 0.0
                    computed = p.images * parts * (band * p.groups / clock + copies / bf16.cycles_per_second(machine))
                    alone = (max(computed, moved) + 0.1 * moved) * (1.0 if fits else 1.1)
                    # `band` is that of the longest part already
                    busy = turns(pieces, p.images, [(across, output_parts), (parts, parts)], machine)
                    seconds = shared_pieces(alone, pieces, busy, serial, machine)
                    found.append(AmxConvPlan(seconds, high, wide, flat, output_parts, parts))
    return found
