# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Maxima and minima that spread NaN, made known to TVM's schedules: groups of threads may then compute them together."""

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
        _register(combine, identity)


def _register(combine: Callable[[Any, Any], Any], identity: Callable[[str], Any]) -> None:
    functions = [
        tvm_ffi.convert(lambda lhs, rhs: [combine(lhs[0], rhs[0])]),
        tvm_ffi.convert(lambda values: [identity(semantics.dtype_of(values[0]))]),
    ]
    for function in functions:
        # TVM's registry is destroyed after the interpreter: if it held the last reference, it would call into what is gone
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, *functions)
