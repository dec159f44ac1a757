# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is assigned to all that there is of a tensor whose lengths are known only at run time."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.aligned import broadcast, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import as_number
from dycl_tvm.frontend.trace.values.grown import Grown, rank_of
from dycl_tvm.frontend.trace.values.grown_math import refuse_call, there_is
from dycl_tvm.frontend.trace.values.indices import require


def put_all(func: Any, t: Grown, value: torch.Tensor) -> Any:
    """Change all that there is of a tensor to a value that broadcasts to it."""
    whole = t.padded()
    if rank_of(value) > t.dim_():
        return refuse_call(func, t, value)
    if isinstance(value, Grown) or any((extent_at(value, t.dim_() - d) or 1) != 1 for d in t.lengths):
        agreed = broadcast([t, value])
        if agreed is None:
            return refuse_call(func, t, value)
        buffer, rank = agreed[0].get(id(value), value), rank_of(value)
        for from_end, extent in agreed[1].items():
            own = extent_at(t, from_end)
            if not is_same(extent, own):  # the tensor itself is not spread
                fine = as_number(extent) == as_number(own)  # type: ignore[arg-type]  # it has the dimension
                require(fine, RuntimeError("the sizes of two tensors must match at a dimension whose length is known only at run time"))
            if rank >= from_end:
                buffer = fitted(buffer, rank - from_end, whole.shape[-from_end])
        value = buffer
    value = value.to(whole.dtype)
    if t.storage_.cut or t.chain:  # behind the length lies what another tensor has there
        value = torch.where(there_is(t), value, whole)
    torch.Tensor.copy_(whole, value)
    return t
