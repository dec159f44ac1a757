# Licensed under the Apache License, Version 2.0; see LICENSE.
"""3x3 convolutions of a few places, as the sums that they are.

Where calls decide how large an image is, a kernel of tiles computes a whole one for a single place, of weights that are up to four times
those of the convolution, and the weights are then all that takes time. These sums read of the plain weights those of the taps that fall
into the image: of an image of one place the ninth part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.storage import read, write
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Epilogue, Tensor

#: Up to so many places the sums are faster: four of an image are of 16 taps, as many as Winograd's smallest tile has products.
FEW_PLACES = 4
#: Bytes of weights that a library may hold a second time for them.
MOST_BYTES = 1 << 19
#: Sums of a block of outputs that do not wait for each other, and blocks that are computed together.
_APART, _TOGETHER = 4, 4


@dataclass(frozen=True)
class Places:
    """How many images, rows and columns of the output are wanted, and rows and columns of the input that there are, as expressions."""

    images: Any
    rows: Any
    columns: Any
    in_rows: Any
    in_columns: Any


def few_weights(work: Conv2D) -> Tensor:
    """Return the array of the weights: for each tap and input channel a vector for each block of outputs."""
    taps = work.kernel[0] * work.kernel[1]
    return Tensor((taps * work.x.shape[1] * work.y.physical[1], work.y.block))


def pays(work: Conv2D) -> bool:
    """Whether a kernel may have these sums: for borders of one place, and weights that are not much."""
    return work.padding == (1, 1, 1, 1) and few_weights(work).nbytes <= MOST_BYTES


def pack_few(work: Conv2D) -> Any:
    """Return the PrimFunc (weights, these weights)."""
    (co, ci), (kh, kw) = (work.y.shape[1], work.x.shape[1]), work.kernel
    lanes, blocks = work.y.block, work.y.physical[1]

    def body(weights: Any, packed: Any) -> None:
        with T.serial(0, kh) as i, T.serial(0, kw) as k, T.serial(0, ci) as c, T.serial(0, blocks) as b, T.serial(0, lanes) as e:
            out = b * lanes + e
            value = tirx.if_then_else(out < co, weights[tirx.min(out, co - 1), c, i, k], T.float32(0))
            store(packed, [((i * kw + k) * ci + c) * blocks + b, e], value)

    return prim_func([("weights", work.weight_shape, "float32"), ("packed", few_weights(work).physical, "float32")], body)


def emit_few(work: Conv2D, epilogue: Epilogue, x: Any, weights: Any, operands: Sequence[Any], y: Any, there: Places) -> None:
    """Emit the loops over all places."""
    with T.serial(0, there.images) as image, T.serial(0, there.rows) as row, T.serial(0, there.columns) as column:
        full, rest = divmod(work.y.physical[1], _TOGETHER)
        if full:
            with T.serial(0, full) as group:
                _emit_place(work, epilogue, x, weights, operands, y, there, (image, row, column), group * _TOGETHER, _TOGETHER)
        if rest:
            _emit_place(work, epilogue, x, weights, operands, y, there, (image, row, column), full * _TOGETHER, rest)


def _emit_place(
    work: Conv2D,
    epilogue: Epilogue,
    x: Any,
    weights: Any,
    operands: Sequence[Any],
    y: Any,
    there: Places,
    place: tuple[Any, Any, Any],
    block: Any,
    count: int,
) -> None:
    """Emit one place of ``count`` blocks of outputs from ``block``."""
    (image, row, column), lanes = place, work.y.block
    sums = [[T.alloc_buffer((lanes,), "float32") for _ in range(_APART)] for _ in range(count)]
    every = T.ramp(0, 1, lanes)
    for total in (t for of in sums for t in of):
        store(total, [every], T.broadcast(T.float32(0), lanes))
    top, left = work.padding[:2]
    first, before = T.bind(tirx.max(top - row, 0)), T.bind(tirx.max(left - column, 0))
    taps = tirx.min(work.kernel[0], there.in_rows + top - row) - first
    beside = tirx.min(work.kernel[1], there.in_columns + left - column) - before
    full, rest = divmod(work.x.shape[1], lanes)
    with T.serial(0, taps) as i, T.serial(0, beside) as k:
        at = (row - top + first + i, column - left + before + k)
        tap = ((first + i) * work.kernel[1] + before + k) * work.x.shape[1]

        def step(c: Any, lane: Any, apart: int) -> None:
            value = read(x, work.x, (image, c, *at, lane))
            for n in range(count):
                vector = weights[(tap + c * lanes + lane) * work.y.physical[1] + block + n, every]
                total = sums[n][apart]
                store(total, [every], total[every] + T.broadcast(value, lanes) * vector)

        if full:
            with T.serial(0, full) as c, T.serial(0, lanes // _APART) as lane:
                for apart in range(_APART):
                    step(c, lane * _APART + apart, apart)
        if rest:
            with T.serial(0, rest) as lane:
                step(full, lane, 0)
    for n, (one, two, three, four) in enumerate(sums):
        with T.vectorized(0, lanes) as e:
            index = [image, block + n, row, column]
            total = (one[e] + two[e]) + (three[e] + four[e])
            write(y, work.y, [*index, e], finish(epilogue, operands, work.y, total, index, e))
