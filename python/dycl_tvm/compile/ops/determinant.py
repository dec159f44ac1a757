# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Determinants on GPUs, by Gaussian elimination with partial pivoting; CPUs have :mod:`.linalg`."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, int64

#: Largest matrix: three kernels are made for each column.
_LARGEST = 16


@converter("_linalg_det.default")
def _det(ctx: OpContext, x: Any) -> Any:
    *batch, n, _ = ctx.shape(x)
    dtype = ctx.dtype(x)
    if semantics.is_for_cpu():
        raise NotConvertible("a CPU")
    if not {1, 2} <= ctx.unused:
        raise NotConvertible("the factors of a determinant are used, not only its value")
    if n > _LARGEST or n == 0 or dtype not in ("float32", "float64"):
        raise NotConvertible(f"the determinant of {n} x {n} matrices of {dtype}; up to {_LARGEST} x {_LARGEST} of float32 or float64")
    count = math.prod(batch)
    rest = ctx.reshape(x, (count, n, n))
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    largest = semantics.arg_reducer(is_max=True)
    det = None
    for size in range(n, 0, -1):
        matrix = (int64(count), int64(size), int64(size))

        def pivot(t: Any, matrix: Any = matrix) -> Any:
            row = te.reduce_axis((int64(0), matrix[1]), name="row")
            index, value = te.compute(matrix[:1], lambda b: largest((row, te.abs(t[b, row, int64(0)])), axis=row), name="pivot")
            return [index, value]

        at = ctx.emit(relax.TupleGetItem(ctx.call_te(pivot, rest, name="pivot", fusible=False), 0))

        def factor(t: Any, p: Any, *before: Any, matrix: Any = matrix) -> Any:
            def element(b: Any) -> Any:
                value = t[b, p[b], int64(0)]
                value = tirx.Select(p[b] == int64(0), value, -value)  # an exchange of rows turns the sign
                return before[0][b] * value if before else value

            return te.compute(matrix[:1], element, name="determinant")

        det = ctx.call_te(factor, rest, at, *([] if det is None else [det]), name="determinant", fusible=False)
        if size == 1:
            break

        def eliminate(t: Any, p: Any, matrix: Any = matrix) -> Any:
            def element(b: Any, i: Any, j: Any) -> Any:
                row = tirx.Select(i + int64(1) == p[b], int64(0), i + int64(1))  # row 0 stands where the pivot was
                head = t[b, p[b], int64(0)]
                singular = head == zero  # then the whole column is 0, and so is the determinant
                ratio = tirx.Select(singular, zero, t[b, row, int64(0)] / tirx.Select(singular, one, head))
                return t[b, row, j + int64(1)] - ratio * t[b, p[b], j + int64(1)]

            return te.compute((matrix[0], matrix[1] - int64(1), matrix[2] - int64(1)), element, name="eliminated")

        rest = ctx.call_te(eliminate, rest, at, name="eliminated", fusible=False)
    return ctx.reshape(det, ctx.type.shape), None, None
