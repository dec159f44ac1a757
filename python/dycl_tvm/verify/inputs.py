# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs for checks: like the examples in structure, random in value."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.verify.same import _fields


def like(example: Any, generator: torch.Generator, scale: float = 1.0, unit: bool = False) -> Any:
    """Return an input of the same structure with random values; everything but tensors stays.

    Whole numbers stay between zero and the largest of the example's, for they may be indices. ``unit`` keeps floats between 0 and 1.
    """
    if isinstance(example, torch.Tensor):
        shape = tuple(example.shape)
        if example.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if example.dtype.is_floating_point:
            made = torch.rand(shape, generator=generator) if unit else torch.randn(shape, generator=generator) * scale
            return made.to(example.dtype)
        high = max(1, int(example.max())) if example.numel() else 1
        return torch.randint(0, high + 1, shape, generator=generator).to(example.dtype)
    fields = _fields(example)
    if fields is not None:
        return type(example)(**{f: like(getattr(example, f), generator, scale, unit) for f in fields})
    if isinstance(example, (tuple, list)):
        return type(example)(like(e, generator, scale, unit) for e in example)
    return {k: like(v, generator, scale, unit) for k, v in example.items()} if isinstance(example, dict) else example


def copied(value: Any) -> Any:
    """Return an input whose tensors share no memory with the given one."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    fields = _fields(value)
    if fields is not None:
        return type(value)(**{f: copied(getattr(value, f)) for f in fields})
    if isinstance(value, (tuple, list)):
        return type(value)(copied(e) for e in value)
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value
