# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Workloads of 8-bit integers, numbers for them, and their exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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
