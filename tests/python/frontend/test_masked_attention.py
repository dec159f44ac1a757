# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Masks of PyTorch's attention, whose two paths differ: by the fast one a query of which all keys are left out is not a number."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn
from torch.nn import functional as F

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
PADDING = torch.tensor([[False, False, True, True], [True, True, True, True]])
NOTHING_IS_LEFT_OUT = torch.zeros_like(PADDING)
MASK = torch.eye(4, dtype=torch.bool)
MASK[1] = True
BIAS = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
BIAS[2] = 0
HEADS = torch.rand(4, 4, 4, generator=torch.Generator().manual_seed(2)) > 0.5


def _layer(**options):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "masks",
    [
        [(None, PADDING), (None, NOTHING_IS_LEFT_OUT)],
        [(MASK, PADDING), (MASK, NOTHING_IS_LEFT_OUT)],
        [(HEADS, None), (HEADS & False, None)],
        [(BIAS, None), (BIAS * 0, None)],  # on the fast path what is not 0 leaves a key out
        [(BIAS, PADDING.float()), (BIAS, -BIAS[:2])],
    ],
)
def test_encoder_layer(options, grad, masks):
    """The path is that of the grad mode in which the model is staged."""
    layer = _layer(**options)
    with torch.set_grad_enabled(grad):
        check(lambda x, mask, padding: layer(x, src_mask=mask, src_key_padding_mask=padding), [(X, *pair) for pair in masks])


def test_layers_within_others():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False).eval()
    whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    with torch.no_grad():
        check(encoder, [(X, MASK, PADDING), (X, MASK, NOTHING_IS_LEFT_OUT)])
        check(lambda x, padding: whole(x, x, src_key_padding_mask=padding, tgt_key_padding_mask=padding), [(X, PADDING)])


@pytest.mark.parametrize("weights", [False, True])
def test_attention(weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        check(lambda x, padding: attention(x, x, x, key_padding_mask=padding, need_weights=weights), [(X, PADDING)])
        check(lambda x, y, padding: attention(x, y, y, key_padding_mask=padding, need_weights=weights), [(X, X * 2, PADDING)])
        check(lambda x, bias: attention(x, x, x, attn_mask=bias, need_weights=weights), [(X, BIAS)])


def test_a_mask_that_is_known_leaves_nothing_to_be_asked():
    layer = _layer()
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    with torch.no_grad():
        graph = check(lambda x: layer(x, src_mask=causal, is_causal=True), [(X,)])
    assert "aten.all" not in str(graph)


class Derived(nn.TransformerEncoderLayer):
    """A layer whose forward calls that of its base."""

    def forward(self, x, padding):
        return super().forward(x, src_key_padding_mask=padding) + 1


def _with_a_hook():
    layer = _layer()
    layer.norm1.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    return layer


@pytest.mark.parametrize("make", [lambda: _layer(activation=F.silu), _with_a_hook])
def test_a_layer_that_is_not_fast_though_its_attention_would_be(make):
    layer = make()
    with torch.no_grad():
        check(lambda x, padding: layer(x, src_key_padding_mask=padding), [(X, PADDING)])


def test_a_forward_that_calls_that_of_its_base():
    torch.manual_seed(0)
    with torch.no_grad():
        check(Derived(8, 2, 16, batch_first=True).eval(), [(X, PADDING), (X, NOTHING_IS_LEFT_OUT)])


class Changed(nn.TransformerEncoderLayer):
    """A layer with a method that the fast path does not call."""

    def _ff_block(self, x):
        return super()._ff_block(x) * 2


class Attention(nn.MultiheadAttention):
    """An attention whose forward the fast path does not call."""

    def forward(self, *args, **kwargs):
        made, weights = super().forward(*args, **kwargs)
        return made * 2, weights


def test_what_the_fast_path_does_not_call_is_refused():
    changed, holder = Changed(8, 2, 16, batch_first=True).eval(), _layer()
    holder.self_attn = Attention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        for layer, name in ((changed, "_ff_block"), (holder, "self_attn")):
            with pytest.raises(UnsupportedError, match=name):
                stage(lambda x, layer=layer: layer(x), (X,))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            check(lambda x, padding: changed(x, src_key_padding_mask=padding), [(X, PADDING)])
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
