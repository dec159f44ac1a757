# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Small words for writing kernels with TVM's IR builder.

Kernels are loops over buffers, without schedule blocks. Rules that TVM's code generation for CPUs imposes:

* a buffer under 1024 bytes in the default scope lives on the stack, and in registers if all its indices are constants once loops
  are unrolled: keep accumulators in buffers of at most 512 bytes;
* anything larger becomes a call of the runtime's workspace, which is cached by thread;
* a vectorised loop over a whole vector is one instruction; scalars in it are broadcast;
* ``Select`` reads both sides, and TVM simplifies each under the condition: a clamped index in it is no longer clamped. What may not be read
  stands behind ``T.If`` or ``if_then_else``;
* a loop whose begin is not 0, around one whose bounds depend on it, is computed wrongly: all loops begin at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families.vector_math import with_functions
from dycl_tvm.backends.tir_cpu.machine import Machine
from dycl_tvm.backends.tir_cpu.workload import Epilogue, Tensor

#: A function with this attribute has its final loops: the generic schedule leaves it alone.
SCHEDULED = "dycl.scheduled"
#: Numbers of the inputs whose memory the output may take: each element is read before the element of that index is written.
IN_PLACE = "dycl.in_place"
#: LLVM's names of features whose instructions a function is written in: only CPUs that have them run it, or even compile it.
INSTRUCTIONS = "dycl.instructions"
#: For each input, of each of its dimensions: the dimension of the output of which row r depends on row r of the input alone, or -1.
#: What is missing behind has none; a dimension of another extent than the output's is broadcast, and wanted whole.
ROWS = "dycl.rows"
#: Of a parallel loop: for how many launches its work is enough.
LAUNCHES = "dycl.launches"
#: What a kernel is called in symbols and reports; a kernel without it has the name of its function.
NAME = "dycl.name"


def in_place(fn: Any, inputs: Sequence[int]) -> Any:
    """Return a function whose output may overwrite one of ``inputs``; the compiler may then not assume that they are apart."""
    return fn.without_attr("tirx.noalias").with_attr(IN_PLACE, list(inputs)) if inputs else fn


def prim_func(buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None]) -> Any:
    """Return the PrimFunc over ``buffers`` (name, shape, dtype) whose body ``body(*buffers)`` emits."""
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, SCHEDULED: 1, "op_pattern": 8})
        body(*[T.match_buffer(T.arg(name, T.handle()), tuple(shape), dtype) for name, shape, dtype in buffers])
    return with_functions(ib.get())


def store(buffer: Any, indices: Sequence[Any], value: Any) -> None:
    """Emit ``buffer[indices] = value``."""
    T.buffer_store(buffer, value, list(indices))


def is_parallel(extent: int, machine: Machine, seconds: float) -> bool:
    """Whether :func:`parallel` makes a parallel loop; cost models ask this."""
    return extent > 1 and seconds > 3 * machine.launch


def parallel(extent: int, machine: Machine, seconds: float) -> Any:
    """Return the loop frame over independent pieces: parallel if the work (seconds on one core) is worth a launch."""
    if not is_parallel(extent, machine, seconds):
        return T.serial(0, extent)
    return T.parallel(0, extent, annotations={LAUNCHES: max(1, int(seconds / (3 * machine.launch)))})


def epilogue_buffers(epilogue: Epilogue) -> list[tuple[str, Sequence[int], str]]:
    """Return the buffers of the operands, for :func:`prim_func`."""
    return [(f"operand_{k}", t.physical, t.dtype) for k, t in enumerate(epilogue.operands)]


def weighted_buffers(
    x: Sequence[int], weights: Sequence[int], epilogue: Epilogue, y: Sequence[int]
) -> list[tuple[str, Sequence[int], str]]:
    """Return the buffers of a kernel with packed weights, for :func:`prim_func`: x, weights, operands of the epilogue, y."""
    return [("x", x, "float32"), ("weights", weights, "float32"), *epilogue_buffers(epilogue), ("y", y, "float32")]


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
        packed = (at[0], channel // tensor.block, *at[2:], channel % tensor.block)
        return buffer[packed]
    if lane is None:
        return buffer[tuple(at)] if at else buffer[()]
    if tensor.block > 1:
        packed = (*at, lane)
        return buffer[packed]
    assert len(tensor.shape) < 2 or tensor.shape[1] == 1, "an operand with channels has the output's layout"
    return buffer[tuple(at)] if at else buffer[()]


def finish(epilogue: Epilogue, operands: Sequence[Any], y: Tensor, value: Any, index: Sequence[Any], lane: Any = None) -> Any:
    """Return what is stored at an index of the output: the epilogue of ``value``, zero in the lanes beyond the last channel."""
    loads = [load_operand(b, t, index, lane) for b, t in zip(operands, epilogue.operands)]
    result = epilogue.element(value, loads)
    if lane is not None and y.shape[1] % y.block:
        zero = tirx.const(0, y.dtype)
        result = tirx.Select(index[1] * y.block + lane < y.shape[1], result, zero)
    return result
