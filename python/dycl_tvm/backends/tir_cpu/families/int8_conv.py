# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions of 8-bit integers (:mod:`dot_convolution`): words are quads. Sums are exact.

An input of no more channels than a quad has is read in plain layout: the copy makes quads of its planes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import cut, narrow_groups, problem
from dycl_tvm.backends.tir_cpu.words.dot_convolution import Dot, DotPlan, DotTiles, pack_words
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.int8 import (
    QUAD,
    allowed,
    cycles_per_second,
    dots,
    flipped,
    for_all,
    int8_func,
    lane_of,
    products,
    start_of,
    store_offset,
    takes,
)
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.planes import each_quads, has_planes, in_blocks
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


def _dot(machine: Machine) -> Dot:
    how = products(machine)
    return Dot(
        channels=QUAD,
        lanes=machine.lanes,
        clock=cycles_per_second(machine),
        cycles=how.cost,
        in_flight=8,
        load=1.15,
        copying=2.0,
        finishing=8.0,
        registers=how.registers,
        registers_a_block=how.registers_a_vector,
        registers_of_epilogue=4,
        words_a_load=QUAD if how.lanes else 1,
        spread=how.spread,
        loading=how.loading,
    )


class _Int8Conv:
    """The family ``int8`` of convolutions."""

    name = "int8"

    def plans(self, work: Conv2D, machine: Machine) -> list[DotPlan]:
        """Return tile choices, best estimate first; the output is packed, and the input unless it has few channels, and groups are whole
        blocks of channels."""
        if not allowed(machine) or not work.macs or not takes(work.dtypes) or work.y.block != machine.lanes:
            return []
        if work.x.block != machine.lanes and not has_planes(work):
            return []
        work = in_blocks(work)
        return [] if narrow_groups(work) else _dot(machine).plans(work, machine)

    def packed(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Tensor:
        """Vectors of quads in the order in which the kernel reads them, and the offsets of all blocks of outputs."""
        p = problem(in_blocks(work))
        return Tensor((p.groups * p.outputs * (_dot(machine).steps(p) + products(machine).offset), QUAD * machine.lanes), "int8")

    def pack(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), quads)."""
        lanes, how, p, shape = machine.lanes, products(machine), problem(in_blocks(work)), self.packed(work, plan, machine).shape

        def offset(weights: Any, packed: Any, block: Any, lane: Any) -> None:
            channel = block * lanes + lane

            def each(add: Callable[[Any, Any], None]) -> None:
                with T.If(channel < work.y.shape[1]), T.Then(), T.grid(p.channels, *work.kernel) as (c, i, k):
                    add(weights[channel, c, i, k], tirx.floormod(c, QUAD))

            store_offset(packed, [p.groups * p.outputs * _dot(machine).steps(p) + block], lane, each, how)

        def body(weights: Any, packed: Any) -> None:
            def put(vector: Any, first: tuple[Any, Any], weight: Callable[[Any, Any], Any]) -> None:
                block, channel = first
                with T.serial(0, lanes) as lane, T.serial(0, QUAD) as q:
                    store(packed, [vector, how.at(lane, q, lanes)], weight(block * lanes + lane, channel + q))

            pack_words(in_blocks(work), plan.blocks, _dot(machine), weights, put)
            if how.offset:
                with T.grid(p.groups * p.outputs, lanes) as (block, lane):
                    offset(weights, packed, block, lane)

        return prim_func([("weights", work.weight_shape, "int8"), ("packed", shape, "int8")], body)

    def kernel(self, work: Conv2D, plan: DotPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, quads, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            emitter = _FromPlanes if has_planes(work) else _Emitter
            emitter(in_blocks(work), machine, epilogue, x, weights, rest[:-1], rest[-1], plan, _dot(machine)).emit()

        return int8_func(buffers, body, machine)


FAMILY = _Int8Conv()


class _Emitter(DotTiles):
    """Writes one kernel."""

    sums = "int32"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.how = products(self.machine)

    def prepare(self) -> None:
        """Emit the buffer of a tile's sums: the epilogue is long, and each copy of it would take the compiler time."""
        p, plan = self.p, self.plan
        most = max(r.size for r in cut(p.rows.out, plan.rows)), max(c.size for c in cut(p.columns.out, plan.columns))
        self.totals = T.alloc_buffer((max(o.size for o in cut(p.outputs, plan.blocks)), *most, self.lanes), "int32")

    def word(self, values: Any) -> Any:
        """See :class:`DotTiles`."""
        count = self.lanes // QUAD
        return flipped(T.reinterpret(f"int32x{count}" if count > 1 else "int32", values), count, self.how)

    def around(self) -> bytes:
        """See :class:`DotTiles`."""
        return bytes(byte ^ flip for byte, flip in zip(super().around(), self.how.flips))

    def own_word(self, block: Any, place: tuple[Any, Any, Any], number: Any) -> Any:
        """See :class:`DotTiles`."""
        image, row, column = place
        return flipped(T.reinterpret("int32", self.x[image, block, row, column, T.ramp(QUAD * number, 1, QUAD)]), 1, self.how)

    def words_at(self, block: Any, places: Sequence[tuple[Any, ...]], number: Any) -> list[Any]:
        """See :class:`DotTiles`; words are for all lanes. Where instructions take one of a vector, neighbours are read as such."""
        in_line = self.p.flat == "image" if self.in_place else self.columns.step == 1
        if not (self.how.lanes and in_line and self.words == 1 and len(places) >= QUAD):
            return [for_all(word, self.lanes, self.how) for word in super().words_at(block, places, number)]
        # the last vector overlaps the one before it
        starts = [min(k, len(places) - QUAD) for k in range(0, len(places), QUAD)]
        vectors = {k: T.bind(self._four(block, places[k])) for k in starts}
        return [lane_of(vectors[starts[b // QUAD]], b - starts[b // QUAD]) for b in range(len(places))]

    def _four(self, block: Any, place: tuple[Any, ...]) -> Any:
        """Return the words of a block of channels at four neighbouring places."""
        if not self.in_place:
            return self.copy[block, place[0], T.ramp(place[1], 1, QUAD)]
        image, row, column = place
        n, blocks, height, width, _ = self.work.x.physical
        x = T.decl_buffer((n, blocks, height * width * QUAD), "uint8", data=self.x.data)
        return flipped(T.reinterpret("int32x4", x[image, block, T.ramp((row * width + column) * QUAD, 1, QUAD * QUAD)]), QUAD, self.how)

    def start(self, block: Any) -> Any:
        """See :class:`DotTiles`."""
        first = self.p.groups * self.p.outputs * self.dot.steps(self.p)
        return start_of(self.weights[first + block, T.ramp(0, 1, QUAD * self.lanes)] if self.how.offset else None, self.lanes)

    def multiply(self, total: Any, word: Any, number: Any) -> Any:
        """See :class:`DotTiles`."""
        return dots(total, word, self.weights[number, T.ramp(0, 1, QUAD * self.lanes)], self.lanes)

    def finish(self, sums: dict[tuple[int, int, int], Any], block: Any, row: Any, column: Any) -> None:
        """See :class:`DotTiles`."""
        for (a, b, j), acc in sums.items():
            store(self.totals, [j, a, b, self.lane], acc[self.lane])
        height, width, blocks = (last + 1 for last in max(sums))
        with T.serial(0, blocks) as j, T.serial(0, height) as a, T.serial(0, width) as b, T.vectorized(0, self.lanes) as v:
            image, y_row, y_column = self.p.place(self.n, row + a, column + b)
            index = [image, block + j, y_row, y_column]
            store(self.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, self.totals[j, a, b, v], index, v))


class _FromPlanes(_Emitter):
    """Writes a kernel that makes quads of the planes of its input."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.in_place, self.words = False, 1

    def span(self, g: Any, blocks: Sequence[Any], i: Any, begin: Any, count: Any) -> None:
        """See :class:`PaddedCopy`."""

        def put(at: Any, width: int, quads: Any) -> None:
            store(self.copy, [blocks[0], i, T.ramp(at, 1, width) if width > 1 else at], flipped(quads, width, self.how))

        each_quads(self, i, begin, count, put)
