# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Workloads of 8-bit integers, numbers for them, and their exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tvm
from kernel_utils import Kernel, guarded, pack, unpack

from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense, DTypes, Tensor


def numbers(low: int, high: int, *shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(low, high + 1, shape).astype(np.uint8 if low == 0 else np.int8)


def dense(batch: int, m: int, n: int, k: int) -> Dense:
    return Dense(batch, m, n, k, dtypes=DTypes("uint8", "int8", "int32", "int32"))


def conv(target: Any, n: int, c: int, o: int, size: Any, kernel: Any, stride: Any, padding: Any, dilation: int, groups: int) -> Conv2D:
    lanes = machine_of(target).lanes
    out = [
        (s + padding[k] + padding[k + 2] - dilation * (kernel[k] - 1) - 1) // stride[k] + 1 for k, s in enumerate(size)
    ]  # fmt: skip
    x, y = Tensor((n, c, *size), "uint8", lanes), Tensor((n, o, *out), "int32", lanes)
    return Conv2D(x, y, kernel, stride, padding, (dilation, dilation), groups, "int8", "int32")


def convolved(work: Conv2D, x: Any, w: Any) -> Any:
    """Return the exact sums."""
    top, left, bottom, right = work.padding
    wide = torch.nn.functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom), value=work.border)
    return torch.conv2d(wide, torch.from_numpy(w).double(), None, work.stride, 0, work.dilation, work.groups).numpy().astype(np.int32)


def check_dense(family: Any, work: Dense, plan: Any, target: Any, x: Any, w: Any) -> None:
    """Run a kernel of products without an epilogue; its sums are exact."""
    machine = machine_of(target)
    packed = tvm.runtime.tensor(np.zeros(family.packed(work, plan, machine).physical, np.int8))
    Kernel(family.pack(work, plan, machine), target).run(tvm.runtime.tensor(w), packed)
    y = tvm.runtime.tensor(np.zeros((work.batch, work.m, work.n), np.int32))
    Kernel(family.kernel(work, plan, machine), target).run(tvm.runtime.tensor(x), packed, y)
    np.testing.assert_array_equal(y.numpy(), x.astype(np.int64) @ w.astype(np.int64))


def check_conv(family: Any, work: Conv2D, plan: Any, target: Any) -> None:
    """Run a convolution without an epilogue, its input before and behind memory that may not be read; its sums are exact."""
    machine = machine_of(target)
    x, w = numbers(0, 255, *work.x.shape), numbers(-128, 127, *work.weight_shape)
    packed = tvm.runtime.tensor(np.zeros(family.packed(work, plan, machine).physical, np.int8))
    Kernel(family.pack(work, plan, machine), target).run(tvm.runtime.tensor(w), packed)
    y = np.full(work.y.physical, 99, np.int32)
    kernel = Kernel(family.kernel(work, plan, machine), target)
    made = tvm.runtime.tensor(y)
    for at_end in (False, True):
        kernel.run(tvm.runtime.from_dlpack(guarded(pack(x, work.x.block), at_end)), packed, made)
    np.testing.assert_array_equal(unpack(made.numpy(), work.y), convolved(work, x, w))
