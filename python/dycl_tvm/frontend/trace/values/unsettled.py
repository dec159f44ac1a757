# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What may be a tensor itself, or a copy of it, where its strides follow from a length that is known only at run time.

No fork can tell: so what is made stands for both, and once one of the two is changed in place, the other cannot be read any more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.grown import OfTheRun, copied_or_itself
from dycl_tvm.frontend.trace.values.grown_math import flat
from dycl_tvm.frontend.trace.values.layouts import Layouts, meta_of, meta_with
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, peek

_T = torch.Tensor


def _open(t: torch.Tensor) -> Layouts | None:
    layouts = t.layouts if isinstance(t, StagedTensor) else None
    return layouts if layouts is not None and isinstance(layouts.decision, OfTheRun) else None


def contiguous(t: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """``t.contiguous()``."""
    layouts = _open(t)
    if layouts is None or memory_format is not torch.contiguous_format:
        return t.contiguous(memory_format=memory_format)
    return _copied(t, {meta_of(tuple(t.shape), strides, t.dtype).is_contiguous() for strides in layouts.strides})


def reshape(t: torch.Tensor, *sizes: Any, **named: Any) -> torch.Tensor:
    """``t.reshape(shape)``: a view, if the strides allow it."""
    layouts = _open(t)
    if layouts is None:
        return t.reshape(*sizes, **named)
    wanted = [item(n) if isinstance(n, torch.Tensor) else n for n in (named["shape"] if named else flat(sizes))]
    if not all(type(n) is int for n in wanted):
        return t.reshape(wanted)
    views = set()
    for strides in layouts.strides:
        meta = meta_of(tuple(t.shape), strides, t.dtype)
        with plainly():
            made = meta.reshape(wanted)
        views.add(torch._C._is_alias_of(made, meta))  # type: ignore[attr-defined]
        shape = tuple(made.shape)
    return (t if views == {True} else _copied(t, views)).view(shape)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, *others: Any, **named: Any) -> Any:
    """``F.scaled_dot_product_attention``: PyTorch chooses a kernel by the strides, and the kernels lay out their results in two ways."""
    given = [query, key, value, attn_mask]
    found = [layouts for t in given if isinstance(t, torch.Tensor) and (layouts := _open(t)) is not None]
    if not found or query.dim() != 4:
        return NotImplemented
    given = [t.clone(memory_format=torch.contiguous_format) if isinstance(t, torch.Tensor) and _open(t) else t for t in given]
    made: Any = F.scaled_dot_product_attention(*given, *others, **named)
    b, h, n, d = made.shape
    by_heads, by_queries = meta_of((b, h, n, d), None, made.dtype).stride(), meta_of((b, n, h, d), None, made.dtype).stride()
    strides = [by_heads, tuple([by_queries[k] for k in (0, 2, 1, 3)])]
    return StagedTensor(meta_with((b, h, n, d), made.dtype, strides, found[0].decision), made.storage_, made.chain, peek(made))


def _copied(t: torch.Tensor, itself: set[bool]) -> torch.Tensor:
    """Return a tensor that lies in order: itself, or a copy, or what may be both."""
    if itself == {True}:
        return t
    return copied_or_itself(t) if True in itself else t.clone(memory_format=torch.contiguous_format)  # type: ignore[arg-type]
