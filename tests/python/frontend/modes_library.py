# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A library that switches PyTorch's modes off: staging does not rewrite what it does (see test_modes.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

KEPT: list[torch.Tensor] = []


def computes(x: Any) -> Any:
    """Compute with the modes off."""
    with _disable_current_modes():
        return x * 2


def computes_in_c(x: Any) -> Any:
    """Compute where no subclass of tensors sees it either."""
    with torch._C._DisableTorchDispatch():
        return x * 2


def copies_in_c(x: Any) -> Any:
    """Copy there: the operator has one kernel for all tensors."""
    with torch._C._DisableTorchDispatch():
        return torch.zeros(2, 3).copy_(x)


def swallows(x: Any) -> Any:
    """Go another way if that fails."""
    try:
        return computes(x)
    except Exception:
        return x


def draws() -> Any:
    """Draw with the modes off."""
    with _disable_current_modes():
        return torch.rand(2)


def made() -> Any:
    """Make a tensor with the modes off."""
    with _disable_current_modes():
        KEPT[:] = [torch.zeros(3)]
    return KEPT[0]


def change() -> None:
    """Change it there."""
    with _disable_current_modes():
        KEPT[0].add_(1)


def frozen() -> Any:
    """Draw, and leave the generator as it was, as PyTorch's tests do."""
    with torch._C._DisableTorchDispatch():
        state = torch.get_rng_state()
    drawn = torch.rand(2)
    with torch._C._DisableTorchDispatch():
        torch.set_rng_state(state)
    return drawn
