# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions by instructions that sum products of several neighbouring channels, such as pairs of bfloat16 and quads of 8 bits.

A piece copies the input that it reaches as *words* of so many channels (:mod:`padded_copy`), of which all tiles of outputs (blocks of
channels x rows x columns, in registers) read: a word for all lanes, against a vector of words of the weights. An input that lies in memory
as words is read where it is, if the kernel has one tap and no padding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import Axis, Problem, cut, problem, tiles
from dycl_tvm.backends.tir_cpu.words.cost import shared_pieces, turns
from dycl_tvm.backends.tir_cpu.words.loops import parallel, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.padded_copy import PaddedCopy
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.workload import HALF, Conv2D, Epilogue

#: Instructions in the body of the innermost loop.
_BODY = 200
#: The share of L2 that a piece's copy may take.
_COPY_SHARE = 2
_MOST_PLANS = 12
#: Types of inputs in memory and of factors, for which the elements of a word are its neighbours in memory.
_AS_WORDS = {(HALF, "bfloat16"), ("uint8", "int8")}


@dataclass(frozen=True)
class DotPlan(Plan):
    """Blocks of outputs, rows and columns of a tile; parts of the outputs and of the positions."""

    blocks: int
    rows: int
    columns: int
    output_parts: int
    parts: int


@dataclass(frozen=True)
class Dot:
    """An instruction, and what a convolution by it costs.

    Attributes
    ----------
    channels : int
        Channels of a word.
    lanes : int
        Sums of a vector, and channels of a block.
    clock : float
        Cycles in a second.
    cycles : float
        Those of one dot product.
    in_flight : float
        Cycles that its sum takes to be ready for the next one.
    load : float
        Cycles of a load, where there are more loads than sums: broadcasts of words.
    copying, finishing : float
        Cycles to copy a block of channels at one place, and to finish a vector of sums.
    registers, registers_a_block : int
        What a tile takes beside its sums, and for each block of its outputs.
    registers_of_epilogue : int
        What an epilogue in a loop takes besides, if tiles have one block: LLVM then loads its operands before all tiles.
    words_a_load : int
        Neighbouring words that one load brings.
    spread : float
        Cycles until a word is a factor of all lanes.
    loading : float
        Those of a load that products do not hide.
    """

    channels: int
    lanes: int
    clock: float
    cycles: float
    in_flight: float
    load: float
    copying: float
    finishing: float
    registers: int
    registers_a_block: int
    registers_of_epilogue: int = 0
    words_a_load: int = 1
    spread: float = 0.0
    loading: float = 0.0

    def words(self, p: Problem) -> int:
        """Return the words of a block of inputs that are computed with."""
        return self.lanes // self.channels if p.inputs > 1 else -(-p.channels // self.channels)

    def steps(self, p: Problem) -> int:
        """Return the words that an output sums."""
        return p.inputs * p.rows.kernel * p.columns.kernel * self.words(p)

    def reads_words(self, work: Conv2D) -> bool:
        """Whether the input is read where it lies: as words already, each by one tap."""
        return (work.x.dtype, work.weights) in _AS_WORDS and work.kernel == (1, 1) and not any(work.padding)

    def seconds(self, p: Problem) -> float:
        """Return about how long one core takes: whether threads are worth it."""
        return p.groups * p.images * p.outputs * p.rows.out * p.columns.out * self.steps(p) * self.cycles / self.clock

    def plans(self, work: Conv2D, machine: Machine) -> list[DotPlan]:
        """Return tile choices, best estimate first; input and output are packed, and groups are whole blocks of channels."""
        p = problem(work)
        found = [plan for tile in self._tiles(p, machine) for plan in self._cuts(work, p, tile, machine)[:2]]
        return sorted(found, key=_order)[:_MOST_PLANS]

    def _tiles(self, p: Problem, machine: Machine) -> Iterator[tuple[int, int, int]]:
        """Yield (blocks, rows, columns) that fit the registers."""
        for blocks in range(1, min(p.outputs, 8) + 1):
            if blocks > 1 and -(-p.outputs // blocks) == -(-p.outputs // (blocks - 1)):
                continue
            own = self.registers + (self.registers_of_epilogue if blocks == 1 else 0)
            points = (machine.registers - own - blocks * self.registers_a_block) // blocks
            if self.steps(p) == self.words(p):  # without a loop LLVM loads ahead, and sums would leave the registers
                points = min(points, machine.registers // 2 // blocks)
            if points < 1:
                break
            for rows in range(1, min(p.rows.out, 4, points) + 1):
                if rows > 1 and p.columns.out > 8:
                    break  # several rows are for images narrower than a tile
                counts = {-(-p.columns.out // c) for c in range(max(1, points // rows // 2), points // rows + 1)}
                for columns in sorted({-(-p.columns.out // n) for n in counts}):
                    yield blocks, rows, columns

    def _cycles(self, p: Problem, tile: tuple[int, int, int]) -> float:
        """Return the cycles of all tiles on one core."""
        total, steps = 0.0, self.steps(p)
        for out in cut(p.outputs, tile[0]):
            for row in cut(p.rows.out, tile[1]):
                for column in cut(p.columns.out, tile[2]):
                    number = (out.last - out.first) * (row.last - row.first) * (column.last - column.first)
                    points = row.size * column.size
                    sums = points * out.size
                    loads = points / (self.words_a_load if column.size >= self.words_a_load else 1) + out.size
                    step = max(1.06 * self.cycles * sums + self.spread * points + self.loading * loads, self.load * loads, self.in_flight)
                    total += number * (steps * step + self.finishing * sums + 20)
        return total * p.groups * p.images

    def _cuts(self, work: Conv2D, p: Problem, tile: tuple[int, int, int], machine: Machine) -> list[DotPlan]:
        """Return plans with this tile for different pieces, best first."""
        computing = self._cycles(p, tile) / self.clock
        weights = 4.0 * p.groups * p.outputs * self.steps(p) * self.lanes
        place = 4 * self.lanes // self.channels
        serial = self.seconds(p) <= 3 * machine.launch
        axis, size = (p.rows, tile[1]) if p.rows.out > 1 else (p.columns, tile[2])
        along = -(-axis.out // size)
        across = p.groups if p.groups > 1 else -(-p.outputs // tile[0])
        other = p.columns if p.rows.out > 1 else p.rows
        found = []
        for parts in sorted({min(along, 1 << k) for k in range(8)}):
            places = _reach(axis, -(-along // parts) * -(-axis.out // along)) * _reach(other, other.out)
            fits = place * p.inputs * places <= machine.l2 // _COPY_SHARE
            for output_parts in sorted({min(across, k) for k in (1, 2, 4, 8)}):
                pieces = parts * output_parts * p.images
                if pieces > 1 and parts * output_parts > 8 * machine.cores and (fits and output_parts > 1):
                    continue
                copies = places * p.inputs * p.groups * pieces / (output_parts if p.groups > 1 else 1) * self.copying / self.clock
                copies = 0.0 if self.reads_words(work) else copies
                passes = parts * p.images if weights / output_parts > machine.l2 / 2 else machine.cores
                moved = weights * passes / machine.stream_rate(weights) if weights > machine.l2 / 2 else 0.0
                alone = max(computing, moved) + 0.1 * moved + copies
                if not fits:
                    alone *= 1.1
                busy = turns(pieces, p.images, [(along, parts), (across, output_parts)], machine)
                found.append(DotPlan(shared_pieces(alone, pieces, busy, serial, machine), *tile, output_parts, parts))
        return sorted(found, key=_order)


def _order(plan: DotPlan) -> Any:
    return plan.seconds, plan.params


def _reach(axis: Axis, positions: int) -> int:
    """Return how many places of the copy so many positions of an axis reach."""
    return (positions - 1) * (1 if axis.kernel == 1 else axis.stride) + (axis.kernel - 1) * axis.dilation + 1


def pack_words(work: Conv2D, blocks: int, dot: Dot, weights: Any, put: Callable[[Any, Any, Callable[[Any, Any], Any]], None]) -> None:
    """Emit the loops that pack weights (O, I / groups, KH, KW) as the kernel reads them.

    The order is: tile of outputs by tile, block of inputs, tap, word, one vector for each block of outputs.

    Parameters
    ----------
    work : Conv2D
    blocks : int
        Blocks of outputs of a tile.
    dot : Dot
    weights : Buffer
    put : callable
        Emits a vector: gets its number, (block of outputs, first channel of its words), and a function that gives the weight of an output
        and a channel, 0 where there is none.
    """
    p, (kh, kw) = problem(work), work.kernel
    count, steps = dot.words(p), dot.steps(p)
    zero = tirx.const(0, weights.dtype)
    for run in cut(p.outputs, blocks):
        with T.serial(0, p.groups) as g, T.serial(0, run.last - run.first) as t, T.serial(0, p.inputs) as c:
            with T.serial(0, kh) as i, T.serial(0, kw) as k, T.serial(0, count) as e:
                first = g * p.outputs + run.start + t * run.size
                at = first * steps + (((c * kh + i) * kw + k) * count + e) * run.size
                with T.serial(0, run.size) as j:

                    def weight(out: Any, channel: Any, i: Any = i, k: Any = k) -> Any:
                        known = tirx.all(out < work.y.shape[1], channel < p.channels)
                        safe = tirx.min(out, work.y.shape[1] - 1), tirx.min(channel, p.channels - 1)
                        return tirx.if_then_else(known, weights[safe[0], safe[1], i, k], zero)

                    put(at + j, (first + j, c * dot.lanes + dot.channels * e), weight)


class DotTiles(PaddedCopy):
    """Writes one kernel.

    Parameters
    ----------
    work, machine, epilogue, x, weights, operands, y
        As of :class:`PaddedCopy`.
    plan : DotPlan
    dot : Dot
    """

    #: The type of the sums.
    sums: str

    def __init__(
        self,
        work: Conv2D,
        machine: Machine,
        epilogue: Epilogue,
        x: Any,
        weights: Any,
        operands: Sequence[Any],
        y: Any,
        plan: DotPlan,
        dot: Dot,
    ) -> None:
        super().__init__(work, machine, epilogue, x, weights, operands, y)
        self.plan, self.dot, self.lanes, self.lane = plan, dot, dot.lanes, T.ramp(0, 1, dot.lanes)
        self.in_place = dot.reads_words(work)
        #: Words of a block at a place of the copy.
        self.words = dot.lanes // dot.channels

    @abstractmethod
    def word(self, values: Any) -> Any:
        """Return a block of channels of the input as words."""

    def own_word(self, block: Any, place: tuple[Any, Any, Any], number: Any) -> Any:
        """Return a word of a block of channels of the input, where it lies, at an (image, row, column)."""
        raise NotImplementedError

    def words_at(self, block: Any, places: Sequence[tuple[Any, ...]], number: Any) -> list[Any]:
        """Return a word of a block of channels at neighbouring places: (image, row, column) of the input, or (row, column) of the copy."""
        if self.in_place:
            return [self.own_word(block, place, number) for place in places]
        return [self.copy[block, row, column * self.words + number] for row, column in places]

    def around(self) -> bytes:
        """Return a word of the border."""
        return bytes([self.work.border] * 4)

    def start(self, block: Any) -> Any:
        """Return what the sums of a block of outputs begin at."""
        return T.broadcast(tirx.const(0, self.sums), self.lanes)

    @abstractmethod
    def multiply(self, total: Any, word: Any, number: Any) -> Any:
        """Return sums plus the products of a word and of a vector of the packed weights."""

    @abstractmethod
    def finish(self, sums: dict[tuple[int, int, int], Any], block: Any, row: Any, column: Any) -> None:
        """Emit the epilogue of a tile: its sums by row, column and block, and its first block, row and column."""

    def prepare(self) -> None:
        """Emit buffers that all tiles of a piece share."""

    def emit(self) -> None:
        """Emit the body of the kernel."""
        p, plan = self.p, self.plan
        with parallel(p.images * plan.output_parts * plan.parts, self.machine, self.dot.seconds(p)) as piece:
            out_part = self.take(piece, plan.parts, plan.rows, plan.columns)
            if not self.in_place:
                self.copy = T.alloc_buffer((p.inputs, self.rows.extent, self.columns.extent * self.words), "int32")
            self.prepare()
            self.groups(out_part, plan.output_parts, tiles(cut(p.outputs, plan.blocks)))

    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """See :class:`PaddedCopy`."""
        around = T.int32(int.from_bytes(self.around(), "little", signed=True))
        if self.words == 1:
            place, filling = j, around
        else:
            place, filling = T.ramp(j * self.words, 1, self.words), T.broadcast(around, self.words)
        store(self.copy, [c, i, place], filling if values is None else self.word(values))

    def group(self, g: Any, span: tuple[Any, Any]) -> None:
        """See :class:`PaddedCopy`."""
        if not self.in_place:
            self.round(g)
        for out in cut(self.p.outputs, self.plan.blocks):
            low, high = tirx.max(span[0], out.first), tirx.min(span[1], out.last)
            with T.serial(0, tirx.max(0, high - low)) as t:
                block = g * self.p.outputs + out.position(low + t)
                for rows, row in self.rows.each():
                    for columns, column in self.columns.each():
                        self._tile(g, block, out.size, rows.size, row, columns.size, column)

    def _tile(self, g: Any, block: Any, blocks: int, height: int, row: Any, width: int, column: Any) -> None:
        """Emit a tile: ``blocks`` of outputs from ``block`` on, ``height`` x ``width`` positions from (``row``, ``column``) on."""
        p, lane = self.p, self.lane
        count, steps = self.dot.words(p), self.dot.steps(p)
        sums = {(a, b, j): T.alloc_buffer((self.lanes,), self.sums) for a in range(height) for b in range(width) for j in range(blocks)}
        for (_, _, j), acc in sums.items():
            store(acc, [lane], self.start(block + j))
        unroll = next(u for u in range(count, 0, -1) if count % u == 0 and (u == 1 or u * len(sums) <= _BODY))
        top, left = (row - self.rows.first) * self.rows.step, (column - self.columns.first) * self.columns.step
        with T.serial(0, p.inputs) as c, T.serial(0, p.rows.kernel) as i, T.serial(0, p.columns.kernel) as k:
            with T.serial(0, count // unroll) as outer, T.unroll(0, unroll) as inner:
                e = outer * unroll + inner
                step = ((c * p.rows.kernel + i) * p.columns.kernel + k) * count + e
                first = block * steps + step * blocks
                for a in range(height):
                    places: list[tuple[Any, ...]]
                    if self.in_place:
                        near = g * p.inputs + c
                        places = [p.place(self.n, p.rows.at(row + a, 0), p.columns.at(column + b, 0)) for b in range(width)]
                    else:
                        near, down, right = c, top + a * self.rows.step + i * p.rows.dilation, k * p.columns.dilation
                        places = [(down, left + b * self.columns.step + right) for b in range(width)]
                    for b, word in enumerate(self.words_at(near, places, e)):
                        for j in range(blocks):
                            acc = sums[a, b, j]
                            store(acc, [lane], self.multiply(acc[lane], word, first + j))
        self.finish(sums, block, row, column)
