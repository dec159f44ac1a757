# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Concatenation of packed tensors along their channels, where every part but the last fills its blocks: blocks are copied."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.epilogue import epilogue_buffers, finish
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import computed_type, memory_type, read, write
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue, Tensor


def takes(parts: Sequence[Tensor], y: Tensor) -> bool:
    """Whether :func:`kernel` can concatenate packed parts to ``y``."""
    block = y.block
    packed = block > 1 and len(y.shape) > 2 and all(p.block == block and computed_type(p.dtype) == computed_type(y.dtype) for p in parts)
    return packed and all(p.shape[1] % block == 0 for p in parts[:-1]) and sum(p.shape[1] for p in parts) == y.shape[1]


def kernel(parts: Sequence[Tensor], y: Tensor, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
    """Return the PrimFunc (parts, epilogue operands, y).

    Parameters
    ----------
    parts : sequence of Tensor
        Packed; the channels of all but the last are a multiple of the block.
    y : Tensor
        Packed, with the channels of all parts and one or more spatial dimensions.
    machine : Machine
    epilogue : Epilogue
    """
    if not takes(parts, y):
        raise ValueError(f"blocks of {parts} cannot be concatenated to {y}")
    inputs = [(f"x{k}", p.physical, memory_type(p.dtype)) for k, p in enumerate(parts)]

    def body(*buffers: Any) -> None:
        batch, blocks, rows, *rest, lanes = y.physical
        xs, operands, out = buffers[: len(parts)], buffers[len(parts) : -1], buffers[-1]
        with parallel(batch * blocks * rows, machine, 2 * y.nbytes / 30e9) as unit:
            image, row = unit // rows, unit % rows
            n, cb = image // blocks, image % blocks

            def copy(number: int, first: int) -> None:
                """Emit the choice between part ``number``, which begins at block ``first``, and those after it."""
                end = first + parts[number].physical[1]
                if end < blocks:
                    with T.If(cb < end):
                        with T.Then():
                            row_of(number, first)
                        with T.Else():
                            copy(number + 1, end)
                else:
                    row_of(number, first)

            def row_of(number: int, first: int) -> None:
                with ExitStack() as stack:
                    at = [row, *(stack.enter_context(T.serial(0, extent)) for extent in rest)]
                    lane = stack.enter_context(T.vectorized(0, lanes))
                    index = [n, cb - first, *at, lane]
                    value = read(xs[number], parts[number], index)
                    write(out, y, [n, cb, *at, lane], finish(epilogue, operands, y, value, [n, cb, *at], lane))

            copy(0, 0)

    return prim_func([*inputs, *epilogue_buffers(epilogue), ("y", y.physical, memory_type(y.dtype))], body)
