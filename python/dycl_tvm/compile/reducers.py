# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Maxima and minima that spread NaN, and where they are: made known to TVM's schedules, groups of threads compute them together."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi

from dycl_tvm.compile.ops import semantics


@functools.cache
def register_reducers() -> None:
    """Register the reducers, once a process."""
    for combine, identity in ((semantics.maximum, semantics.lowest), (semantics.minimum, semantics.highest)):
        _register(
            1,
            lambda lhs, rhs, combine=combine: [combine(lhs[0], rhs[0])],
            lambda values, identity=identity: [identity(semantics.dtype_of(values[0]))],
        )
    for is_max in (True, False):
        _register(
            2,
            lambda lhs, rhs, is_max=is_max: list(semantics.arg_combine(is_max, lhs, rhs)),
            lambda values, is_max=is_max: list(semantics.arg_identity(is_max, *map(semantics.dtype_of, values))),
        )


def _register(buffers: int, combine: Callable[..., list[Any]], identity: Callable[..., list[Any]]) -> None:
    functions = [tvm_ffi.convert(combine), tvm_ffi.convert(identity)]
    for function in functions:
        # TVM's registry is destroyed after the interpreter: if it held the last reference, it would call into what is gone
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(buffers, *functions)
