# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elementary functions of one element: vectors' own for float32 on CPUs, TVM's where it is exact, else those of C's library.

There is no formula of ``log`` and ``exp`` here: such lose all digits near 0, or overflow before the result does (``log1p(1e38)``,
``atanh(1e-6)``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from dycl_tvm.backends.tir_cpu.words import vector_math
from dycl_tvm.compile.ops import semantics


def has_vectors(dtype: str) -> bool:
    """Whether the target in force has the functions of :mod:`vector_math` for a dtype."""
    target = tvm.target.Target.current()
    return target is not None and str(target.kind) == "llvm" and dtype == "float32"


def _function(name: str, general: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the vector form of a function for float32 on CPUs, the general one for all else."""
    vectors = getattr(vector_math, name)
    return lambda x: vectors(x) if has_vectors(semantics.dtype_of(x)) else general(x)


def _library(name: str) -> Callable[[Any], Any]:
    """Return a function of C's library."""
    return lambda x: semantics.libm(name, x)


def _sigmoid(x: Any) -> Any:
    one = tirx.const(1, semantics.dtype_of(x))
    return one / (one + tirx.exp(-x))


def to_byte(x: Any) -> Any:
    """Return a float as an int32 from 0 to 255: cut off behind the point, what lies beyond becomes the limit, NaN becomes 0."""
    if has_vectors(semantics.dtype_of(x)):
        return vector_math.to_byte(x)
    low, high = (tirx.const(limit, semantics.dtype_of(x)) for limit in (0, 255))
    # NaN fails both comparisons
    return tirx.Select(x > low, tirx.Select(x < high, x, high), low).astype("int32")


exp = _function("exp", tirx.exp)
erf = _function("erf", _library("erf"))
tanh = _function("tanh", _library("tanh"))
sigmoid = _function("sigmoid", _sigmoid)
expm1 = _function("expm1", _library("expm1"))
atanh, erfc, exp2, log10, log1p, log2 = (_library(name) for name in ("atanh", "erfc", "exp2", "log10", "log1p", "log2"))
