# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How tensors whose lengths are known only at run time lie in memory in eager, as far as the lengths do not decide it.

PyTorch lays the results of layers of images out as their input suggests: in order, or with the channels innermost. Which of them is asked
for strides, those of dimensions of one element too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dycl_tvm.frontend.trace.values.grown import Grown, rank_of
from dycl_tvm.frontend.trace.values.layouts import meta_of, meta_with, strides_of
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, peek

Order = tuple[int, ...]
_CHANNELS_LAST = (0, 2, 3, 1)


def suggested_order(t: torch.Tensor) -> Order | None:
    """Return the order in memory that a tensor suggests for results of its rank; None if it depends on the lengths, or is not known."""
    rank = rank_of(t)
    in_order = tuple(range(rank))
    if rank not in (4, 5):
        return in_order
    if not isinstance(t, Grown):
        found = {_is_like_channels_last(t.shape, strides) for strides in strides_of(t)}
        return None if len(found) > 1 or (True in found and rank != 4) else _CHANNELS_LAST if True in found else in_order
    if t.order == in_order:
        return in_order
    if t.order is None or rank != 4:
        return None
    first, last = [1 if d in t.lengths else t.buffer.shape[d] for d in (1, 3)]
    if t.order.index(1) < t.order.index(3) and max(first, last) > 1:
        return in_order  # what would be innermost lies within the channels
    return _CHANNELS_LAST if t.order == _CHANNELS_LAST and not t.gaps and first > 1 else None


def order_of_joined(tensors: Sequence[torch.Tensor]) -> Order | None:
    """Return in which order lies what ``cat`` and the like make of tensors of a rank: in order if one of them suggests that."""
    found = {suggested_order(t) for t in tensors}
    in_order = tuple(range(max(map(rank_of, tensors))))
    return in_order if in_order in found or any(rank_of(t) != len(in_order) for t in tensors) else found.pop() if len(found) == 1 else None


def laid_out(t: torch.Tensor, order: Order | None, of: torch.Tensor) -> torch.Tensor:
    """Return what was made of a tensor anew, and lies in memory in such an order; one of fixed shape may lie otherwise at some lengths."""
    if isinstance(t, Grown):
        t.order, t.gaps = order, frozenset()
    elif isinstance(t, StagedTensor) and isinstance(of, Grown) and order != tuple(range(t.dim())) and t.dim() == 4:
        shape = tuple(t.shape)
        strides = [meta_of(shape, None, t.dtype).stride(), _of_channels_last(shape)]
        return StagedTensor(meta_with(shape, t.dtype, strides, of.decision), t.storage_, t.chain, peek(t))
    return t


def _of_channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    c, h, w = [max(size, 1) for size in shape[1:]]
    return h * w * c, 1, w * c, c


def _is_like_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether PyTorch takes strides for those of channels that are innermost."""
    least, dims = 0, (1, *range(len(shape) - 1, 1, -1), 0)
    if strides[1] == 0:
        return False
    for d in dims:
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * max(shape[d], 1)
    return True
