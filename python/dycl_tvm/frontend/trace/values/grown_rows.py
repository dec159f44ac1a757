# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Layers of tensors whose number of rows, the first dimension, is known only at run time; those behind the end are computed for nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values.arguments import leaves, tensors_of
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.grown_layers import HANDLERS as LAYERS
from dycl_tvm.frontend.trace.values.grown_math import Handler, new, new_in, refuse_call, takes
from dycl_tvm.frontend.trace.values.grown_pooling import HANDLERS as POOLS
from dycl_tvm.frontend.trace.values.grown_resize import SIZED as RESIZE
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.numbers import is_symbolic


def _of_rows(rank: int | None = None) -> Handler:
    """Return how to call a layer that computes each row by itself, of a tensor of a rank, that of a batch of one."""

    def handler(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
        others = any(isinstance(a, Grown) for a in tensors_of(args, kwargs))
        if t.along != 0 or others or (rank is not None and t.dim_() != rank) or kwargs.get("training") or kwargs.get("out") is not None:
            return refuse_call(func, t, args, kwargs)
        made = func(t.padded() if t.contiguous_ else t.padded().clone(), *args, **kwargs)
        return new(made, 0, t.length) if isinstance(made, torch.Tensor) else tuple([new(part, 0, t.length) for part in made])

    return handler


def _or_along(of_rows: Handler, along: Handler) -> Handler:
    """Return how to call a layer that is known too where the dimension is not the first."""

    def handler(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
        plain = not any(map(is_symbolic, leaves((args, kwargs))))
        chosen = of_rows if list(t.lengths) == [0] and plain else along
        return chosen(func, t, *args, **kwargs) if takes(chosen, (func, t, *args), kwargs) else refuse_call(func, t, args, kwargs)

    return handler


def _group_norm(func: Any, t: Grown, num_groups: int, *args: Any, **kwargs: Any) -> Any:
    if math.prod(t.buffer.shape[1:]) == num_groups:  # PyTorch refuses one row then
        return refuse_call(func, t)
    return _of_rows()(func, t, num_groups, *args, **kwargs)


def _resized(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    """Resize images: how many there are, or how many channels they have, is of no account; heights and widths are."""
    if max(t.lengths) > 1 or any(map(is_symbolic, leaves((args, kwargs)))):
        along = RESIZE[F.interpolate]
        return along(func, t, *args, **kwargs) if takes(along, (func, t, *args), kwargs) else refuse_call(func, t, args, kwargs)
    if 1 in t.lengths and t.lengths[1].bounds[0] < 1:
        require(number(t.lengths[1]) > 0, RuntimeError("interpolate() of images without channels"))
    return new_in(func(t.padded() if t.contiguous_ else t.padded().clone(), *args, **kwargs), t.lengths, t.contiguous_)


_ALONG = {**LAYERS, **POOLS, **RESIZE}
_DIMENSIONS = (1, 2, 3)
HANDLERS: dict[Any, Handler] = {
    **{func: _of_rows(n + 2) for n in _DIMENSIONS for func in (getattr(F, f"max_pool{n}d"), getattr(F, f"adaptive_max_pool{n}d"))},
    torch.avg_pool1d: _of_rows(3),
    torch.adaptive_avg_pool1d: _of_rows(3),
    **{getattr(torch._C._nn, f"{name}{n}d"): _of_rows(n + 2) for name in ("avg_pool", "adaptive_avg_pool") for n in (2, 3)},
    F.group_norm: _group_norm,
}
HANDLERS.update({func: _or_along(handler, _ALONG[func]) for func, handler in HANDLERS.items() if func in _ALONG})
HANDLERS[F.interpolate] = _resized
