# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs for checks: like the examples in structure, sharing and layout, random in value."""

from __future__ import annotations

import copy
from typing import Any

import torch

from dycl_tvm.verify.same import tensors_of


def copied(value: Any) -> Any:
    """Return an input that shares no memory with the given one; what was one tensor, or one memory, stays one."""
    with torch.no_grad():
        return copy.deepcopy(value)


def like(example: Any, generator: torch.Generator, scale: float = 1.0, unit: bool = False) -> Any:
    """Return an input of the same structure with random values; everything but tensors stays.

    Whole numbers stay between zero and the largest of the example's, for they may be indices. ``unit`` keeps floats between 0 and 1.
    """
    made = copied(example)
    done: set[int] = set()
    for t in tensors_of(made):
        storage = t.untyped_storage()
        if storage._cdata in done or not t.numel():
            continue
        done.add(storage._cdata)
        # The whole memory: rows may lie apart, or upon each other.
        memory = torch.empty(0, dtype=t.dtype).set_(storage)  # type: ignore[call-overload]
        shape: tuple[int, ...] = (storage.nbytes() // t.element_size(),)
        if t.dtype == torch.bool:
            memory.copy_(torch.rand(shape, generator=generator) < 0.5)
        elif t.dtype.is_floating_point or t.dtype.is_complex:
            memory, shape = (torch.view_as_real(memory), (*shape, 2)) if t.dtype.is_complex else (memory, shape)
            memory.copy_(torch.rand(shape, generator=generator) if unit else torch.randn(shape, generator=generator) * scale)
        else:
            most = min(max(1, int(t.max())), torch.iinfo(torch.int64).max - 1)  # randint takes no larger bound
            memory.copy_(torch.randint(0, most + 1, shape, generator=generator))
    return made
