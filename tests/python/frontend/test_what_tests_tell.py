# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a test of a size tells: on its sides, behind them where paths meet, to the end where they part, and in ``and`` and ``or``."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn
from torch.nn import functional as F

import dycl_tvm

T = dycl_tvm.Dim("T", min=1, max=6)


def sequences(*sizes, batch=1, width=16):
    return [(torch.randn(batch, n, width, generator=torch.Generator().manual_seed(n)),) for n in sizes]


class Attention(nn.Module):
    """Heads of keys fewer than those of queries, as of language models, whose code asks how many queries there are."""

    def __init__(self, heads, keys, packs, causal):
        super().__init__()
        self.heads, self.keys, self.packs, self.causal = heads, keys, packs, causal
        self.q, self.kv = nn.Linear(16, heads * 4), nn.Linear(16, 2 * keys * 4)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, -1, 4).transpose(1, 2)
        k, v = (y.view(b, n, -1, 4).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        groups, given = self.heads // self.keys, {}
        if groups > 1:
            if not self.packs:
                given["enable_gqa"] = True
            elif n == 1 and not self.training:
                q = q.reshape(b, self.keys, groups, 4)
            else:
                k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        is_causal = n > 1 and mask is None and self.causal
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, **given)
        y = y.reshape(y.shape[0], -1, n, v.shape[-1]).transpose(1, 2).contiguous()
        return x + y.reshape(b, n, -1)


@pytest.mark.parametrize(("keys", "packs", "causal"), [(4, False, False), (2, False, True), (1, False, True), (2, True, True)])
def test_attention_that_asks_for_the_number_of_its_queries(keys, packs, causal):
    torch.manual_seed(0)
    layers = nn.Sequential(*[Attention(4, keys, packs, causal) for _ in range(2)]).eval()
    graph = check(layers, sequences(3, 1, 2, 6), dynamic_shapes=({1: T},))
    assert len(graph.return_sites()) <= 1 + packs
    assert len(graph.blocks) <= 30


def test_an_open_batch_of_it():
    torch.manual_seed(0)
    layers = nn.Sequential(*[Attention(4, 2, False, True) for _ in range(2)]).eval()
    given = [(torch.randn(b, n, 16),) for b, n in ((2, 3), (1, 1), (3, 1), (1, 6), (3, 6))]
    check(layers, given, dynamic_shapes=({0: dycl_tvm.Dim("B", min=1, max=3), 1: T},))


def test_tensors_that_meet_are_as_long_as_they_were():
    def f(x):
        y = x[:, :1] * 2 if x.shape[1] == 1 else x + 1
        z = torch.ones(1, 1, 16) if x.shape[1] < 2 else x.cumsum(1)
        return y + z + x, y.shape[1]

    graph = check(f, sequences(3, 1, 2, 6), dynamic_shapes=({1: T},))
    assert not any("raise" in line for line in str(graph).splitlines())  # nobody has to compare lengths


def test_tensors_that_meet_and_are_longer():
    def f(x):
        y = x[:, :1] if x.shape[1] > 3 else x + 1
        z = x[:, :2] if x.shape[1] == 2 else x[:, :1]
        return y * 2, z, y.shape[1], z.shape[1]

    check(f, sequences(3, 1, 2, 4, 6), dynamic_shapes=({1: T},))


def test_what_a_test_tells_where_paths_part():
    def f(x):
        kind = {"one": x} if x.shape[1] == 1 else [x, x * 2]
        y = x.reshape(1, 16) if x.shape[1] == 1 else x.sum(1)
        if x.shape[1] > 1:
            y = y + kind[1][:, -1]
        return y, x.view(x.shape[1] * 16), x.shape[1] == 1, len(kind)

    check(f, sequences(3, 1, 2, 6), dynamic_shapes=({1: T},), paths=2)


def test_it_is_forgotten_where_the_other_side_goes_on():
    def f(x):
        if x.shape[1] == 2:
            y = x * 3
            if x.sum() > 0:
                return {"two": y, "n": x.shape[1]}
        else:
            y = x
        return y + x, x.shape[1], x.shape[1] == 2

    check(f, [(s * x,) for s in (1, -1) for (x,) in sequences(3, 1, 2, 6)], dynamic_shapes=({1: T},), paths=2)


def test_and_and_or_give_the_bool_that_was_tested():
    def f(x):
        n = x.shape[1]
        some, none = n > 2 and x is not None, n > 2 and x is None
        first, either = n < 2 or n == 5, n < 2 or x is None
        answer, number = n > 3 and 7, n == 4 or 0
        positive = (x.sum() > 0).item() and some
        return some, none, first, either, answer, number, positive, type(some), type(either), n and 3, (n - 1) and n

    check(f, sequences(3, 1, 2, 4, 5, 6), dynamic_shapes=({1: T},))


def test_flags_of_the_run():
    def f(x):
        flag = (x.sum() > 0).item()
        y = x.view(1, -1, 4, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(y, y, y, None, 0.0, flag), F.scaled_dot_product_attention(y, y, y, is_causal=not flag)

    graph = check(f, [(s * x,) for s in (1, -1) for (x,) in sequences(3, 1, 6)], dynamic_shapes=({1: T},), paths=2)
    assert len(graph.return_sites()) == 1


def test_any_row_of_rows_that_are_alike():
    def f(x):
        steps = torch.diff(torch.arange(x.shape[1]), prepend=torch.tensor([-1]))
        breaks = (steps != 1).cumsum(0)
        if breaks[-1] == 0:
            return x * 2
        return x.sum()

    assert len(check(f, sequences(3, 1, 6), dynamic_shapes=({1: T},)).blocks) == 1


def test_products_that_are_added_by_the_names_of_their_arguments():
    def f(x):
        y, bias = x[0], torch.ones(1)
        return (
            bias.baddbmm(batch1=x, batch2=x.mT, beta=0.5, alpha=2),
            bias.addmm(mat1=y, mat2=y.T),
            torch.addmv(bias, mat=y, vec=y[0], beta=0),
        )

    check(f, sequences(3, 1, 6), dynamic_shapes=({1: T},))


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped_mm")
def test_experts_of_any_number_of_rows():
    torch.manual_seed(0)
    gate, up = nn.Linear(16, 3), torch.randn(3, 16, 8)

    def f(x):
        rows = x.view(-1, 16)
        chosen = gate(rows).argmax(-1)
        order = chosen.sort(stable=True).indices
        ends = torch.stack([(chosen <= k).sum() for k in range(3)]).to(torch.int32)
        y = F.grouped_mm(rows[order], up, offs=ends)
        return y[order.argsort()].relu(), y + 1

    check(f, sequences(3, 1, 6), dynamic_shapes=({1: T},))
