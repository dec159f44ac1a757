# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Depthwise convolutions of packed tensors: every channel has a filter of its own.

They are reductions over a window like pooling, with ``x * w`` for the element, so the kernels are those of channelwise.py: a tile of
columns in registers, no test of the padding but at the borders. Weights (C, 1, kh, kw) are packed as a tensor (1, C, kh, kw).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.expr import Var
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families import channelwise
from dycl_tvm.backends.tir_cpu.reading.channelwise_op import ChannelwiseOp, Reduction
from dycl_tvm.backends.tir_cpu.words.cost import overlapped
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.storage import computed_type, takes
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


@dataclass(frozen=True)
class DepthwisePlan(Plan):
    """Columns of a tile."""

    tile: int


class Depthwise:
    """The family; see ``families/__init__.py`` for its functions."""

    name = "depthwise"

    def plans(self, work: Conv2D, machine: Machine) -> list[DepthwisePlan]:
        """Return tiles of columns. One output channel an input channel; input and output packed by the machine's lanes."""
        if not is_depthwise(work, machine) or not takes(work.dtypes):
            return []
        return self.tiled(work, machine)

    def tiled(self, work: Conv2D, machine: Machine) -> list[DepthwisePlan]:
        """Return tiles of columns, best estimate first."""
        columns = work.y.shape[3]
        widths = {-(-columns // -(-columns // most)) for most in (4, 8, 12) if most <= machine.registers - 4}
        plans = [DepthwisePlan(self._seconds(work, w, machine), w) for w in widths]
        return sorted(plans, key=lambda p: (p.seconds, p.tile))

    def _seconds(self, work: Conv2D, tile: int, machine: Machine) -> float:
        n, blocks, rows, columns, _ = work.y.physical
        taps = math.prod(work.kernel)
        # each multiply-add loads one vector; a tile loads the filter, starts and stores its accumulators
        tiles = n * blocks * rows * math.ceil(columns / tile)
        operations = tiles * (tile * (taps + 1) + taps / 4 + 4)
        computing = operations * 2 * machine.lanes / (machine.gflops * 1e9)
        moved = work.x.nbytes + work.y.nbytes
        # a core draws about four times the bandwidth of memory from the last cache, ten times from its own
        moving = moved / (machine.bandwidth * 1e9) / (10 if moved <= machine.l2 else 4 if moved <= machine.l3 / 2 else 1)
        pieces = min(machine.cores, n * blocks * rows)
        return overlapped(computing, moving) / pieces + machine.launch / 2

    def kernel(self, work: Conv2D, plan: DepthwisePlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, y)."""
        return channelwise.kernel(_operator(work), [work.x, self.packed(work, plan, machine), work.y], machine, epilogue, plan.tile)

    def packed(self, work: Conv2D, plan: DepthwisePlan, machine: Machine) -> Tensor:
        """Return the shape of the packed weights."""
        return Tensor((1, work.x.shape[1], *work.kernel), work.weights, machine.lanes)

    def pack(self, work: Conv2D, plan: DepthwisePlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights, packed weights)."""
        lanes, channels = machine.lanes, work.x.shape[1]

        def body(w: Any, packed: Any) -> None:
            _, blocks, kh, kw, _ = self.packed(work, plan, machine).physical
            with T.grid(blocks, kh, kw, lanes) as (cb, i, j, lane):
                channel = cb * lanes + lane
                value = w[tirx.min(channel, channels - 1), 0, i, j]
                store(packed, [0, cb, i, j, lane], tirx.if_then_else(channel < channels, value, tirx.const(0, work.weights)))

        shapes = [("w", work.weight_shape, work.weights), ("packed", self.packed(work, plan, machine).physical, work.weights)]
        return prim_func(shapes, body)


FAMILY = Depthwise()


def is_depthwise(work: Conv2D, machine: Machine) -> bool:
    """Whether a packed convolution has one output channel an input channel."""
    channels = work.x.shape[1]
    return work.groups == channels == work.y.shape[1] and {work.x.block, work.y.block} == {machine.lanes}


def _operator(work: Conv2D) -> ChannelwiseOp:
    """Return the convolution as a reduction of x[n, c, h * stride + i * dilation - pad, ...] * w[0, c, i, j] over i and j."""
    weights, sums = work.weights, work.accumulator

    def axis(name: str) -> Any:
        return Var(name, "int64")

    def int64(value: int) -> Any:
        return tirx.IntImm("int64", value)

    n, c, h, w = (axis(a) for a in "nchw")
    taps = (axis("i"), axis("j"))
    x = tirx.decl_buffer(work.x.shape, computed_type(work.x.dtype), "x")
    filters = tirx.decl_buffer((1, work.x.shape[1], *work.kernel), weights, "w")
    at = [
        v * int64(s) + tap * int64(d) - int64(p)
        for v, tap, s, d, p in zip((h, w), taps, work.stride, work.dilation, (work.padding[0], work.padding[1]))
    ]
    guard = []
    for index, size, out, k, s, d, p in zip(
        at, work.x.shape[2:], work.y.shape[2:], work.kernel, work.stride, work.dilation, work.padding[:2]
    ):
        guard += [index >= int64(0)] if p > 0 else []
        guard += [index < int64(size)] if (out - 1) * s + (k - 1) * d - p >= size else []
    total, item, result = (Var(name, sums) for name in ("total", "item", "result"))
    factors = x[n, c, at[0], at[1]], filters[int64(0), c, taps[0], taps[1]]
    left, right = (f if str(f.ty.dtype) == sums else f.astype(sums) for f in factors)
    element = left * right
    reduction = Reduction(taps, work.kernel, tirx.const(0, sums), element, tuple(guard), total, item, total + item)
    inputs = (Tensor(work.x.shape, computed_type(work.x.dtype)), Tensor((1, work.x.shape[1], *work.kernel), weights))
    return ChannelwiseOp((x, filters), inputs, Tensor(work.y.shape, sums), (1, 1), (n, c, h, w), work.y.shape, result, result, reduction)
