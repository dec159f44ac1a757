# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elements in memory and in registers: what is stored as bfloat16 is computed with as float32.

TVM turns every bfloat16 into other types before it generates code, so in kernels such an array is one of int16, whose bits are the upper
half of a float32. Reading widens, which is exact; writing rounds once, to the nearest, ties to even. NaN stays NaN and infinities stay;
what is larger than the largest bfloat16 (3.39e38) becomes infinite, and denormal numbers count as zero.

A tensor that has the type bfloat16 in the user's network is none of these: TVM's kernels compute with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.vector_math import to_bfloat16
from dycl_tvm.backends.tir_cpu.words.workload import HALF, DTypes, Tensor


def memory_type(dtype: str) -> str:
    """Return the type that an array of elements has in a kernel."""
    return "int16" if dtype == HALF else dtype


def computed_type(dtype: str) -> str:
    """Return the type in which elements are computed with."""
    return "float32" if dtype == HALF else dtype


def takes(dtypes: DTypes, halves: str = "xy", weights: str = "float32") -> bool:
    """Whether sums are float32, of factors of the type ``weights``, and what is no float32 in memory is a bfloat16 among ``halves``."""
    there = dtypes.weights == weights and dtypes.accumulator == "float32"
    return there and all(t == "float32" or (t == HALF and n in halves) for n, t in (("x", dtypes.x), ("y", dtypes.y)))


def read(buffer: Any, tensor: Tensor, index: Sequence[Any]) -> Any:
    """Return an element as a number to compute with."""
    element = buffer[tuple(index)] if index else buffer[()]
    if tensor.dtype != HALF:
        return element
    return T.reinterpret("float32", T.shift_left(element.astype("int32"), T.int32(16)))


def write(buffer: Any, tensor: Tensor, index: Sequence[Any], value: Any) -> None:
    """Emit the store of an element."""
    store(buffer, index, to_bfloat16(value) if tensor.dtype == HALF else value)
