# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers on the GPU of this machine: are they those of PyTorch on the same GPU, bit by bit.

Where PyTorch is installed without CUDA they are compared with what is known of it (``dycl_tvm.hcfg.cuda_draws``, which tests compare
with published numbers): exactly where no function is approximated, else within the errors of the GPU's functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import dycl_tvm
from dycl_tvm.hcfg.philox import BLOCK, DEVICE

#: More elements than most GPUs run threads at once.
_MANY = 500_001
#: Of the results, those whose functions a GPU approximates.
_ROUGH = {"normal": 1e-5, "normal, many": 1e-5, "double": 1e-12, "exponential": 1e-5, "cauchy": 1e-3, "log_normal": 1e-4}


def draws(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Draw in all ways, on the device of ``x``."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, device=x.device, dtype=dtype)

    return {
        "uniform": empty(1000).uniform_(-1, 3),
        "uniform, many": empty(_MANY).uniform_(),
        "double": empty(3000, dtype=torch.float64).normal_(),
        "normal": torch.randn_like(x),
        "normal, many": empty(_MANY).normal_(0.5, 2.0),
        "exponential": empty(1000).exponential_(2.0),
        "cauchy": empty(1000).cauchy_(),
        "log_normal": empty(1000).log_normal_(),
        "integers": torch.randint(-5, 100, (_MANY,), device=x.device),
        "wide integers": torch.randint(0, 1 << 40, (_MANY,), device=x.device),
        "bernoulli": torch.bernoulli(x),
        "dropout": F.dropout(x, 0.3, True),
        "dropout, many": F.dropout(empty(_MANY - 1).uniform_(), 0.3, True),
        "multinomial": torch.multinomial(x, 1),
    }


def resident_threads() -> int:
    """Return how many threads GPU 0 runs at once, in whole blocks."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, processors, threads = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(processors), 16, device)
    driver.cuDeviceGetAttribute(ctypes.byref(threads), 39, device)
    return processors.value * (threads.value // BLOCK) * BLOCK


def check_draws(arch: str, folder: Path, load: Callable[[Any, Path], Any], calls: int = 3) -> tuple[list[str], str]:
    """Compare calls in succession; return what differs, and with what it was compared."""
    x = torch.linspace(0.01, 0.99, 640).reshape(16, 40)
    module = load(dycl_tvm.build(draws, (x,), target=f"cuda -arch={arch}", host="llvm"), folder)
    on_gpu = torch.cuda.is_available()
    before, DEVICE.threads = DEVICE.threads, resident_threads()
    wrong = []
    try:
        known = dycl_tvm.stage(draws, (x,), device="cuda").interpret()
        for seed in (0, 1 << 40):
            torch.manual_seed(seed)
            module.manual_seed(seed)
            known.manual_seed(seed)
            for call in range(calls):
                want = {k: t.cpu() for k, t in draws(x.cuda()).items()} if on_gpu else known(x)
                for name, got in module(x).items():
                    rough = 0.0 if on_gpu else _ROUGH.get(name, 0.0)
                    if not torch.allclose(got, want[name], rtol=rough, atol=rough):
                        wrong.append(f"{name}, call {call} after seed {seed}: {int((got != want[name]).sum())} of {got.numel()} differ")
    finally:
        DEVICE.threads = before
    return wrong, "PyTorch on this GPU" if on_gpu else "what is known of PyTorch"
