# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions that read a padded copy of their input, rounded to the type of their factors.

A piece (a band of output positions of an image) copies the input that it reaches, zeros around it, so that all tiles of outputs are
alike and each factor is rounded once, not once a tap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.convolution import Axis, Run, cut, problem, share, tiles
from dycl_tvm.backends.tir_cpu.words.cost import shared_pieces, turns
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Epilogue

#: The share of L2 that a piece's copy may take.
_COPY_SHARE = 2


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

    def __init__(self, work: Conv2D, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any) -> None:
        self.work, self.machine, self.epilogue = work, machine, epilogue
        self.x, self.weights, self.operands, self.y = x, weights, operands, y
        self.p = problem(work)

    @abstractmethod
    def put(self, c: Any, i: Any, j: Any, values: Any = None) -> None:
        """Emit the store of a block of channels, rounded, at a place of the copy; by default of zeros."""

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

    def round(self, g: Any) -> None:
        """Emit the copy of what the piece reaches of a group of the input."""
        p, rows, columns = self.p, self.rows, self.columns

        def zeros(c: Any, i: Any, begin: Any, end: Any) -> None:
            with T.serial(0, end - begin) as j:
                self.put(c, i, begin + j)

        def row_of_input(c: Any, i: Any) -> None:
            zeros(c, i, 0, columns.inside)
            with T.serial(0, tirx.max(0, columns.outside - columns.inside)) as j:
                at = columns.inside + j
                row, column = rows.source + i * rows.source_step, columns.source + at * columns.source_step
                image, row, column = p.place(self.n, row, column)
                self.put(c, i, at, self.x[image, g * p.inputs + c, row, column, T.ramp(0, 1, p.block)])
            zeros(c, i, tirx.max(columns.inside, columns.outside), columns.extent)

        with T.serial(0, p.inputs) as c:
            with T.serial(0, rows.inside) as i:
                zeros(c, i, 0, columns.extent)
            with T.serial(0, tirx.max(0, rows.outside - rows.inside)) as i:
                row_of_input(c, rows.inside + i)
            with T.serial(0, rows.extent - tirx.max(rows.inside, rows.outside)) as i:
                zeros(c, tirx.max(rows.inside, rows.outside) + i, 0, columns.extent)


class TiledCopy(PaddedCopy):
    """Writes one kernel whose tiles of outputs, blocks of channels x rows x columns, are summed in registers.

    Parameters
    ----------
    work, machine, epilogue, x, weights, operands, y
        As of :class:`PaddedCopy`.
    blocks : int
        Blocks of channels of a tile.
    """

    def __init__(
        self, work: Conv2D, machine: Machine, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any, blocks: int
    ) -> None:
        super().__init__(work, machine, epilogue, x, weights, operands, y)
        self._blocks = blocks

    @abstractmethod
    def tile(self, block: Any, blocks: int, height: int, row: Any, width: int, column: Any) -> None:
        """Emit a tile: ``blocks`` of outputs from ``block`` on, ``height`` x ``width`` positions from (``row``, ``column``) on."""

    def group(self, g: Any, span: tuple[Any, Any]) -> None:
        """See :class:`PaddedCopy`."""
        self.round(g)
        for out in cut(self.p.outputs, self._blocks):
            low, high = tirx.max(span[0], out.first), tirx.min(span[1], out.last)
            with T.serial(0, tirx.max(0, high - low)) as t:
                block = g * self.p.outputs + out.position(low + t)
                for rows, row in self.rows.each():
                    for columns, column in self.columns.each():
                        self.tile(block, out.size, rows.size, row, columns.size, column)


@dataclass(frozen=True)
class CopyCosts:
    """What a kernel with tiles of one size costs.

    Attributes
    ----------
    clock : float
        Cycles in a second.
    computing : float
        Cycles of all tiles on one core.
    copying : float
        Cycles to copy a block of channels at one place.
    place_bytes : int
        Bytes of the copy of a block at one place.
    weight_bytes : float
    serial : bool
        Whether there is too little work for threads.
    """

    clock: float
    computing: float
    copying: float
    place_bytes: int
    weight_bytes: float
    serial: bool


def piece_choices(work: Conv2D, tile: tuple[int, int, int], costs: CopyCosts, machine: Machine) -> list[tuple[float, int, int]]:
    """Return (seconds, parts of the outputs, parts of the positions) for different pieces; a tile is (blocks, rows, columns)."""
    p = problem(work)
    axis, size = (p.rows, tile[1]) if p.rows.out > 1 else (p.columns, tile[2])
    along = -(-axis.out // size)
    across = p.groups if p.groups > 1 else -(-p.outputs // tile[0])
    other = p.columns if p.rows.out > 1 else p.rows
    weights = costs.weight_bytes
    found = []
    for parts in sorted({min(along, 1 << k) for k in range(8)}):
        places = _reach(axis, -(-along // parts) * -(-axis.out // along)) * _reach(other, other.out)
        fits = costs.place_bytes * p.inputs * places <= machine.l2 // _COPY_SHARE
        for output_parts in sorted({min(across, k) for k in (1, 2, 4, 8)}):
            pieces = parts * output_parts * p.images
            if pieces > 1 and parts * output_parts > 8 * machine.cores and (fits and output_parts > 1):
                continue
            copies = places * p.inputs * p.groups * pieces / (output_parts if p.groups > 1 else 1) * costs.copying / costs.clock
            passes = parts * p.images if weights / output_parts > machine.l2 / 2 else machine.cores
            moved = weights * passes / machine.stream_rate(weights) if weights > machine.l2 / 2 else 0.0
            alone = max(costs.computing / costs.clock, moved) + 0.1 * moved + copies
            if not fits:
                alone *= 1.1
            busy = turns(pieces, p.images, [(along, parts), (across, output_parts)], machine)
            found.append((shared_pieces(alone, pieces, busy, costs.serial, machine), output_parts, parts))
    return found


def _reach(axis: Axis, positions: int) -> int:
    """Return how many places of the copy so many positions of an axis reach."""
    return (positions - 1) * (1 if axis.kernel == 1 else axis.stride) + (axis.kernel - 1) * axis.dilation + 1
