# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which calls of PyTorch's attention take its fast path, where a query that may look at no key gives no number.

PyTorch itself says so: the module's forward runs on zeros up to its first operator.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source import plain_attention
from dycl_tvm.frontend.python.source.ownership import code_of, with_code
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.grown_math import dtype_of

#: What the fast path of each module is. A layer that takes the other one calls an attention, which may take its own.
_OF_A_LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default
_OF_AN_ATTENTION = torch.ops.aten._native_multi_head_attention.default


class _Reached(BaseException):
    """The first operator."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator


class _FirstOperator(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reached(func)


def encoder_layer_of(
    layer: nn.TransformerEncoderLayer, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
) -> Callable[..., Any] | None:
    """Return what stands for a call of an encoder's layer; None if it runs as it is."""
    masked = src_mask is not None or src_key_padding_mask is not None or is_causal
    own = _own_code(layer)
    if not (masked or own) or not _is_fast(layer, nn.TransformerEncoderLayer.forward, [src], _OF_A_LAYER):
        return None
    if own:
        raise UnsupportedError(
            f"PyTorch runs this {type(layer).__name__} by its fast path, without {own}, which is the program's own",
            current().origin(),
            "call torch.backends.mha.set_fastpath_enabled(False) before the build, and wherever the model runs in eager",
        )
    return plain_attention.encoder_layer


def _own_code(layer: nn.TransformerEncoderLayer) -> str:
    """Return which code of the program's own the other path of an encoder's layer calls, and the fast path does not."""
    for name, function in vars(nn.TransformerEncoderLayer).items():
        is_method = isinstance(function, types.FunctionType) and name != "forward" and not name.startswith("__")
        if is_method and getattr(getattr(layer, name), "__func__", None) is not function:
            return f"`{name}`"
    for name, child in layer.named_children():
        if "forward" in vars(child) or not type(child).forward.__module__.startswith("torch."):
            return f"the forward of `{name}`"
    return ""


def attention_of(
    attention: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Callable[..., Any] | None:
    """Return what stands for a call of ``nn.MultiheadAttention``; None if it runs as it is, as it does with weights."""
    masks = [mask for mask in (key_padding_mask, attn_mask) if mask is not None]
    if need_weights or not (masks or is_causal) or any(dtype_of(mask) != torch.bool for mask in masks):
        return None
    is_fast = _is_fast(attention, nn.MultiheadAttention.forward, [query, key, value], _OF_AN_ATTENTION)
    return plain_attention.attention if is_fast else None


def _is_fast(module: nn.Module, forward: Any, tensors: list[torch.Tensor], operator: Any) -> bool:
    """Whether a call without masks takes the fast path, of which ``operator`` is the first."""
    with plainly():
        zeros = {id(t): _zeros(t) for t in tensors}
        try:
            with _FirstOperator():
                with_code(forward, code_of(forward))(module, *[zeros[id(t)] for t in tensors])
        except _Reached as first:
            return bool(first.operator == operator)
        except (RuntimeError, AssertionError, TypeError, ValueError):  # the call itself will say what is wrong
            return False
    return False


def _zeros(t: torch.Tensor) -> torch.Tensor:
    shape = t.buffer.shape if isinstance(t, Grown) else tuple(t.shape)
    return torch.zeros(shape, dtype=t.dtype, requires_grad=t.requires_grad)
