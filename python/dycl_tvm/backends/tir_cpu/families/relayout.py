# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Between plain and packed layouts: tiles of lanes by lanes elements are transposed in registers.

A transposition of L vectors of L lanes takes log2(L) rounds; round k interleaves vectors 2^k apart. That is L log2(L) shuffles, all
of them between two registers, for L^2 elements.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.tiles import block_of
from dycl_tvm.backends.tir_cpu.words.workload import Tensor


def kernel(source: Tensor, target: Tensor, machine: Machine) -> Any:
    """Return the PrimFunc (source array, target array) that changes the layout of a tensor.

    Parameters
    ----------
    source, target : Tensor
        The same tensor of at least two dimensions, with different layouts, one of them plain.
    machine : Machine
    """
    if source.shape != target.shape or source.dtype != target.dtype or min(source.block, target.block) != 1:
        raise ValueError(f"{source} is not {target} in another layout")
    work = _Relayout(source, target, machine)
    return prim_func([("x", source.physical, source.dtype), ("y", target.physical, target.dtype)], work.body)


class _Relayout:
    """One kernel; spatial dimensions are taken as one."""

    def __init__(self, source: Tensor, target: Tensor, machine: Machine) -> None:
        self.packing = target.block > 1
        self.source, self.target = source, target
        self.block = max(source.block, target.block)
        self.batch, self.channels, *spatial = source.shape
        self.points = math.prod(spatial)
        self.blocks = -(-self.channels // self.block)
        self.dtype, self.machine = source.dtype, machine
        self.seconds = (source.nbytes + target.nbytes) / 30e9
        power = self.block & (self.block - 1) == 0
        self.tiled = self.points >= self.block and power and source.dtype == "float32"

    def _flat(self, buffer: Any, tensor: Tensor) -> Any:
        """Return a view of an array in which a vector lies in the last dimension."""
        lead = (self.batch,) if tensor.block == 1 else (self.batch, self.blocks)
        return T.decl_buffer((*lead, math.prod(tensor.physical) // math.prod(lead)), tensor.dtype, data=buffer.data)

    def body(self, x: Any, y: Any) -> None:
        """Emit the loops."""
        x, y = self._flat(x, self.source), self._flat(y, self.target)
        tiles = -(-self.points // self.block) if self.tiled else self.points
        rows = self.batch * self.blocks
        pieces = next((p for p in (1, 2, 4, 8) if rows * p % 4 == 0 or rows * p >= 16), 8)
        pieces = min(pieces, tiles)
        share = -(-tiles // pieces)
        with parallel(rows * pieces, self.machine, self.seconds) as piece:
            row, first = piece // pieces, piece % pieces * share
            n, cb = row // self.blocks, row % self.blocks
            with T.serial(0, share) as k:
                tile = first + k
                if share * pieces > tiles:
                    with T.If(tile < tiles):
                        with T.Then():
                            self._blocks(x, y, n, cb, tile)
                else:
                    self._blocks(x, y, n, cb, tile)

    def _blocks(self, x: Any, y: Any, n: Any, cb: Any, tile: Any) -> None:
        emit = self._tile if self.tiled else self._point
        block_of(cb, self.channels, self.block, lambda at, count: emit(x, y, n, at, tile, count))

    def _tile(self, x: Any, y: Any, n: Any, cb: Any, tile: Any, channels: int) -> None:
        """Move a tile of ``channels`` rows. The last tile of a row overlaps the one before it, so all are whole."""
        width = self.block
        start = tile * width
        if self.points % width:
            start = tirx.min(start, self.points - width)
        plain = [self._row(cb * width + c) + start for c in range(channels)]
        packed = [(start + c) * width for c in range(width)]
        if self.packing:
            zero = tirx.Broadcast(tirx.const(0, self.dtype), width)
            rows = [x[n, tirx.Ramp(plain[c], 1, width)] if c < channels else zero for c in range(width)]
        else:
            rows = [x[n, cb, tirx.Ramp(p, 1, width)] for p in packed]
        columns = _transposed([T.bind(r) for r in rows])
        if self.packing:
            for p, column in zip(packed, columns):
                T.buffer_store(y, column, [n, cb, tirx.Ramp(p, 1, width)])
        else:
            for p, column in zip(plain, columns):
                T.buffer_store(y, column, [n, tirx.Ramp(p, 1, width)])

    def _point(self, x: Any, y: Any, n: Any, cb: Any, point: Any, channels: int) -> None:
        """Move one spatial point: images of few points."""
        with T.serial(0, channels) as c:
            at = self._row(cb * self.block + c) + point
            if self.packing:
                store(y, [n, cb, point * self.block + c], x[n, at])
            else:
                store(y, [n, at], x[n, cb, point * self.block + c])
        if self.packing and channels < self.block:
            with T.serial(0, self.block - channels) as c:
                store(y, [n, cb, point * self.block + channels + c], tirx.const(0, self.dtype))

    def _row(self, channel: Any) -> Any:
        return channel * self.points


def _transposed(rows: list[Any]) -> list[Any]:
    """Return the columns of L vectors of L lanes, L a power of two."""
    width = len(rows)
    step = 1
    while step < width:
        # in lanes whose number has this bit, take the partner's element: a block transpose of 2 x 2 blocks of step lanes
        low = [k if not k & step else width + k - step for k in range(width)]
        high = [k + step if not k & step else width + k for k in range(width)]
        done = list(rows)
        for r in range(width):
            if not r & step:
                pair = [rows[r], rows[r + step]]
                done[r] = T.bind(tirx.Shuffle(pair, low))
                done[r + step] = T.bind(tirx.Shuffle(pair, high))
        rows = done
        step *= 2
    return rows
