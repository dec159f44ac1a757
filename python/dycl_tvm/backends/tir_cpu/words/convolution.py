# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Direct convolutions as index arithmetic: which blocks of channels belong together, how an axis is cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from dycl_tvm.backends.tir_cpu.words.workload import Conv2D

#: What a tile's positions reach: for each position and each kernel position, whether it lies inside the input.
Reach = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Run:
    """Like tiles that follow each other on an axis: tiles ``first`` to ``last`` (excluded), all of ``size`` positions.

    ``start`` is the first tile's position; ``reach`` holds for each tile of the run.
    """

    first: int
    last: int
    start: int
    size: int
    reach: Reach = ()

    def position(self, tile: Any) -> Any:
        """Where the tile of this index starts."""
        return self.start + (tile - self.first) * self.size


def cut(extent: int, tile: int, axis: Axis | None = None) -> list[Run]:
    """Cut an axis into tiles of nearly equal size, at most ``tile``, and collect like ones in runs.

    With ``axis`` tiles are alike only if they reach the same taps.
    """
    count = -(-extent // tile)
    small, large = extent // count, extent % count
    interior = (0, extent) if axis is None else axis.interior
    found: list[Run] = []
    k = start = 0
    while k < count:
        size, same = (small + 1, large - k) if k < large else (small, count - k)
        if start >= interior[0] and start + size <= interior[1]:
            same = min(same, (interior[1] - start) // size)
            own: Reach = ((True,) * axis.kernel,) * size if axis is not None else ()
        else:
            assert axis is not None
            same, own = 1, tuple(axis.inside(start + j) for j in range(size))
        if found and (found[-1].size, found[-1].reach) == (size, own):
            found[-1] = Run(found[-1].first, k + same, found[-1].start, size, own)
        else:
            found.append(Run(k, k + same, start, size, own))
        k, start = k + same, start + same * size
    return found


def tiles(runs: list[Run]) -> int:
    """Number of tiles of an axis."""
    return runs[-1].last


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution."""

    size: int
    out: int
    kernel: int
    stride: int
    pad: int
    dilation: int

    def at(self, out: Any, k: Any) -> Any:
        """The input's position under kernel position ``k`` of an output position; below 0 or beyond ``size`` in the padding."""
        return out * self.stride + k * self.dilation - self.pad

    def inside(self, out: int) -> tuple[bool, ...]:
        """For each kernel position, whether it lies inside the input."""
        return tuple(0 <= self.at(out, k) < self.size for k in range(self.kernel))

    @property
    def interior(self) -> tuple[int, int]:
        """The range of output positions that reach all taps."""
        return -(-self.pad // self.stride), (self.size - 1 + self.pad - (self.kernel - 1) * self.dilation) // self.stride + 1

    @property
    def padded(self) -> bool:
        """Whether any output position reaches into the padding."""
        return self.at(0, 0) < 0 or self.at(self.out - 1, self.kernel - 1) >= self.size

    def bounds(self, out: Any) -> tuple[Any, Any]:
        """The range of kernel positions that lie inside the input (the end may lie below the begin)."""
        first = -self.at(out, 0)
        if not self.padded:
            return 0, self.kernel
        ceil = lambda a: tirx.floordiv(a + self.dilation - 1, self.dilation)  # noqa: E731
        return tirx.max(0, ceil(first)), tirx.min(self.kernel, ceil(self.size + first))


@dataclass(frozen=True)
class Problem:
    """A convolution between blocks of channels.

    A pointwise convolution has one row of all positions (of all images, if an image is one position).

    Attributes
    ----------
    groups : int
    inputs, outputs : int
        Blocks of channels a group; for whole blocks (:func:`narrow_groups`) only.
    channels : int
        Input channels a group.
    block, lanes : int
        Channels a block of the input (1: plain) and of the output.
    images : int
    rows, columns : Axis
    flat : str
        ``""``, ``"image"`` or ``"batch"``: what the one row spans.
    """

    groups: int
    inputs: int
    outputs: int
    channels: int
    block: int
    lanes: int
    images: int
    rows: Axis
    columns: Axis
    flat: str
    width: int

    @property
    def reduction(self) -> int:
        """Weight vectors of one block of outputs."""
        return self.inputs * self.block * self.rows.kernel * self.columns.kernel

    def place(self, n: Any, row: Any, column: Any) -> tuple[Any, Any, Any]:
        """Image, row and column in the arrays."""
        if self.flat == "batch":
            return column, 0, 0
        if self.flat:
            return n, tirx.floordiv(column, self.width), tirx.floormod(column, self.width)
        return n, row, column


def problem(work: Conv2D, apart: bool = False) -> Problem:
    """Return the convolution as one between blocks; rows of a pointwise one stay ``apart`` where that is asked for."""
    (n, c, h, w), (_, oc, oh, ow) = work.x.shape, work.y.shape
    block, lanes = work.x.block, work.y.block
    c_group, oc_group = c // work.groups, oc // work.groups
    rows, columns = (
        Axis(size, out, k, s, p, d)
        for size, out, k, s, p, d in zip((h, w), (oh, ow), work.kernel, work.stride, work.padding, work.dilation)
    )
    flat = ""
    if work.kernel == (1, 1) and work.stride == (1, 1) and not any(work.padding) and not apart:
        flat = "batch" if h * w == 1 else "image"
        size = n if flat == "batch" else h * w
        rows, columns, n = Axis(1, 1, 1, 1, 0, 1), Axis(size, size, 1, 1, 0, 1), 1 if flat == "batch" else n
    inputs, outputs = -(-c_group // block), -(-oc_group // lanes)
    return Problem(work.groups, inputs, outputs, c_group, block, lanes, n, rows, columns, flat, w)


def narrow_groups(work: Conv2D) -> bool:
    """Whether there are several groups and they are no whole blocks of the input and of the output."""
    return work.groups > 1 and any(t.shape[1] // work.groups % t.block > 0 for t in (work.x, work.y))


def share(part: Any, parts: int, count: int) -> tuple[Any, Any]:
    """Return begin and end of one of ``parts`` nearly equal parts of ``count`` things."""
    if parts == 1:
        return 0, count
    if count % parts == 0:
        return part * (count // parts), (part + 1) * (count // parts)
    return tirx.floordiv(part * count, parts), tirx.floordiv((part + 1) * count, parts)


def largest_divisor(n: int, limit: int) -> int:
    """Return the largest divisor of ``n`` up to ``limit`` (at least 1)."""
    return next(d for d in range(max(1, min(n, limit)), 0, -1) if n % d == 0)
