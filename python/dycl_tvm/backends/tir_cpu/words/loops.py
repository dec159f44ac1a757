# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A kernel as a function, its loops and stores, with TVM's IR builder.

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

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Extent
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.vector_math import with_functions

#: A function with this attribute has its final loops: the generic schedule leaves it alone.
SCHEDULED = "dycl.scheduled"
#: Numbers of the inputs whose memory the output may take: each element is read before the element of that index is written.
IN_PLACE = "dycl.in_place"
#: LLVM's names of features whose instructions a function is written in: only CPUs that have them run it, or even compile it.
INSTRUCTIONS = "dycl.instructions"
#: For each input, of each of its dimensions: the dimension of the output of which row r depends on row r of the input alone, or -1.
#: What is missing behind has none; a dimension of another extent than the output's is broadcast, and wanted whole.
ROWS = "dycl.rows"
#: Where calls decide sizes, of images behind that: for each input, of each of its dimensions, three numbers: a dimension of the output of
#: which row r depends on no row of the input behind ``stride * r + last``, the stride and the last; -1, 0, 0 where that is not known.
#: Where the stride is 0, row r depends on the row that element r of the input of number ``last`` says, and on no other.
REACH = "dycl.reach"
#: With REACH: of each input, the inputs of truth values that choose it, each read where the output is: where one is false,
#: nothing depends on it.
CHOOSING = "dycl.choosing"
#: With REACH, of a kernel that is a choice and nothing else: the input of truth values, the input that it lets through, at the place of the
#: output, and the input of one element that is in the place of all others.
MASKING = "dycl.masking"
#: Of a parallel loop: for how many launches its work is enough.
LAUNCHES = "dycl.launches"
#: Of a function that dequantises weights, (integers, scales) to (k, n): how many of the sum have one scale. Kernels may read the integers.
GROUP = "dycl.group"
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


def func_with(text: str, features: Sequence[str], buffers: Sequence[tuple[str, Sequence[int], str]], body: Callable[..., None]) -> Any:
    """Return the PrimFunc of :func:`prim_func`, whose body may use functions in LLVM's language, for CPUs with the features."""

    def with_text(*args: Any) -> None:
        with T.attr(0, "pragma_import_llvm", text):
            body(*args)

    return prim_func(buffers, with_text).with_attr(INSTRUCTIONS, list(features))


def store(buffer: Any, indices: Sequence[Any], value: Any) -> None:
    """Emit ``buffer[indices] = value``."""
    T.buffer_store(buffer, value, list(indices))


def there_are(extent: Extent | None, whole: int, lengths: Mapping[int, Any]) -> Any:
    """Return how many of ``whole`` there are, as an expression; ``lengths`` are buffers of the sizes of the call, by their numbers."""
    if extent is None or not extent.factor:
        return T.int32(whole if extent is None else max(0, min(whole, extent.constant)))
    there = lengths[extent.size][()] * extent.factor + extent.constant
    return tirx.max(tirx.min(there, T.int64(whole)), T.int64(0)).astype("int32")


def guarded(conditions: Sequence[Any]) -> ExitStack:
    """Return the frames of ``if all(conditions)``, entered; of nothing without conditions."""
    frames = ExitStack()
    if conditions:
        frames.enter_context(T.If(tirx.all(*conditions) if len(conditions) > 1 else conditions[0]))
        frames.enter_context(T.Then())
    return frames


def prefetch(buffer: Any, indices: Sequence[Any], cache: int) -> None:
    """Emit a fetch of the line of an element into the first or second ``cache``; the element need not exist."""
    address = T.address_of(buffer[tuple(indices)])
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", address, T.int32(0), T.int32(4 - cache), T.int32(1)))


def is_parallel(extent: int, machine: Machine, seconds: float) -> bool:
    """Whether :func:`parallel` makes a parallel loop; cost models ask this."""
    return extent > 1 and seconds > 3 * machine.launch


def parallel(extent: int, machine: Machine, seconds: float) -> Any:
    """Return the loop frame over independent pieces: parallel if the work (seconds on one core) is worth a launch."""
    if not is_parallel(extent, machine, seconds):
        return T.serial(0, extent)
    return T.parallel(0, extent, annotations={LAUNCHES: max(1, int(seconds / (3 * machine.launch)))})
