# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A bound that the user gives for the length of a tensor: its buffer is no longer than that."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.bound import bound
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.extents import as_number, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.grown_math import Handler
from dycl_tvm.frontend.trace.values.identity import share_identity
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.tensors import view_of


def _bounded(func: Any, t: Grown, dim: int, n: int) -> torch.Tensor:
    along, size = dim % t.dim_(), t.buffer.shape[dim]
    beyond = RuntimeError(f"dimension {dim} is longer than its bound {n}")
    own = t.lengths.get(along)
    if own is None and size > n:
        raise of_program(beyond)
    if own is None or own.bounds[1] <= n:
        return t
    length = as_number(own)
    require(length <= n, beyond)
    made = view_of(t, cut(t.padded().narrow(along, 0, n), {**t.lengths, along: extent_of(length, own.bounds[0], n)}))  # type: ignore[arg-type]
    share_identity(made, t)
    return made


HANDLERS: dict[Any, Handler] = {bound: _bounded}
