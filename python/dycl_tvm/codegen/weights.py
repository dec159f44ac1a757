# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The weights of a program as bytes, under names that are unique."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dycl_tvm.compile.program import Program
from dycl_tvm.runtime.params import ParamTensor


def weight_names(program: Program) -> list[str]:
    """Return the names of the weights in the params file: the user's where they have one, made unique."""
    taken: set[str] = set()
    names = []
    for k, weight in enumerate(program.weights):
        # Names that begin with two underscores belong to the file format.
        base = weight.name.lstrip("_") or f"constant_{k}"
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}.{n}"
        taken.add(name)
        names.append(name)
    return names


def weight_tensors(*programs: Program) -> Iterator[ParamTensor]:
    """Yield the weights in order, as the params file takes them, those that several programs have once; their bytes are not copied."""
    told: set[str] = set()
    for program in programs:
        for name, weight in zip(weight_names(program), program.weights):
            if name not in told:
                told.add(name)
                yield ParamTensor(name, weight.type.dtype, weight.type.shape, tensor_bytes(weight.data))


def tensor_bytes(data: Any) -> memoryview:
    """Return the bytes of a contiguous CPU ``torch.Tensor`` (or an array), any dtype."""
    if hasattr(data, "detach"):
        import torch

        flat = data.detach().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy().data if flat.numel() else b"").cast("B")
    import numpy as np

    array = np.ascontiguousarray(data)
    return memoryview(array.reshape(-1).view(np.uint8).data if array.size else b"").cast("B")
