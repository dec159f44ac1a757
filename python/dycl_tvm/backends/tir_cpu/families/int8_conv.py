# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions of 8-bit integers (:mod:`dot_convolution`): words are quads. Sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import cut, narrow_groups, problem
from dycl_tvm.backends.tir_cpu.words.dot_convolution import Dot, DotPlan, DotTiles, pack_words
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.int8 import QUAD, allowed, cost, cycles_per_second, dot, int8_func, takes
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


def _dot(machine: Machine) -> Dot:
    return Dot(
        channels=QUAD,
        lanes=machine.lanes,
        clock=cycles_per_second(machine),
        cycles=cost(machine),
        in_flight=8,
        load=1.15,
        copying=2.0,
        finishing=8.0,
        registers=1 if machine.vnni else 4,
        registers_a_block=1 if machine.vnni else 2,
        registers_of_epilogue=4,
    )


class _Int8Conv:
    """The family ``int8`` of convolutions."""

    name = "int8"

    def plans(self, work: Conv2D, machine: Machine) -> list[DotPlan]:
        """Return tile choices, best estimate first; input and output are packed, and groups are whole blocks of channels."""
        if not allowed(machine) or not work.macs or not takes(work.dtypes) or {work.x.block, work.y.block} != {machine.lanes}:
            return []
        return [] if narrow_groups(work) else _dot(machine).plans(work, machine)

    def packed(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Tensor:
        """Vectors of quads in the order in which the kernel reads them."""
        p = problem(work)
        return Tensor((p.groups * p.outputs * _dot(machine).steps(p), QUAD * machine.lanes), "int8")

    def pack(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), quads)."""
        lanes = machine.lanes

        def body(weights: Any, packed: Any) -> None:
            def put(vector: Any, first: tuple[Any, Any], weight: Callable[[Any, Any], Any]) -> None:
                block, channel = first
                with T.serial(0, lanes) as lane, T.serial(0, QUAD) as q:
                    store(packed, [vector, lane * QUAD + q], weight(block * lanes + lane, channel + q))

            pack_words(work, plan.blocks, _dot(machine), weights, put)

        shape = self.packed(work, plan, machine).shape
        return prim_func([("weights", work.weight_shape, "int8"), ("packed", shape, "int8")], body)

    def kernel(self, work: Conv2D, plan: DotPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, quads, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, machine, epilogue, x, weights, rest[:-1], rest[-1], plan, _dot(machine)).emit()

        return int8_func(buffers, body, machine)


FAMILY = _Int8Conv()


class _Emitter(DotTiles):
    """Writes one kernel."""

    sums = "int32"

    def prepare(self) -> None:
        """Emit the buffer of a tile's sums: the epilogue is long, and each copy of it would take the compiler time."""
        p, plan = self.p, self.plan
        most = max(r.size for r in cut(p.rows.out, plan.rows)), max(c.size for c in cut(p.columns.out, plan.columns))
        self.totals = T.alloc_buffer((max(o.size for o in cut(p.outputs, plan.blocks)), *most, self.lanes), "int32")

    def word(self, values: Any) -> Any:
        """See :class:`DotTiles`."""
        return T.reinterpret(f"int32x{self.lanes // QUAD}", values)

    def own_word(self, block: Any, place: tuple[Any, Any, Any], number: Any) -> Any:
        """See :class:`DotTiles`."""
        image, row, column = place
        return T.reinterpret("int32", self.x[image, block, row, column, T.ramp(QUAD * number, 1, QUAD)])

    def multiply(self, total: Any, word: Any, number: Any) -> Any:
        """See :class:`DotTiles`."""
        return dot(total, word, self.weights[number, T.ramp(0, 1, QUAD * self.lanes)], self.lanes)

    def finish(self, sums: dict[tuple[int, int, int], Any], block: Any, row: Any, column: Any) -> None:
        """See :class:`DotTiles`."""
        for (a, b, j), acc in sums.items():
            store(self.totals, [j, a, b, self.lane], acc[self.lane])
        height, width, blocks = (last + 1 for last in max(sums))
        with T.serial(0, blocks) as j, T.serial(0, height) as a, T.serial(0, width) as b, T.vectorized(0, self.lanes) as v:
            image, y_row, y_column = self.p.place(self.n, row + a, column + b)
            index = [image, block + j, y_row, y_column]
            store(self.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, self.totals[j, a, b, v], index, v))
