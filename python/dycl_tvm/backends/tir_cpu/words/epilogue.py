# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The epilogue of a kernel: the buffers of its operands, and what becomes of a result before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx

from dycl_tvm.backends.tir_cpu.words.storage import computed_type, memory_type, read
from dycl_tvm.backends.tir_cpu.words.vector_math import shortened
from dycl_tvm.backends.tir_cpu.words.workload import Epilogue, Tensor


def epilogue_buffers(epilogue: Epilogue) -> list[tuple[str, Sequence[int], str]]:
    """Return the buffers of the operands, for :func:`prim_func`."""
    return [(f"operand_{k}", t.physical, memory_type(t.dtype)) for k, t in enumerate(epilogue.operands)]


def weighted_buffers(x: Tensor, weights: Tensor, epilogue: Epilogue, y: Tensor) -> list[tuple[str, Sequence[int], str]]:
    """Return the buffers of a kernel with packed weights, for :func:`prim_func`: x, weights, operands of the epilogue, y."""

    def buffer(name: str, tensor: Tensor) -> tuple[str, Sequence[int], str]:
        return name, tensor.physical, memory_type(tensor.dtype)

    return [buffer("x", x), buffer("weights", weights), *epilogue_buffers(epilogue), buffer("y", y)]


def load_operand(buffer: Any, tensor: Tensor, index: Sequence[Any], lane: Any = None) -> Any:
    """Load an operand at an index of the output, of which the operand may be packed where the output is not.

    Parameters
    ----------
    buffer : tvm.tirx.Buffer
    tensor : Tensor
        Dimensions of 1 are broadcast.
    index : sequence
        The output's logical index, or for a packed output the index of its array without the lane.
    lane : optional
        The lane of a packed output.
    """
    at = [0 if size == 1 else i for size, i in zip(tensor.shape, index)]
    if lane is None and tensor.block > 1:
        channel = at[1]
        return read(buffer, tensor, (at[0], channel // tensor.block, *at[2:], channel % tensor.block))
    if lane is None:
        return read(buffer, tensor, at)
    if tensor.block > 1:
        return read(buffer, tensor, (*at, lane))
    assert len(tensor.shape) < 2 or tensor.shape[1] == 1, "an operand with channels has the output's layout"
    return read(buffer, tensor, at)


def finish(epilogue: Epilogue, operands: Sequence[Any], y: Tensor, value: Any, index: Sequence[Any], lane: Any = None) -> Any:
    """Return what is stored at an index of the output: the epilogue of ``value``, zero in the lanes beyond the last channel."""
    loads = [load_operand(b, t, index, lane) for b, t in zip(operands, epilogue.operands)]
    result = epilogue.element(value, loads)
    if lane is not None and y.shape[1] % y.block:
        there, zero = index[1] * y.block + lane < y.shape[1], tirx.const(0, computed_type(y.dtype))
        if y.dtype == "uint8":
            # TVM makes a condition of a choice whose sides read memory, and computes vectors of that element by element
            return tirx.bitwise_and(result, tirx.Select(there, tirx.const(255, y.dtype), zero))
        result = tirx.Select(there, result, zero)
    return result


def of_rounded(epilogue: Epilogue) -> Epilogue:
    """Return an epilogue for sums of rounded factors: with functions that are no more exact than these (:func:`vector_math.shortened`)."""
    return replace(epilogue, element=lambda value, loads: shortened(epilogue.element(value, loads)))
