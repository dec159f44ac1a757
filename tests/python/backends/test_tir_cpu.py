# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The CPU schedule covers what networks are made of. Its results are compared with PyTorch by the operator tests."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import tvm
from hcfg_utils import host_target, record

from dycl_tvm.backends.tir_cpu import schedule
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.compile import pipeline
from dycl_tvm.compile.call_list import call_list
from dycl_tvm.compile.importer import import_sub_dnns

R = torch.randn
CASES = {
    "conv": (lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), [R(1, 16, 16, 16), R(32, 16, 3, 3), R(32)]),
    "conv_1x1": (lambda x, w: F.conv2d(x, w), [R(1, 16, 14, 14), R(32, 16, 1, 1)]),
    "conv_odd": (lambda x, w: F.conv2d(x, w, padding=1), [R(1, 3, 7, 7), R(5, 3, 3, 3)]),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=16, padding=1), [R(1, 16, 8, 8), R(16, 1, 3, 3)]),
    "matmul": (torch.mm, [R(16, 32), R(32, 24)]),
    "softmax": (lambda x: F.softmax(x, -1), [R(2, 100)]),
}


@pytest.mark.parametrize("name", CASES)
def test_common_kernels_are_scheduled(name: str) -> None:
    fn, args = CASES[name]
    sub, _ = record(fn, args)
    kernels = pipeline.KernelSet()
    low = pipeline.to_kernels(import_sub_dnns([sub]), host_target())
    call_list(sub.name, low, kernels, {})
    for function in kernels.functions.values():
        scheduled = schedule(function, host_target())
        assert scheduled is not None
        assert "T.vectorized" in scheduled.script()


def test_vector_width_follows_the_cpu() -> None:
    assert machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})).vector_bytes == 32
    assert machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"})).vector_bytes == 64
    assert machine_of(tvm.target.Target("llvm")).vector_bytes == 16
