# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs for checks: like the examples in structure, sharing and layout, random in value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.verify.same import _fields


def like(example: Any, generator: torch.Generator, scale: float = 1.0, unit: bool = False) -> Any:
    """Return an input of the same structure with random values; everything but tensors stays.

    Whole numbers stay between zero and the largest of the example's, for they may be indices. ``unit`` keeps floats between 0 and 1.
    """

    def random(t: torch.Tensor) -> torch.Tensor:
        shape = tuple(t.shape)
        if t.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if t.dtype.is_floating_point:
            return torch.rand(shape, generator=generator) if unit else torch.randn(shape, generator=generator) * scale
        high = max(1, int(t.max())) if t.numel() else 1
        return torch.randint(0, high + 1, shape, generator=generator)

    return _mapped(example, random, {})


def copied(value: Any) -> Any:
    """Return an input whose tensors share no memory with the given one; what was one tensor stays one."""
    return _mapped(value, lambda t: t.detach(), {})


def _mapped(value: Any, contents: Callable[[torch.Tensor], torch.Tensor], made: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            new = value.detach().clone()
            if new.stride() != value.stride() and all(value.stride()):
                new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            made[id(value)] = new.copy_(contents(value))
        return made[id(value)]
    fields = _fields(value)
    if fields is not None:
        return type(value)(**{f: _mapped(getattr(value, f), contents, made) for f in fields})
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(e, contents, made) for e in value)
    return {k: _mapped(v, contents, made) for k, v in value.items()} if isinstance(value, dict) else value
