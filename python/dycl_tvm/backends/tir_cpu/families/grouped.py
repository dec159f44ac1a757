# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions whose groups of channels are no whole vectors: a vector of outputs has lanes of several groups.

Step c of the sum takes channel c of each group, so the operand of a multiply-add is the vector that holds, in each lane, channel c of
that lane's own group. Groups whose sizes divide the vector shuffle it out of a vector of the input, always in the same way; for
others each group's element is broadcast and the lanes choose. Either way a vector is made once for all the taps of a kernel's row that
use it. No element meets the weights of another group: an infinity or a NaN stays in the group that it is in.

A tile is some columns of one row of one block of outputs. At the border it leaves out the taps that fall into the padding: rows at run
time, columns at build time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import Run, cut, narrow_groups, problem, share, tiles
from dycl_tvm.backends.tir_cpu.words.cost import one_core
from dycl_tvm.backends.tir_cpu.words.epilogue import finish, weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import is_parallel, parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.storage import takes, write
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor

#: Multiply-adds that the tiles of one row may unroll to.
_CODE = 2000

#: Slots (the time of a multiply-add of a vector at the core's peak) from one multiply-add to the next on its sum, and of an instruction
#: that makes an operand: for vectors of 512 bits, which have registers for masks, and for others.
_WIDE, _NARROW = (4, 0.15), (8, 0.4)


@dataclass(frozen=True)
class GroupedPlan(Plan):
    """Columns of a tile; parts of an image's rows."""

    columns: int
    parts: int


class Grouped:
    """The family; see ``families/__init__.py`` for its functions."""

    name = "grouped"

    def plans(self, work: Conv2D, machine: Machine) -> list[GroupedPlan]:
        """Return tiles of columns. Any float32 convolution with packed output and several groups that are no whole blocks.

        Depthwise ones have a family of their own. Kernels too wide for their borders to be unrolled are left.
        """
        depthwise = work.groups == work.x.shape[1] == work.y.shape[1]
        if not takes(work.dtypes, halves="y") or work.y.block != machine.lanes or not work.macs:
            return []
        if work.x.block not in (1, machine.lanes) or depthwise or not narrow_groups(work):
            return []
        p = problem(work)
        plans = []
        for columns in sorted({-(-p.columns.out // -(-p.columns.out // most)) for most in (1, 2, 4, 6, 8, 12, 14, 16, 20)}):
            if columns + min(work.kernel[1], 3) < machine.registers and _code(work, columns) <= _CODE:
                plans.append(_plan(work, columns, machine))
        return sorted(plans, key=lambda plan: plan.seconds)

    def packed(self, work: Conv2D, plan: GroupedPlan, machine: Machine) -> Tensor:
        """Return the shape of the packed weights: vectors in the order in which the kernel reads them."""
        lanes = machine.lanes
        return Tensor((-(-work.y.shape[1] // lanes), work.kernel[0], work.x.shape[1] // work.groups, work.kernel[1], lanes))

    def pack(self, work: Conv2D, plan: GroupedPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights (O, I / groups, KH, KW), packed weights)."""
        shape = self.packed(work, plan, machine).physical
        outputs = work.y.shape[1]

        def body(weights: Any, packed: Any) -> None:
            with T.grid(*shape) as (block, i, c, k, lane):
                out = block * machine.lanes + lane
                value = weights[tirx.min(out, outputs - 1), c, i, k]
                store(packed, [block, i, c, k, lane], tirx.if_then_else(out < outputs, value, tirx.const(0, "float32")))

        return prim_func([("weights", work.weight_shape, "float32"), ("packed", shape, "float32")], body)

    def kernel(self, work: Conv2D, plan: GroupedPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, y)."""
        buffers = weighted_buffers(work.x, self.packed(work, plan, machine), epilogue, work.y)

        def body(x: Any, weights: Any, *rest: Any) -> None:
            _Emitter(work, plan, machine, epilogue, x, weights, rest[:-1], rest[-1]).emit()

        return prim_func(buffers, body)


FAMILY = Grouped()


def _shuffles(work: Conv2D) -> bool:
    """Whether the lanes' elements always lie in the same places of a vector of the input, or of some whole ones."""
    lanes = work.y.block
    return work.x.block == lanes and all(lanes % (t.shape[1] // work.groups) == 0 for t in (work.x, work.y))


def _segments(work: Conv2D) -> int:
    """Return the most groups that a vector of outputs has lanes of."""
    channels, lanes = work.y.shape[1], work.y.block
    size = channels // work.groups
    return max((min(first + lanes, channels) - 1) // size - first // size + 1 for first in range(0, channels, lanes))


class _Emitter:
    """Writes one kernel."""

    def __init__(
        self, work: Conv2D, plan: GroupedPlan, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any
    ) -> None:
        self.work, self.plan, self.machine, self.epilogue = work, plan, machine, epilogue
        self.x, self.weights, self.operands, self.y = x, weights, operands, y
        self.p, self.lanes = problem(work), machine.lanes
        self.inner, self.outer = work.x.shape[1] // work.groups, work.y.shape[1] // work.groups
        self.columns = cut(self.p.columns.out, plan.columns, self.p.columns)
        self.lane = T.ramp(0, 1, self.lanes)
        self.n: Any = None
        self.block: Any = None
        self.segments: list[tuple[Any, Any]] = []

    def emit(self) -> None:
        """Emit the loops over images, blocks of outputs and shares of them, rows, and tiles of columns."""
        p, parts, blocks = self.p, self.plan.parts, -(-self.work.y.shape[1] // self.lanes)
        with parallel(p.images * blocks * parts, self.machine, one_core(self.work, self.machine)) as piece:
            part, unit = piece % parts, piece // parts
            self.n, self.block = unit // blocks, unit % blocks
            self._find_segments()
            whole_row = 0, tiles(self.columns)
            rows, columns = ((0, 1), share(part, parts, whole_row[1])) if p.rows.out == 1 else (share(part, parts, p.rows.out), whole_row)
            with _serial(*rows) as row:
                for run in self.columns:
                    with _serial(_max(columns[0], run.first), _min(columns[1], run.last)) as tile:
                        self._tile(row, run.position(tile), run)

    def _tile(self, row: Any, column: Any, run: Run) -> None:
        p, lanes = self.p, self.lanes
        sums = [T.alloc_buffer((lanes,), "float32") for _ in range(run.size)]
        for total in sums:
            store(total, [self.lane], T.broadcast(T.float32(0), lanes))
        uses = _uses(run, p.columns)
        with _serial(*p.rows.bounds(row)) as i:
            at = p.rows.at(row, i)
            if _shuffles(self.work):
                for c in range(self.inner):
                    self._step(sums, uses, at, column, i, c)
            else:
                with T.serial(0, self.inner) as c:
                    self._step(sums, uses, at, column, i, c)
        for j, total in enumerate(sums):
            image, y_row, y_column = p.place(self.n, row, column + j)
            with T.vectorized(0, lanes) as lane:
                index = [image, self.block, y_row, y_column]
                write(self.y, self.work.y, [*index, lane], finish(self.epilogue, self.operands, self.work.y, total[lane], index, lane))

    def _step(self, sums: list[Any], uses: dict[int, list[tuple[int, int]]], row: Any, column: Any, i: Any, c: Any) -> None:
        """Emit the products of channel ``c`` of all groups with row ``i`` of their kernels."""
        first = column * self.p.columns.stride - self.p.columns.pad
        for offset, taps in uses.items():
            x = T.bind(self._spread(c, *self.p.place(self.n, row, first + offset)))
            for j, k in taps:
                store(sums[j], [self.lane], sums[j][self.lane] + x * self.weights[self.block, i, c, k, self.lane])

    # -- vectors of input elements -----------------------------------------------------------------------------------------

    def _find_segments(self) -> None:
        """Find the groups that the block's lanes belong to, and from which lane on."""
        if _shuffles(self.work):
            return
        first = T.bind(self.block * self.lanes // self.outer)
        for s in range(_segments(self.work)):
            mine = self.lane >= T.broadcast((first + s) * self.outer - self.block * self.lanes, self.lanes)
            self.segments.append((T.bind(tirx.min(first + s, self.work.groups - 1)), mine))

    def _spread(self, c: Any, n: Any, row: Any, column: Any) -> Any:
        """Return the vector of channel ``c`` of the group of each lane."""
        if not _shuffles(self.work):
            (group, _), *others = self.segments
            value = T.broadcast(self._element(group * self.inner + c, n, row, column), self.lanes)
            for group, mine in others:
                value = tirx.Select(mine, T.broadcast(self._element(group * self.inner + c, n, row, column), self.lanes), value)
            return value
        span = self.lanes // self.outer * self.inner  # the channels of the input that belong to a block of outputs
        if span <= self.lanes:
            first = self.block * span
            if span == 1:
                return T.broadcast(self._element(first, n, row, column), self.lanes)
            # TVM wants no fewer lanes than it chooses
            vectors = [self.x[n, first // self.lanes, row, column, T.ramp(first % self.lanes, 1, span)]] * (self.lanes // span)
        else:
            # groups beyond the last one have no input
            last, count = int(self.x.shape[1]) - 1, span // self.lanes
            vectors = [self.x[n, tirx.min(self.block * count + b, last), row, column, self.lane] for b in range(count)]
        return tirx.Shuffle(vectors, [lane // self.outer * self.inner + c for lane in range(self.lanes)])

    def _element(self, channel: Any, n: Any, row: Any, column: Any) -> Any:
        if self.work.x.block == 1:
            return self.x[n, channel, row, column]
        return self.x[n, channel // self.lanes, row, column, channel % self.lanes]


def _uses(run: Run, axis: Any) -> dict[int, list[tuple[int, int]]]:
    """Return, for each column of the input that a tile reaches, counted from its first, the (column of the tile, tap) that use it."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for j, reach in enumerate(run.reach):
        for k, inside in enumerate(reach):
            if inside:
                uses.setdefault(j * axis.stride + k * axis.dilation, []).append((j, k))
    return dict(sorted(uses.items()))


def _max(a: Any, b: int) -> Any:
    return max(a, b) if isinstance(a, int) else tirx.max(a, b)


def _min(a: Any, b: int) -> Any:
    return min(a, b) if isinstance(a, int) else tirx.min(a, b)


@contextmanager
def _serial(begin: Any, end: Any) -> Iterator[Any]:
    """Loop over a range, which may be empty; TVM 0.27 wants loops to begin at 0."""
    extent = max(0, end - begin) if isinstance(begin, int) and isinstance(end, int) else tirx.max(0, end - begin)
    with T.serial(0, extent) as k:
        yield k + begin


# -- costs -----------------------------------------------------------------------------------------------------------------


def _code(work: Conv2D, columns: int) -> int:
    """Return the multiply-adds of the unrolled code."""
    axis = problem(work).columns
    steps = work.x.shape[1] // work.groups if _shuffles(work) else 1
    return steps * sum(len(taps) for run in cut(axis.out, columns, axis) for taps in _uses(run, axis).values())


def _seconds(work: Conv2D, columns: int, machine: Machine) -> float:
    """Return the seconds that one core takes with tiles of ``columns``."""
    p = problem(work)
    shuffles = _shuffles(work)
    loads = 1 if shuffles else _segments(work)
    latency, making = _WIDE if machine.vector_bytes == 64 else _NARROW
    making *= 1 if shuffles else 2 * loads - 1
    inner = work.x.shape[1] // work.groups
    reached = sum(sum(p.rows.inside(row)) for row in range(p.rows.out))
    slots = 0.0
    for run in cut(p.columns.out, columns, p.columns):
        uses = _uses(run, p.columns)
        products = sum(map(len, uses.values()))
        busy = max(products, loads * len(uses) + work.kernel[1]) + making * len(uses)
        waiting = products / run.size * latency
        # unrolled, the next tile begins while the sums of this one wait
        step = max(busy, math.sqrt(busy * waiting) if shuffles else waiting)
        slots += (run.last - run.first) * (reached * inner * step + p.rows.out * (2 * run.size + 6))
    slots *= p.images * -(-work.y.shape[1] // machine.lanes) * (1 + _code(work, columns) / 20000)
    return slots * machine.lanes * 2 / machine.gflops * 1e-9


def _plan(work: Conv2D, columns: int, machine: Machine) -> GroupedPlan:
    p = problem(work)
    seconds, units = _seconds(work, columns, machine), p.images * -(-work.y.shape[1] // machine.lanes)
    along = p.rows.out if p.rows.out > 1 else tiles(cut(p.columns.out, columns, p.columns))
    parts = next((k for k in (1, 2, 4, 8) if units * k % 4 == 0 or units * k >= 16), 8)
    parts = min(parts, along)
    if is_parallel(units * parts, machine, one_core(work, machine)):
        seconds = seconds / min(machine.cores, units * parts) + machine.launch
    return GroupedPlan(seconds, columns, parts)
