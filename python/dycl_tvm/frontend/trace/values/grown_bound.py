# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A bound that the user gives for the length of a tensor: its buffer is no longer than that."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.bound import bound
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.extents import extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number
from dycl_tvm.frontend.trace.values.grown_math import Handler
from dycl_tvm.frontend.trace.values.identity import share_identity
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.tensors import view_of


def _bounded(func: Any, t: Grown, dim: int, n: int) -> torch.Tensor:
    along, size = dim % t.dim_(), t.buffer.shape[dim]
    beyond = RuntimeError(f"dimension {dim} is longer than its bound {n}")
    if along not in t.lengths:
        if size > n:
            raise of_program(beyond)
        return t
    low, high = t.lengths[along].bounds
    if high <= n:
        return t
    length = number(t.lengths[along])
    require(length <= n, beyond)
    lengths = {**t.lengths, along: extent_of(length, low, n)}
    made = view_of(t, cut(t.padded().narrow(along, 0, n), lengths))  # type: ignore[arg-type]  # one of staging's
    share_identity(made, t)
    return made


HANDLERS: dict[Any, Handler] = {bound: _bounded}
