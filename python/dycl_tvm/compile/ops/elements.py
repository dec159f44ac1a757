# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators whose elements each need a loop of their own: kernels for CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.compile.ops.context import OpContext

#: Seconds of one step of such a loop, roughly.
_STEP = 1e-9


def element_by_element(ctx: OpContext, operands: list[Any], dtype: str, steps: int, name: str, compute: Callable[..., Any]) -> Any:
    """Emit a kernel that computes each element of the result from those of the operands, which are broadcast and of ``dtype``.

    ``compute(*elements)`` emits statements and returns the element; it takes about ``steps`` steps.
    """
    shape, count = ctx.type.shape, math.prod(ctx.type.shape)
    flat = [ctx.reshape(ctx.emit(relax.op.broadcast_to(ctx.operand(x, dtype), shape)), (count,)) for x in operands]
    machine = machine_of(tvm.target.Target.current() or tvm.target.Target("llvm"))

    def body(*buffers: Any) -> None:
        *given, out = buffers
        with parallel(count, machine, count * steps * _STEP) as i:
            store(out, [i], compute(*(x[i] for x in given)))

    names = [*(f"x{k}" for k in range(len(flat))), "out"]
    kernel = prim_func([(n, (count,), dtype) for n in names], body)
    made = ctx.emit(relax.call_tir(ctx.bb.add_func(kernel, name), flat, relax.TensorType((count,), dtype)))
    return ctx.reshape(made, shape)
