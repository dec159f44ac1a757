# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Hermite polynomials of run-time degree: ATen's recurrence in float64, one element after the other."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter
from dycl_tvm.compile.ops.elements import element_by_element

#: The largest degree, beyond which ATen gives NaN.
_LIMIT = {"float32": 128, "float64": 512}


def _hermite(ctx: OpContext, x: Any, n: Any, factor: int) -> Any:
    """Emit ``factor x q - factor k p`` for k = 1, 2 ... below the degree; ``factor`` is 2 for those of physicists."""
    limit, dtype = _LIMIT.get(ctx.type.dtype, 0), "float64"
    if not limit or not semantics.is_for_cpu():
        raise NotConvertible(f"a Hermite polynomial of {ctx.type.dtype}" if semantics.is_for_cpu() else "a Hermite polynomial on a GPU")

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def recurrence(x: Any, n: Any) -> Any:
        p, q, r = (T.alloc_buffer((1,), dtype) for _ in range(3))
        store(p, [0], number(1))
        store(q, [0], x * number(factor))
        degree = tirx.trunc(n)
        with T.serial(0, limit - 1) as k:
            with T.If(k.astype(dtype) + number(1) < degree), T.Then():
                store(r, [0], x * number(factor) * q[0] - number(factor) * (k.astype(dtype) + number(1)) * p[0])
                store(p, [0], q[0])
                store(q, [0], r[0])
        made = tirx.Select(degree == number(0), number(1), tirx.Select(degree > number(limit), number(math.nan), q[0]))
        inside = tirx.And(degree >= number(0), degree < number(2.0**63))  # ATen takes others for negative ones
        return tirx.Select(inside, made, number(0))

    return element_by_element(ctx, [x, n], dtype, limit, "hermite", recurrence)


for _name, _factor in (("h", 2), ("he", 1)):
    converter(*(f"special_hermite_polynomial_{_name}.{overload}" for overload in ("default", "n_scalar", "x_scalar")))(
        lambda ctx, x, n, factor=_factor: _hermite(ctx, x, n, factor)
    )
