# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Images of bytes in plain layout, of no more channels than a quad has, as quads: how convolutions read a camera's picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.int8 import QUAD
from dycl_tvm.backends.tir_cpu.words.padded_copy import PaddedCopy
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D


def has_planes(work: Conv2D) -> bool:
    """Whether the input is plain, and all its channels at a place are one quad of bytes."""
    return work.x.block == 1 and work.x.shape[1] <= QUAD and work.x.dtype == "uint8"


def in_blocks(work: Conv2D) -> Conv2D:
    """Return a convolution as one of a packed input."""
    return replace(work, x=replace(work.x, block=work.y.block))


def each_quads(kernel: PaddedCopy, i: Any, begin: Any, count: Any, put: Callable[[Any, int, Any], None]) -> None:
    """Emit ``put(place, width, quads)`` for ``count`` places of a row of the copy, from ``begin`` on, ``width`` at a time."""
    lanes, known = kernel.work.x.block, count.value if isinstance(count, tirx.IntImm) else count
    neighbours = kernel.columns.source_step == 1 and not kernel.p.flat
    width = lanes if neighbours and isinstance(known, int) and known >= lanes else 1
    with T.serial(0, -(-known // width) if width > 1 else count) as k:
        # the last vector overlaps the one before it
        at = begin + (tirx.min(k * width, known - width) if width > 1 else k)
        put(at, width, _quads(kernel, i, at, width))


def _quads(kernel: PaddedCopy, i: Any, at: Any, width: int) -> Any:
    image, row, column = kernel.source(i, at)
    dtype, place = ("int32", column) if width == 1 else (f"int32x{width}", T.ramp(column, 1, width))
    quads = kernel.x[image, 0, row, place].astype(dtype)
    for channel in range(1, kernel.work.x.shape[1]):
        by = T.int32(8 * channel) if width == 1 else T.broadcast(T.int32(8 * channel), width)
        quads = T.bitwise_or(quads, T.shift_left(kernel.x[image, channel, row, place].astype(dtype), by))
    return quads
