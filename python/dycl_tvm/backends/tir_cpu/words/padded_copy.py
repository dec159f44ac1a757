# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions that read a padded copy of their input, rounded to the type of their factors.

A piece (a band of output positions of an image) copies the input that it reaches, its border around it, so that all tiles of outputs are
alike and each factor is rounded once, not once a tap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import Axis, Run, cut, problem, share, tiles
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Epilogue


class Band:
    """The positions of one axis that a piece computes, and the part of the input that they reach, as it lies in the copy."""

    def __init__(self, axis: Axis, tile: int, part: Any, parts: int) -> None:
        self.axis, self.runs = axis, cut(axis.out, tile)
        count = tiles(self.runs)
        self.begin, self.end = share(part, parts, count)
        # a kernel of one tap skips what lies between strides
        self.source_step, self.step = (axis.stride, 1) if axis.kernel == 1 else (1, axis.stride)
        small, large = divmod(axis.out, count)
        self.first = self.begin * small + (tirx.min(self.begin, large) if large and parts > 1 else 0)
        longest = axis.out if parts == 1 else -(-count // parts) * (small + bool(large))
        self.extent = (longest - 1) * self.step + (axis.kernel - 1) * axis.dilation + 1
        self.source = axis.at(self.first, 0)
        # places of the copy in [inside, outside) lie in the input
        ceil = -tirx.floordiv(self.source, self.source_step) if parts > 1 else -(self.source // self.source_step)
        last = axis.size - 1 - self.source
        end = (tirx.floordiv(last, self.source_step) if parts > 1 else last // self.source_step) + 1
        self.inside = self.clip(ceil)
        self.outside = self.clip(end)

    def clip(self, place: Any) -> Any:
        if isinstance(place, int):
            return min(max(place, 0), self.extent)
        return tirx.min(tirx.max(place, 0), self.extent)

    def each(self) -> Iterator[tuple[Run, Any]]:
        """Yield runs of like tiles with the first position of a tile, inside the loop over the run's tiles in the band."""
        for run in self.runs:
            if isinstance(self.begin, int) and isinstance(self.end, int):
                low, high = max(self.begin, run.first), min(self.end, run.last)
                extent: Any = max(0, high - low)
            else:
                low, high = tirx.max(self.begin, run.first), tirx.min(self.end, run.last)
                extent = tirx.max(0, high - low)
            with T.serial(0, extent) as t:
                yield run, run.position(low + t)


class PaddedCopy(ABC):
    """Writes one kernel."""

    #: The band that a piece computes, and its image.
    rows: Band
    columns: Band
    n: Any
    #: How many blocks of channels are copied side by side, place by place: those that share a line of the copy's memory.
    together: int = 1

    def __init__(self, work: Conv2D, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any) -> None:
        self.work, self.machine, self.epilogue = work, machine, epilogue
        self.x, self.weights, self.operands, self.y = x, weights, operands, y
        self.p = problem(work)

    @abstractmethod
    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """Emit the store of a block of channels, rounded, at a place of the copy; by default of the border."""

    @abstractmethod
    def group(self, g: Any, span: tuple[Any, Any]) -> None:
        """Emit a span of the tiles of outputs of a group, and before it the copy (:meth:`round`)."""

    def take(self, piece: Any, parts: int, rows: int, columns: int) -> Any:
        """Take the image and the band of a piece, with tiles of so many rows and columns; return its part of the outputs."""
        p = self.p
        self.n = tirx.floormod(tirx.floordiv(piece, parts), p.images)
        part, out_part = tirx.floormod(piece, parts), tirx.floordiv(piece, parts * p.images)
        along_rows = p.rows.out > 1
        self.rows = Band(p.rows, rows, part if along_rows else 0, parts if along_rows else 1)
        self.columns = Band(p.columns, columns, 0 if along_rows else part, 1 if along_rows else parts)
        return out_part

    def groups(self, out_part: Any, out_parts: int, count: int) -> None:
        """Emit a share of the groups, or of the ``count`` tiles of outputs of the only one."""
        if self.p.groups > 1:
            begin, end = share(out_part, out_parts, self.p.groups)
            with T.serial(0, end - begin) as g:
                self.group(begin + g, (0, count))
        else:
            self.group(0, share(out_part, out_parts, count))

    def span(self, g: Any, blocks: Sequence[Any], i: Any, begin: Any, count: Any) -> None:
        """Emit the copy of ``count`` places of a row of blocks of the input, from ``begin`` on."""
        with T.serial(0, count) as j:
            image, row, column = self.source(i, begin + j)
            for c in blocks:
                self.put(c, i, begin + j, self.x[image, g * self.p.inputs + c, row, column, T.ramp(0, 1, self.p.block)])

    def source(self, i: Any, j: Any) -> tuple[Any, Any, Any]:
        """Return the image, row and column of the input that a place of the copy holds."""
        rows, columns = self.rows, self.columns
        return self.p.place(self.n, rows.source + i * rows.source_step, columns.source + j * columns.source_step)

    def round(self, g: Any) -> None:
        """Emit the copy of what the piece reaches of a group of the input."""
        full, left = divmod(self.p.inputs, self.together)
        for first, times, side_by_side in ((0, full, self.together), (self.p.inputs - left, 1, left)):
            if times and side_by_side:
                with T.serial(0, times) as t:
                    self.blocks(g, [first + t * side_by_side + k for k in range(side_by_side)])

    def blocks(self, g: Any, blocks: Sequence[Any]) -> None:
        """Emit the copy of some blocks of channels of a group."""
        rows, columns = self.rows, self.columns

        def around(i: Any, begin: Any, end: Any) -> None:
            with T.serial(0, end - begin) as j:
                for c in blocks:
                    self.put(c, i, begin + j)

        with T.serial(0, rows.inside) as i:
            around(i, 0, columns.extent)
        with T.serial(0, tirx.max(0, rows.outside - rows.inside)) as k:
            i = rows.inside + k
            around(i, 0, columns.inside)
            self.span(g, blocks, i, columns.inside, tirx.max(0, columns.outside - columns.inside))
            around(i, tirx.max(columns.inside, columns.outside), columns.extent)
        with T.serial(0, rows.extent - tirx.max(rows.inside, rows.outside)) as i:
            around(tirx.max(rows.inside, rows.outside) + i, 0, columns.extent)
