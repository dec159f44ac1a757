# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions: which tiles and cuts are worth trying, and what they cost.

The unit of cost is a slot: the time of one multiply-add of a vector at the core's peak, in which one vector load also fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dycl_tvm.backends.tir_cpu.words.convolution import Problem, Run, cut, largest_divisor, narrow_groups, problem, tiles
from dycl_tvm.backends.tir_cpu.words.cost import PIECE, UNEVEN, one_core, turns
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.storage import takes
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D

#: Multiply-adds of one row of the kernel from which on its taps are a loop, where the tile reaches all of them.
WIDE_TAPS = 300

#: Vector instructions of a kernel's unrolled code.
_CODE = 2000

#: Slots from a multiply-add to the next on its sum, for pipelines of two of 256 bits and of one of 512 bits a cycle.
_LATENCY, _WIDE_LATENCY = 9, 5

#: Bytes a second that a core reads from the cache that cores share, over its bandwidth from memory.
_SHARED_CACHE = 2.5

#: Slots that a vector of weights takes at least if a tile's weights do not stay in the first cache.
_STREAMED = 3

#: What few registers cost where neighbouring taps share elements and LLVM merges their loops (measured on AVX2, 3x3).
_SPILLS = 1.25

_MOST_PLANS = 12


@dataclass(frozen=True)
class DirectPlan(Plan):
    """How a direct convolution is cut.

    Attributes
    ----------
    blocks, rows, columns : int
        Of a tile of outputs.
    interleaved : int
        1: lanes outside and taps inside.
    inputs : int
        Blocks of inputs that are summed at a time; 0: all.
    copy : int
        1: a piece reads a padded copy of its rows.
    output_parts, parts : int
        Parts of the outputs and of the positions.
    ahead : int
        Vectors of weights that are asked for in advance; 0: none.
    """

    blocks: int
    rows: int
    columns: int
    interleaved: int
    inputs: int
    copy: int
    output_parts: int
    parts: int
    ahead: int


@dataclass(frozen=True)
class _Tile:
    blocks: int
    rows: int
    columns: int
    interleaved: bool
    copy: bool

    @property
    def sums(self) -> int:
        return self.blocks * self.rows * self.columns


def unrolled_lanes(p: Problem, sums: int) -> tuple[int, int | None]:
    """Return how many lanes a loop over a block of inputs handles at a time, and how many there are (None: it depends on the block)."""
    if p.inputs > 1 and p.channels % p.block:
        return 1, None
    lanes = min(p.block, p.channels)
    return largest_divisor(lanes, max(1, 80 // sums)), lanes


def direct_plans(work: Conv2D, machine: Machine) -> list[DirectPlan]:
    """Return the plans of a float32 convolution, best estimate first; [] if its groups are no whole blocks or its layouts are others."""
    if not takes(work.dtypes, halves="y") or work.y.block != machine.lanes or not work.macs:
        return []
    if work.x.block not in (1, machine.lanes) or narrow_groups(work):
        return []
    p = problem(work)
    costs: list[tuple[float, _Tile]] = []
    for copy in (False, True):
        found = [(_slots(p, t, machine), t) for t in _tiles(p, machine, copy) if copy or _code(p, t) <= _CODE]
        costs.extend(sorted(found, key=lambda c: c[0])[: _MOST_PLANS - 4])
        if costs:
            break
    second = machine.lanes * 2 / machine.gflops * 1e-9
    plans = [plan for slots, tile in costs for plan in _cuts(work, p, tile, slots * second, machine)[:1]]
    _, best = costs[0]
    plans += _cuts(work, p, best, costs[0][0] * second, machine)[1:2]
    streamed = p.reduction * best.blocks * machine.vector_bytes
    if streamed * tiles(cut(p.outputs, best.blocks)) > machine.l2:  # the estimate says nothing for these two: they are there to be measured
        plans.append(replace(plans[0], seconds=plans[0].seconds * 1.01, ahead=64))
    if streamed > machine.l1 and p.inputs > 1 and not p.flat:
        chunk = max(1, machine.l1 // 2 * p.inputs // streamed)
        plans.append(replace(plans[0], seconds=plans[0].seconds * 1.02, inputs=chunk))
    return sorted(plans, key=lambda plan: plan.seconds)[:_MOST_PLANS]


def _tiles(p: Problem, machine: Machine, copy: bool) -> Iterator[_Tile]:
    """Yield the tiles that fit into the registers, next to a vector of weights a block and one element; small ones if none is larger."""
    most_rows = 1 if copy else min(p.rows.out, 4)
    enough = min(p.outputs * most_rows * p.columns.out, machine.registers // 4)
    for blocks in range(1, min(p.outputs, machine.registers - 4) + 1):
        room = (machine.registers - 1 - blocks) // blocks
        for rows in range(1, min(most_rows, room) + 1):
            if rows > 1 and p.columns.out * rows > room and p.columns.out > 8:
                break  # several rows are for images narrower than a tile
            counts = {-(-p.columns.out // c) for c in range(1, room // rows + 1)}
            for columns in sorted({-(-p.columns.out // n) for n in counts}):
                sums = blocks * rows * columns
                if sums * 4 < machine.registers and sums < enough:
                    continue
                yield _Tile(blocks, rows, columns, False, copy)
                # compilers keep the elements that taps share in registers, too: the more, the wider the kernel
                kept = 4 if machine.registers <= 16 else 8 if p.columns.kernel <= 3 else 12
                if p.columns.kernel > 1 and sums + blocks + kept <= machine.registers:
                    yield _Tile(blocks, rows, columns, True, copy)


def _axes(p: Problem, t: _Tile) -> tuple[list[Run], list[Run], list[Run]]:
    rows = [Run(0, p.rows.out, 0, 1)] if t.rows == 1 else cut(p.rows.out, t.rows, p.rows)
    return cut(p.outputs, t.blocks), rows, cut(p.columns.out, t.columns, None if t.copy else p.columns)


def _code(p: Problem, t: _Tile) -> int:
    """Return the vector instructions of the unrolled code."""
    outputs, rows, columns = _axes(p, t)
    unroll, _ = unrolled_lanes(p, t.sums * (p.columns.kernel if t.interleaved else 1))
    taps = p.columns.kernel * (p.rows.kernel if t.rows > 1 else 1)
    if t.copy and p.columns.kernel * t.sums > WIDE_TAPS:
        taps = 1
    return sum(o.size * r.size * c.size * taps * unroll for o in outputs for r in rows for c in columns)


def _slots(p: Problem, t: _Tile, machine: Machine) -> float:
    """Return the slots of all of the work, on one core with all data in its caches."""
    outputs, rows, columns = _axes(p, t)
    latency = _WIDE_LATENCY if machine.vector_bytes > 32 else _LATENCY
    kernel_rows, kernel_columns = range(p.rows.kernel), range(p.columns.kernel)
    total = 0.0
    for row in rows:
        # (how often, positions of the tile that a row of the kernel reaches)
        if t.rows == 1:
            first, last = p.rows.interior
            inside = max(0, min(last, p.rows.out) - max(first, 0))
            edge = [k for k in range(p.rows.out) if not first <= k < last]
            reached = [(inside * p.rows.kernel + sum(sum(p.rows.inside(k)) for k in edge), 1)]
        else:
            reached = [((row.last - row.first), sum(at[i] for at in row.reach)) for i in kernel_rows]
        for column in columns:
            repeats = column.last - column.first
            width = [column.size if t.copy else sum(at[k] for at in column.reach) for k in kernel_columns]
            for out in outputs:
                number = repeats * (out.last - out.first)
                sums = out.size * row.size * column.size
                unroll, _ = unrolled_lanes(p, sums * (p.columns.kernel if t.interleaved else 1))
                stream = _STREAMED * out.size * (p.reduction * out.size * machine.vector_bytes > machine.l1)
                for times, height in reached:
                    taps = [max(height * w * out.size, height * w + out.size, stream) for w in width if w and height]
                    if t.interleaved:
                        step = max(sum(taps), latency * len(taps)) + 2 / unroll
                    else:
                        # one tap's sums wait for each other only, and each tap is a loop
                        step = sum(max(slots, latency + 1) + 2 / unroll + 4 / p.block for slots in taps)
                        if len(width) > 1 and p.columns.stride == 1 and machine.registers <= 16:
                            step *= _SPILLS
                    total += number * times * (p.channels * step + 8 * p.inputs)
                total += number * (row.last - row.first) * (3 * sums + 20)
    return total * p.groups * p.images + (p.groups * p.inputs * p.rows.size * p.columns.size * p.block * p.images if t.copy else 0)


def _cuts(work: Conv2D, p: Problem, t: _Tile, seconds: float, machine: Machine) -> list[DirectPlan]:
    """Return plans with this tile for different parallel pieces, best first."""
    outputs, rows, columns = _axes(p, t)
    along = tiles(rows if p.rows.out > 1 else columns)
    across = p.groups if p.groups > 1 else tiles(outputs)
    weights = p.groups * p.outputs * p.reduction * machine.vector_bytes
    plans = []
    most = max(4, 4 * machine.cores)
    for parts in sorted({min(along, k) for k in (1, 2, 4, 8, most)}):
        for output_parts in sorted({min(across, k) for k in (1, 2, 4, 8, most)}):
            pieces = parts * output_parts * p.images
            if t.copy and p.rows.out == 1 and parts > 1:
                continue
            if parts * output_parts > most or (parts * output_parts > 1 and pieces > 8 * most):
                continue
            busy = turns(pieces, p.images, [(along, parts), (across, output_parts)], machine)
            fits = work.x.nbytes / p.images / parts < machine.l2 / 2
            traffic = weights * parts * p.images if weights / output_parts > machine.l2 / 2 else weights * machine.cores
            traffic += work.x.nbytes * (output_parts if fits else tiles(outputs))
            moved = traffic / machine.cores / (machine.bandwidth * 1e9 * _SHARED_CACHE)
            serial = one_core(work, machine) <= 3 * machine.launch or pieces == 1
            cost = seconds if serial else max(seconds * busy, moved) + 0.1 * moved + machine.launch
            # a piece's own cost, and that threads of other numbers than `cores` share them well
            cost += (pieces - 1) * PIECE + (UNEVEN * seconds / pieces)
            plans.append(DirectPlan(cost, t.blocks, t.rows, t.columns, int(t.interleaved), 0, int(t.copy), output_parts, parts, 0))
    return sorted(plans, key=lambda plan: plan.seconds)
