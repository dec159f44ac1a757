# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A generic CPU schedule: register tiles, vectors along contiguous memory, parallel outer loops where the work is worth it.

It takes any PrimFunc of perfect loop nests. A reduction gets a tile of output elements in registers around its reduction loops, the
vector along the output's last dimension; what follows it element by element is done while the tile is hot. Anything that a step of
the schedule refuses leaves the function as it was.
"""

from __future__ import annotations

import math
import re
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.tir_cpu.reading.stages import complexity_of
from dycl_tvm.backends.tir_cpu.words.loops import LAUNCHES, SCHEDULED
from dycl_tvm.backends.tir_cpu.words.machine import machine_of

#: Floating point operations below which a kernel stays serial (a parallel launch costs microseconds).
_PARALLEL_FLOPS = 100_000

#: Bytes of one accumulator tile: beyond this it would not stay in registers.
_TILE_BYTES = 512


def schedule(fn: Any, target: tvm.target.Target) -> Any | None:
    """Return a scheduled PrimFunc, or None if the function takes no schedule.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled, as FuseTIR leaves it.
    target : tvm.target.Target
    """
    if fn.attrs and SCHEDULED in fn.attrs:
        return fn
    try:
        return _Scheduler(fn, machine_of(target).vector_bytes).run()
    except Exception:  # a schedule primitive refuses what it cannot prove; the plain loops are correct
        return None


class _Scheduler:
    def __init__(self, fn: Any, width: int) -> None:
        self.sch = s_tir.Schedule(tvm.IRModule({"main": fn}), error_render_level="detail")
        self.width = width

    def run(self) -> Any:
        sch = self.sch
        self._inline()
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        reductions = [b for b in blocks if self._kinds(b).count("R")]
        # by name: scheduling reductions adds blocks of its own
        spatial = [sch.get(b).name_hint for b in blocks if "R" not in self._kinds(b)]
        done: set[str] = set()
        for block in reductions:
            name = sch.get(block).name_hint
            consumers = list(sch.get_consumers(block))
            epilogue = consumers[0] if len(consumers) == 1 and self._follows(block, consumers[0]) else None
            if self._reduction(block, epilogue):
                done.add(name)
                if epilogue is not None:
                    done.add(sch.get(epilogue).name_hint)
        for name in spatial:
            if name not in done:
                self._spatial(sch.get_sblock(name))
        return sch.mod["main"]

    def _kinds(self, block: Any) -> str:
        return "".join("R" if int(v.iter_type) == 2 else "S" for v in self.sch.get(block).iter_vars)

    def _extents(self, block: Any) -> list[int]:
        return [int(v.dom.extent) for v in self.sch.get(block).iter_vars]

    def _inline(self) -> None:
        """Inline what is computed element by element into its readers, except what a reduction would compute many times over.

        Nor what its reader names several times, if that makes it long: the expressions are trees, and a chain of such steps a tree of
        exponential size, of which TVM's simplification takes more than that.
        """
        sch = self.sch
        outputs = {sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))}
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            name = sch.get(block).name_hint
            if name in outputs or "R" in self._kinds(block):
                continue
            readers = sch.get_consumers(block)
            costly = any("R" in self._kinds(r) for r in readers) and not self._is_copy(block)
            if costly or (len(readers) > 1 and not self._is_copy(block)) or any(self._is_long(block, r) for r in readers):
                continue
            try:
                sch.compute_inline(block)
            except s_tir.ScheduleError:
                continue

    def _is_copy(self, block: Any) -> bool:
        """Whether a block only moves elements (padding counts as work: its condition would stand in the innermost loop)."""
        body = self.sch.get(block).body
        return isinstance(body, tirx.BufferStore) and isinstance(body.value, TensorLoad)

    def _is_long(self, block: Any, reader: Any) -> bool:
        """Whether a reader would be too long an expression with what a block computes in it."""
        node, body = self.sch.get(block), self.sch.get(reader).body
        buffer = node.writes[0].source
        inner = complexity_of(node.body)
        return complexity_of(body, lambda source: inner if source.same_as(buffer) else None).is_too_long()

    def _follows(self, block: Any, consumer: Any) -> bool:
        """Whether a block reads the result of a reduction at its own indices only."""
        sch = self.sch
        if "R" in self._kinds(consumer):
            return False
        buffer = sch.get(block).writes[0].source
        node = sch.get(consumer)
        own = [v.var for v in node.iter_vars]
        if tuple(int(s) for s in buffer.shape) != tuple(self._extents(consumer)) or not isinstance(node.body, tirx.BufferStore):
            return False
        if not _same_vars(node.body.indices, own):
            return False
        fits = True

        def visit(e: Any) -> None:
            nonlocal fits
            if isinstance(e, TensorLoad) and e.source.same_as(buffer) and not _same_vars(e.indices, own):
                fits = False

        tvm_ffi.structural_walk(node.body, visit)
        return fits

    # -- element-wise --------------------------------------------------------------------------------------------------

    def _spatial(self, block: Any) -> None:
        sch = self.sch
        loops = sch.get_loops(block)
        extents = self._extents(block)
        total = math.prod(extents)
        if not loops or total < 8:
            return
        lanes = self.width // self._item_bytes(block)
        last = extents[-1]
        factor = _divisor(last, lanes) if last >= 4 else 1
        if factor == 1 and total % lanes == 0 and self._is_flat(block):
            inner = sch.fuse(*loops)
            outer, vec = sch.split(inner, [None, lanes])
            sch.vectorize(vec)
            if total > _PARALLEL_FLOPS:
                self._parallel([outer], total)
            return
        if factor > 1:
            outer, vec = sch.split(loops[-1], [None, factor])
            sch.vectorize(vec)
            loops = [*loops[:-1], outer]
        self._parallel(loops, total)

    def _is_flat(self, block: Any) -> bool:
        """Whether all that a block touches is at its own indices."""
        node = self.sch.get(block)
        own = [v.var for v in node.iter_vars]
        fits = isinstance(node.body, tirx.BufferStore) and _same_vars(node.body.indices, own)

        def visit(e: Any) -> None:
            nonlocal fits
            if isinstance(e, TensorLoad) and not _same_vars(e.indices, own):
                fits = False

        tvm_ffi.structural_walk(node.body, visit)
        return fits

    def _item_bytes(self, block: Any) -> int:
        dtype = str(self.sch.get(block).writes[0].source.dtype)
        bits = re.search(r"\d+", dtype)
        return max(1, int(bits.group()) // 8) if bits else 1

    # -- reductions ----------------------------------------------------------------------------------------------------

    def _reduction(self, block: Any, epilogue: Any) -> bool:
        sch = self.sch
        kinds, extents = self._kinds(block), self._extents(block)
        n = kinds.count("S")
        if kinds != "S" * n + "R" * (len(kinds) - n) or n == 0 or len(sch.get(block).writes) != 1:
            return False
        spatial, reduced = extents[:n], extents[n:]
        work = 2 * math.prod(extents)
        lanes = self.width // self._item_bytes(block)
        tile = self._tile(spatial, lanes)
        if tile is None or math.prod(reduced) < 2:
            self._parallel_only(block, spatial, work)
            return True
        if epilogue is None:
            epilogue = sch.cache_write(block, 0, "global")
            # the copy out is the epilogue: the reduction now writes the cache
            epilogue = sch.get_consumers(block)[0]
        outer, inner = [], []
        for loop, size in zip(sch.get_loops(epilogue), tile):
            a, b = sch.split(loop, [None, size])
            outer.append(a)
            inner.append(b)
        sch.reorder(*outer, *inner)
        sch.compute_at(block, outer[-1], preserve_unit_loops=True)
        self._registers(inner)
        mine = sch.get_loops(block)[len(outer) :]
        spatial_loops, reduction_loops = mine[:n], mine[n:]
        sch.reorder(*reduction_loops, *spatial_loops)
        self._registers(spatial_loops)
        self._parallel(outer, work)
        sch.decompose_reduction(block, reduction_loops[0])  # last: the halves no longer count as a reduction for the other steps
        return True

    def _registers(self, loops: list[Any]) -> None:
        """Make a tile of loops straight-line vector code, so that its elements live in registers."""
        for loop in loops[:-1]:
            self.sch.unroll(loop)
        self.sch.vectorize(loops[-1])

    def _tile(self, spatial: list[int], lanes: int) -> list[int] | None:
        """Return the register tile: vectors along the last dimension, rows along the ones before it."""
        last = spatial[-1]
        vec = _divisor(last, lanes)
        if vec < lanes and last <= 2 * lanes and last >= 3:
            vec = last  # a short odd row: LLVM pads the vector
        if vec < 3:
            return None
        tile = [1] * len(spatial)
        tile[-1] = vec
        rows = max(1, _TILE_BYTES // (self.width // lanes) // max(vec, lanes) // 1)
        rows = min(rows, 12 if self.width < 64 else 24)
        order = [len(spatial) - 3, len(spatial) - 2] if len(spatial) >= 3 else [len(spatial) - 2]
        for axis in order:  # channels first: they share the loaded vector
            if axis < 0 or rows < 2:
                continue
            tile[axis] = _divisor(spatial[axis], min(rows, 8))
            rows //= tile[axis]
        if rows >= 2 and last % (2 * vec) == 0 and math.prod(tile) == vec:
            tile[-1] = vec * min(rows, _divisor(last // vec, 4))
        return tile

    def _parallel_only(self, block: Any, spatial: list[int], work: int) -> None:
        self._parallel(self.sch.get_loops(block)[: len(spatial)], work)

    def _parallel(self, loops: list[Any], work: int) -> None:
        """Run the outermost loops in parallel, as few as give enough pieces."""
        if work < _PARALLEL_FLOPS:
            return
        sch, chosen, pieces = self.sch, [], 1
        for loop in loops:
            chosen.append(loop)
            pieces *= int(sch.get(loop).extent)
            if pieces >= 16:
                break
        if pieces > 1:
            loop = sch.fuse(*chosen) if len(chosen) > 1 else chosen[0]
            sch.annotate(loop, LAUNCHES, max(1, work // _PARALLEL_FLOPS))
            sch.parallel(loop)


def _same_vars(indices: Any, own: list[Any]) -> bool:
    return len(indices) == len(own) and all(isinstance(i, tirx.Var) and i.same_as(v) for i, v in zip(indices, own))


def _divisor(n: int, at_most: int) -> int:
    """Return the largest divisor of n that is no larger than ``at_most``."""
    return max(d for d in range(1, min(n, at_most) + 1) if n % d == 0)
