# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Scales and zero points that each call chooses: PyTorch's functions for them, without their questions to the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition
from dycl_tvm.hcfg.quantized import DECOMPOSED


@decomposition(f"{DECOMPOSED}.choose_qparams.tensor")
def choose_qparams(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The finest grid that reaches over all numbers and zero."""
    least, most = _ends(x)
    scale = torch.clamp((most - least) / float(high - low), min=eps)
    zero = torch.clamp(low - torch.round(least / scale).to(torch.int32), low, high)
    return scale.to(torch.float64).reshape(1), zero.to(torch.int64).reshape(1)


@decomposition(f"{DECOMPOSED}.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The finest grid that reaches as far below zero as above it."""
    least, most = _ends(x)
    scale = torch.clamp(torch.maximum(-least, most) / (float(high - low) / 2), min=eps)
    zero = torch.full((1,), 128 if dtype == torch.uint8 else 0, dtype=torch.int64)
    return scale.to(torch.float64).reshape(1), zero


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest number, zero among them."""
    zero = torch.zeros((), dtype=x.dtype)
    return torch.minimum(torch.amin(x), zero), torch.maximum(torch.amax(x), zero)
