# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions in bfloat16, as products without a matrix of patches (:mod:`dot_convolution`): words are pairs.

Error: see :mod:`bf16`; tested within 4e-3 of the largest output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, bf16_func, cycles_per_second, dot, has_instructions, pairs, word
from dycl_tvm.backends.tir_cpu.words.convolution import narrow_groups, problem
from dycl_tvm.backends.tir_cpu.words.dot_convolution import Dot, DotPlan, DotTiles, pack_words
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, of_rounded, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import takes, write
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


def _dot(machine: Machine) -> Dot:
    return Dot(
        channels=LANES // PAIRS,
        lanes=LANES,
        clock=cycles_per_second(machine),
        cycles=1.0,
        in_flight=7,
        load=1.4,
        copying=3.0,
        finishing=3.0,
        registers=1,
        registers_a_block=1,
    )


class _Bf16Conv:
    """The family ``bf16`` of convolutions."""

    name = "bf16"

    def plans(self, work: Conv2D, machine: Machine) -> list[DotPlan]:
        """Return tile choices, best estimate first.

        [] unless factors are bfloat16, input and output are packed, and groups are whole blocks of channels.
        """
        if not has_instructions(machine) or not takes(work.dtypes, weights="bfloat16") or not work.macs:
            return []
        if {work.x.block, work.y.block} != {LANES} or narrow_groups(work):
            return []
        return _dot(machine).plans(work, machine)

    def packed(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Tensor:
        """Vectors of words in the order in which the kernel reads them."""
        p = problem(work)
        return Tensor((p.groups * p.outputs * _dot(machine).steps(p), LANES))

    def pack(self, work: Conv2D, plan: DotPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), words)."""

        def body(weights: Any, packed: Any) -> None:
            def put(vector: Any, first: tuple[Any, Any], weight: Callable[[Any, Any], Any]) -> None:
                block, channel = first
                with T.serial(0, LANES) as lane:
                    out = block * LANES + lane
                    store(packed, [vector, lane], word(weight(out, channel), weight(out, channel + 1)))

            pack_words(work, plan.blocks, _dot(machine), weights, put)

        shape = self.packed(work, plan, machine).physical
        return prim_func([("weights", work.weight_shape, "float32"), ("packed", shape, "float32")], body)

    def kernel(self, work: Conv2D, plan: DotPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, words, operands of the epilogue, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, machine, of_rounded(epilogue), x, weights, rest[:-1], rest[-1], plan, _dot(machine)).emit()

        return bf16_func(buffers, body)


FAMILY = _Bf16Conv()


class _Emitter(DotTiles):
    """Writes one kernel."""

    sums = "float32"

    def word(self, values: Any) -> Any:
        """See :class:`DotTiles`."""
        return pairs(values)

    def own_word(self, block: Any, place: tuple[Any, Any, Any], number: Any) -> Any:
        """See :class:`DotTiles`."""
        image, row, column = place
        return T.reinterpret("int32", self.x[image, block, row, column, T.ramp(2 * number, 1, 2)])

    def multiply(self, total: Any, word: Any, number: Any) -> Any:
        """See :class:`DotTiles`."""
        return dot(total, word, self.weights[number, self.lane])

    def finish(self, sums: dict[tuple[int, int, int], Any], block: Any, row: Any, column: Any) -> None:
        """See :class:`DotTiles`."""
        for (a, b, j), acc in sums.items():
            image, y_row, y_column = self.p.place(self.n, row + a, column + b)
            with T.vectorized(0, LANES) as v:
                index = [image, block + j, y_row, y_column]
                write(self.y, self.work.y, [*index, v], finish(self.epilogue, self.operands, self.work.y, acc[v], index, v))
