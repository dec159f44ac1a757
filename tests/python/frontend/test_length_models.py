# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models of a batch, or of a sequence, whose length is known only at run time; what lies behind it in memory is not a number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check, same, stage
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError

MOST = 5
LENGTHS = (MOST, 1, 2, 0, 3)
SIZE = 4


class Network(nn.Module):
    """Layers, and one of the programs below, which is given the front of a tensor: along the batch, or along the sequence."""

    def __init__(self, program, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.program, self.dim = program, dim
        self.heads = nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(SIZE, 2, 8, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(SIZE, 2, 8)
        self.lstm = nn.LSTM(SIZE, 3, 2, bidirectional=True, batch_first=True)
        self.projected = nn.LSTM(SIZE, 3, proj_size=2, bias=False)
        self.gru, self.rnn = nn.GRU(SIZE, 3, bidirectional=True), nn.RNN(SIZE, 3, nonlinearity="relu", batch_first=True)
        self.cells = nn.ModuleList([nn.LSTMCell(SIZE, 3), nn.GRUCell(SIZE, 3), nn.RNNCell(SIZE, 3)])
        self.words = nn.Embedding(9, SIZE)
        self.eval()

    def forward(self, x, n):
        n = n.item()
        return self.program(self, x[:n] if self.dim == 0 else x[:, :n])


def given(n: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn((MOST, 3, SIZE) if dim == 0 else (2, MOST, SIZE), generator=torch.Generator().manual_seed(n))
    (x[n:] if dim == 0 else x[:, n:]).fill_(float("nan"))
    return x, torch.tensor(n)


def split(x):
    return x.view(*x.shape[:2], 2, 2).transpose(1, 2)


def attended(net, x):
    q, k = split(x), split(x * 2)
    causal = F.scaled_dot_product_attention(q, k, k, is_causal=x.shape[1] > 1)
    grouped = F.scaled_dot_product_attention(q, k[:, :1], k[:, :1], enable_gqa=True)
    joined = causal.transpose(1, 2).reshape(x.shape)
    return joined, grouped, net.encoder(x), net.heads(x, x, x, need_weights=False)[0]


def attended_in_batches(net, x):
    q, seen = split(x), x[:, :, 0] > 0
    masked = F.scaled_dot_product_attention(q, q, q, seen[:, None, None].float())
    fixed = F.scaled_dot_product_attention(q, torch.ones(1, 2, 6, 2), torch.ones(2, 6, 2).cumsum(1))
    turned = x.transpose(0, 1)
    return masked, fixed, net.decoder(turned, turned * 2)


def with_weights(net, x):
    return net.heads(x, x, x, attn_mask=torch.ones(3, 3).triu(1).bool())


def with_padding(net, x):
    return net.heads(x, x, x, key_padding_mask=(x[:, :, 0] > 0) & (torch.arange(3) > 0), need_weights=False)[0]


def multiplied(net, x):
    y = x.transpose(1, 2)
    return (
        x @ y,
        torch.bmm(x, y),
        x @ torch.ones(SIZE),
        torch.ones(2, 3) @ x,
        torch.baddbmm(torch.ones(3, 3), x, y),
        x[:, None] @ y[:, None],
    )


def recurrent(net, x):
    turned, begin = x.transpose(0, 1), torch.ones(2, x.shape[0], 3)
    return net.lstm(x), net.projected(turned), net.gru(turned, begin), net.rnn(x)


def by_cells(net, x):
    return net.cells[0](x[:, 0]), net.cells[1](x[:, 1]), net.cells[2](x[:, 0], net.cells[1](x[:, 1]))


def regrouped(net, x):
    flat = x.reshape(-1, SIZE)
    heads = x.contiguous().view(x.shape[0] * 3, 2, 2).transpose(0, 1).transpose(0, 1).view(x.shape[0], 3, 2, 2)
    back = flat.view(flat.shape[0] // 3, 3, SIZE)
    return flat, heads, back, x.transpose(0, 1).reshape(3, x.shape[0] * 2, 2), flat.shape[0] % 3, back.shape[0] == x.shape[0]


def at_places(net, x):
    index = (x.nan_to_num(0) > 0).long()
    table, wide = torch.arange(4.0 * MOST * 3).view(MOST, 3, 4), torch.arange(48.0).view(MOST - 1 + 1 - 1, 3, 4)
    out = (
        torch.gather(table, dim=1, index=index),
        x.gather(2, torch.zeros(1, 3, 2, dtype=torch.int64)) if x.shape[0] > 0 else x,
        torch.take_along_dim(x, index, 2),
        F.embedding(index[:, :, 0], net.words.weight),
        F.embedding(torch.zeros(2, dtype=torch.int64), x[:, 0]) if x.shape[0] > 0 else x,
    )
    put = (
        torch.scatter(x, 1, index, x * 2),
        torch.zeros(MOST, 3, 4).scatter_add(1, index, x),
        x.scatter(2, torch.zeros(1, 3, 2, dtype=torch.int64), 7.0) if x.shape[0] > 0 else x,
        x.index_add(1, torch.tensor([0, 2]), x[:, :2]),
        x.index_fill(1, torch.tensor([-1]), 3.0),
    )
    return out, put, wide.gather(1, index[:2])


def flags(net, x):
    keeps = x.shape[0] > 2
    return torch.ones(2, 3).sum(1, keepdim=keeps) + 1, torch.sort(torch.tensor([1.0, 3.0, 2.0]), 0, not keeps)[0]


PROGRAMS = {
    "attention of a sequence": (attended, 1),
    "attention of a batch": (attended, 0),
    "masked attention of a batch": (attended_in_batches, 0),
    "products": (multiplied, 0),
    "recurrent over a sequence": (recurrent, 1),
    "recurrent over a batch": (recurrent, 0),
    "cells": (by_cells, 0),
    "regrouped": (regrouped, 0),
    "places": (at_places, 0),
    "flags": (flags, 0),
}


def outcome(call, args):
    try:
        with torch.no_grad():
            return call(*args)
    except RuntimeError as error:
        return error


def compare(want, got) -> None:
    assert isinstance(got, RuntimeError) if isinstance(want, RuntimeError) else same(want, got), (want, got)


@pytest.mark.parametrize("name", PROGRAMS)
def test_right(name: str) -> None:
    program, dim = PROGRAMS[name]
    net = Network(program, dim)
    with torch.no_grad():
        call = stage(net, given(2, dim)).interpret()
    for n in LENGTHS:
        compare(outcome(net, given(n, dim)), outcome(call, given(n, dim)))


def all_of_a_sequence(net, x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1), net.rnn(x)


def test_built(tmp_path: Path) -> None:
    net = Network(all_of_a_sequence, 1)
    art = dycl_tvm.build(net, given(2, 1), target="llvm")
    run = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for n in LENGTHS:
        want = outcome(net, given(n, 1))
        if isinstance(want, RuntimeError):
            with pytest.raises(dycl_tvm.RunError):
                run(*given(n, 1))
        else:
            assert all(
                torch.allclose(a, torch.as_tensor(b), atol=1e-5) for a, b in zip(_leaves(want), _leaves(run(*given(n, 1))), strict=True)
            )


def _leaves(x):
    return torch.utils._pytree.tree_leaves(x)


@pytest.mark.parametrize("program", [with_weights, with_padding])
def test_attention_of_no_rows(program) -> None:
    net = Network(program, 0)
    with torch.no_grad():
        call = stage(net, given(2, 0)).interpret()
    for n in range(1, MOST + 1):
        compare(outcome(net, given(n, 0)), outcome(call, given(n, 0)))
    with pytest.raises(RuntimeError, match="attention of no rows"):
        call(*given(0, 0))


def longer_than_the_tensor(net, x):
    return torch.ones(3, 3, 4).gather(1, x.nan_to_num(0).long() * 0)


def of_another_batch(net, x):
    return torch.bmm(x, torch.ones(4, SIZE, 2)), F.scaled_dot_product_attention(x, torch.ones(4, 3, SIZE), torch.ones(4, 3, SIZE))


def behind_the_last_place(net, x):
    return torch.zeros(MOST, 3, 4).scatter(1, (x.nan_to_num(0) * 0 + x.shape[0]).long(), 1.0)


@pytest.mark.parametrize("program", [longer_than_the_tensor, of_another_batch, behind_the_last_place], ids=lambda f: f.__name__)
def test_errors(program) -> None:
    net = Network(program, 0)
    call = stage(net, given(2, 0)).interpret()
    wanted = [outcome(net, given(n, 0)) for n in range(MOST + 1)]
    assert len({isinstance(want, RuntimeError) for want in wanted}) == 2
    for n, want in enumerate(wanted):
        compare(want, outcome(call, given(n, 0)))


def test_refused() -> None:
    def heads(net, x):
        q = x.transpose(0, 1)[None].reshape(1, 3, -1, SIZE).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, enable_gqa=True)[:, :1]

    def dropped(net, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    for program in (heads, dropped):
        with pytest.raises(UnsupportedError, match="scaled_dot_product_attention"):
            stage(Network(program, 0), given(2, 0))


@pytest.mark.parametrize("targets", [[[0, 5, 12, 3, 19], [1, 2, 3, 0, 1], [4, 5, 6, 7, 8], [19] * 5, [0, 0, 11, 0, 20]], [[0], [5], [12]]])
def test_adaptive_log_softmax(targets):
    """One place that ``squeeze()`` left without a dimension is a row of one; a target that is too large is the module's own error."""
    torch.manual_seed(0)
    net = nn.AdaptiveLogSoftmaxWithLoss(SIZE, 20, [4, 10]).eval()
    check(net, [(torch.randn(len(t), SIZE), torch.tensor(t)) for t in targets], paths=3)


class Picked(nn.Module):
    """A network of which the input picks filters and channels."""

    def __init__(self, function, bias=True):
        super().__init__()
        self.filters, self.channels = nn.Linear(6, 8), nn.Linear(6, 6)
        self.weight, self.bias = nn.Parameter(torch.randn(8, 6, 3, 3) * 0.2), nn.Parameter(torch.randn(8)) if bias else None
        self.bn, self.function = nn.BatchNorm2d(8), function
        nn.init.uniform_(self.bn.running_mean)
        nn.init.uniform_(self.bn.weight)

    def forward(self, x):
        pooled = x.mean((2, 3))[0]
        return self.function(self, x, (self.filters(pooled) > 0).nonzero().squeeze(1), (self.channels(pooled) > 0).nonzero().squeeze(1))


def _filters(m, x, idx, _):
    out = x.new_zeros(1, 8, *x.shape[2:])
    out[:, idx] = F.conv2d(x, m.weight[idx], m.bias[idx], padding=1)
    return out


def _channels(m, x, _, idx):
    return F.conv2d(x[:, idx], m.weight[:, idx], m.bias, stride=2)


def _channels_without_a_batch(m, x, _, idx):
    return F.conv2d(x[0, idx], m.weight[:, idx], padding="same")


def _normalised(m, x, out, _):
    y = F.conv2d(x, m.weight[out], m.bias[out], padding=1)
    y = F.batch_norm(y, m.bn.running_mean[out], m.bn.running_var[out], m.bn.weight[out], m.bn.bias[out])
    return F.conv2d(y.relu(), m.weight.transpose(0, 1)[:, out])


def _both(m, x, out, idx):
    return F.conv2d(x[:, idx], m.weight[out][:, idx], m.bias[out], dilation=2)


def _by_mask(m, x, _, __):
    picked = m.filters(x.mean((2, 3))[0]) > 0
    return F.linear(x.permute(0, 2, 3, 1), m.weight[picked, :, 1, 1], m.bias[picked])


def _columns(m, x, _, idx):
    return F.linear(x.permute(0, 2, 3, 1)[..., idx], m.weight[:, idx, 0, 0], m.bias)


def _other_bias(m, x, idx, _):
    return F.conv2d(x, m.weight[idx], m.bias)


@pytest.mark.parametrize("function", [_filters, _channels, _channels_without_a_batch, _normalised, _both, _by_mask, _columns, _other_bias])
def test_filters_and_channels_that_are_picked(function):
    """None, some and all of them; what PyTorch refuses is an error at run time."""
    torch.manual_seed(0)
    net = Picked(function).eval()
    with torch.no_grad():
        net.filters.weight.mul_(0.1)
        net.channels.weight.mul_(0.1)
    graph = stage(net, (torch.randn(1, 6, 7, 7),))
    counts = set()
    for shift in (0.0, 0.0, 0.0, 30.0, -30.0):
        with torch.no_grad():
            for layer in (net.filters, net.channels):
                layer.bias.fill_(0)
        x = torch.randn(1, 6, 7, 7) + torch.randn(1, 6, 1, 1) * 3
        if shift:  # a direction in which all are picked, or none
            both = torch.cat([net.filters.weight, net.channels.weight])
            x = x * 1e-3 + (torch.linalg.lstsq(both, torch.full((14, 1), shift)).solution).reshape(1, 6, 1, 1)
        counts.add(int((net.filters(x.mean((2, 3))) > 0).sum()))
        try:
            want = net(x)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                graph.interpret()(x)
            continue
        torch.testing.assert_close(graph.interpret()(x), want, rtol=1e-4, atol=1e-4)
    assert len(counts) > 2


def test_groups_of_channels_that_are_picked_are_refused():
    def depthwise(m, x, _, idx):
        return F.conv2d(x[:, idx], m.weight[:6, :1][idx], groups=idx.shape[0])

    with pytest.raises(UnsupportedError, match="conv2d"):
        stage(Picked(depthwise).eval(), (torch.randn(1, 6, 7, 7),))
