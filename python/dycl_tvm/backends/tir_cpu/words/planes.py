# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Images of few channels in plain layout, one plane a channel, whose neighbours become words: how convolutions read a camera's picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.int8 import QUAD
from dycl_tvm.backends.tir_cpu.words.padded_copy import PaddedCopy
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D


def has_planes(work: Conv2D) -> bool:
    """Whether the input is plain, of no more channels than a quad has."""
    return work.x.block == 1 and work.x.shape[1] <= QUAD and work.x.dtype in ("uint8", "float32")


def in_blocks(work: Conv2D) -> Conv2D:
    """Return a convolution as one of a packed input."""
    return replace(work, x=replace(work.x, block=work.y.block))


def each_places(kernel: PaddedCopy, i: Any, begin: Any, count: Any, put: Callable[[Any, int, Sequence[Any]], None]) -> None:
    """Emit ``put(place, width, channels)`` for ``count`` places of a row of the copy, from ``begin`` on, ``width`` at a time."""
    lanes, known = kernel.work.x.block, count.value if isinstance(count, tirx.IntImm) else count
    neighbours = kernel.columns.source_step == 1 and not kernel.p.flat
    width = lanes if neighbours and isinstance(known, int) and known >= lanes else 1
    with T.serial(0, -(-known // width) if width > 1 else count) as k:
        # the last vector overlaps the one before it
        at = begin + (tirx.min(k * width, known - width) if width > 1 else k)
        image, row, column = kernel.source(i, at)
        place = column if width == 1 else T.ramp(column, 1, width)
        put(at, width, [kernel.x[image, channel, row, place] for channel in range(kernel.work.x.shape[1])])


def quads(channels: Sequence[Any], width: int) -> Any:
    """Return the bytes of up to four channels at ``width`` places as quads."""
    dtype = "int32" if width == 1 else f"int32x{width}"
    found = channels[0].astype(dtype)
    for k, channel in enumerate(channels[1:], 1):
        by = T.int32(8 * k) if width == 1 else T.broadcast(T.int32(8 * k), width)
        found = T.bitwise_or(found, T.shift_left(channel.astype(dtype), by))
    return found
