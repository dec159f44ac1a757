# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention of PyTorch's what the run decides of it, and its fast path, given masks. Like the user's own code, it runs rewritten.

On the fast path a mask says which keys are left out, by what is not 0, and a query of which all keys are left out is not a number. The
other path adds masks of floats, and gives such a query what attention to nothing gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dycl_tvm.frontend.python.source.as_it_is import AsItIs
from dycl_tvm.frontend.trace.values.tensors import known_numbers

_LAYER, _ATTENTION = AsItIs(nn.TransformerEncoderLayer.forward), AsItIs(nn.MultiheadAttention.forward)


def encoder_layer(layer: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
    """Stand for the forward of an ``nn.TransformerEncoderLayer``."""
    mask, padding = src_mask, src_key_padding_mask
    if mask is not None and padding is not None and (mask.is_floating_point() or padding.is_floating_point()):
        merged = layer.self_attn.merge_masks(_added(mask, src), _added(padding, src), src)[0]
        mask, padding = merged.reshape(-1, *merged.shape[2:]), None
    mask, padding = _left_out(mask), _left_out(padding)
    return _without_keys(_LAYER(layer, src, mask, padding), mask, padding)


def attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = False,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Stand for the forward of an ``nn.MultiheadAttention`` that is asked for no weights."""
    made, weights = _ATTENTION(module, query, key, value, key_padding_mask, False, attn_mask)
    return _without_keys(made, attn_mask, key_padding_mask), weights


def by_flag(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **others: Any
) -> torch.Tensor:
    """Stand for ``F.scaled_dot_product_attention`` where the run decides whether it is causal, as in ``is_causal=q.shape[2] > 1``."""
    if is_causal:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, True, **others)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, False, **others)


def _added(mask: Any, src: Any) -> Any:
    """Return a mask as it is added to scores."""
    return mask if mask.is_floating_point() else torch.zeros_like(mask, dtype=src.dtype).masked_fill_(mask, float("-inf"))


def _left_out(mask: Any) -> Any:
    return mask != 0 if mask is not None and mask.is_floating_point() else mask


def _without_keys(made: Any, mask: Any, padding: Any) -> Any:
    """Return a result of shape (batch, queries, size) that is not a number where a query has no key."""
    batch, queries = made.shape[0], made.shape[1]
    nothing = None
    if mask is not None:
        nothing = mask.view(batch, -1, queries, queries) if mask.dim() == 3 else mask.view(1, 1, queries, queries)
    if padding is not None:
        padding = padding.view(batch, 1, 1, queries)
        nothing = padding if nothing is None else nothing | padding
    if nothing is None:
        return made
    nothing = nothing.all(-1).any(1)
    known = known_numbers(nothing.clone())
    if known is not None and not any(any(row) for row in known):
        return made
    return torch.where(nothing.unsqueeze(-1), float("nan"), made)
