# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels on tensors that are stored as bfloat16, next to themselves in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from bf16_utils import array
from kernel_utils import BF16, Kernel, pack, relu_with_bias, unpack

from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.storage import memory_type
from dycl_tvm.backends.tir_cpu.words.workload import HALF, Conv2D, Epilogue, Tensor

TYPES = ("float32", HALF)
#: Of input and output, all in which one is stored so.
EACH = [("float32", HALF), (HALF, "float32"), (HALF, HALF)]


def bits(values: Any) -> Any:
    """Return an array as bfloat16, as it lies in memory."""
    return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.int16).numpy()


def numbers(memory: Any) -> Any:
    """Return the float32 of such an array."""
    return torch.from_numpy(np.ascontiguousarray(memory)).view(torch.bfloat16).float().numpy()


def in_memory(values: Any, tensor: Tensor) -> Any:
    packed = pack(values, tensor.block)
    return bits(packed) if tensor.dtype == HALF else packed


def run(kernel: Any, arrays: list[Any], y: Tensor, target: Any = BF16) -> Any:
    """Return the logical numbers that a kernel stores."""
    stored = Kernel(kernel, target)(arrays, y.physical, memory_type(y.dtype))
    return unpack(numbers(stored) if y.dtype == HALF else stored, y)


def check_conv(family: Any, work: Conv2D, choice: int = 0, target: Any = BF16) -> list[tuple[str, str]]:
    """Compare a family's kernel in all types that it takes with itself in float32; return the types of input and output."""
    machine = machine_of(target)
    plans = family.plans(work, machine)
    plan = plans[choice % len(plans)]
    x, other = (numbers(bits(array(*t.shape))) for t in (work.x, work.y))
    weights, bias = array(*work.weight_shape), array(1, work.y.shape[1], 1, 1)
    packed = Kernel(family.pack(work, plan, machine))([weights], family.packed(work, plan, machine).physical)
    plain = relu_with_bias(work.y)

    def result(work: Conv2D) -> Any:
        residual = replace(work.y, dtype=work.x.dtype)
        epilogue = Epilogue((*plain.operands, residual), lambda v, loads: plain.element(v + loads[1], loads[:1]), "residual")
        operands = [pack(bias, work.y.block), in_memory(other, residual)]
        return run(family.kernel(work, plan, machine, epilogue), [in_memory(x, work.x), packed, *operands], work.y, target)

    expected = result(work)
    taken = []
    for types in EACH:
        if family.plans(work.stored(*types), machine):
            taken.append(types)
            rounded = numbers(bits(expected)) if types[1] == HALF else expected
            np.testing.assert_array_equal(result(work.stored(*types)), rounded)
    return taken
