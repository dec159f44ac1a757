# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights alone in 8 and 4 bits: what they become, who reads them, and that artefacts hold them so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.grouped import LINEAR, ROWS, dequantised, in_bytes
from dycl_tvm.hcfg.nodes import TensorOp

WORDS, WIDE = 300, 136


class Decoder(nn.Module):
    """Tokens, a cache of the last ones, a layer on each side of a branch, and a head whose weights are the table of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(9, WIDE)
        self.left, self.right = nn.Linear(WIDE, 200), nn.Linear(WIDE, 200, bias=False)
        self.mixed = nn.Parameter(torch.randn(200, WIDE) / 14)
        self.head = nn.Linear(WIDE, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("cache", torch.zeros(4, WIDE))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(tokens % 9)
        self.cache = torch.cat([self.cache[1:], x[-1:]])
        x = x + self.cache.mean(0)
        x = torch.relu(self.left(x)) if x.sum() > 0 else torch.tanh(self.right(x))
        return self.head(x @ self.mixed)


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    torch.manual_seed(0)
    return Decoder().eval().requires_grad_(False)


def _tokens(count: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (count,), generator=torch.Generator().manual_seed(seed))


def _steps(quantised: Any) -> list[TensorOp]:
    return [s for b in quantised.hcfg.blocks for s in b.steps if isinstance(s, TensorOp)]


@pytest.mark.parametrize(("kind", "target"), [("int4", "native"), ("int8", {"kind": "llvm", "mcpu": "x86-64-v3"})])
def test_artefacts_hold_integers_and_do_what_the_quantised_network_does(decoder: nn.Module, kind: Any, target: Any, tmp_path: Path) -> None:
    quantised = dycl_tvm.quantize(decoder, [_tokens()], weights_only=kind)
    art = dycl_tvm.build(quantised, target=target)
    assert "4 weights_only" in str(art.report())
    art.export_library(tmp_path / "model.so")
    art.save_params(tmp_path / "model.params")
    # columns come in wholes of 64; the table lies there once for the product and once in rows; scales and float32 tables are the rest
    bits, products = (4, 8)[kind == "int8"], 256 * 136 * 2 + 320 * 136 + 192 * 200
    most = (products + WORDS * WIDE) * bits / 8 * 1.2 + 4 * 9 * WIDE
    assert most / 1.5 < os.path.getsize(tmp_path / "model.params") < most + 4096 * 4
    module = dycl_tvm.load(tmp_path / "model.so", tmp_path / "model.params")
    sides = set()
    for seed in range(10):
        expected = quantised(_tokens(seed=seed)).numpy()
        np.testing.assert_allclose(np.asarray(module(_tokens(seed=seed))), expected, atol=1e-5 * np.abs(expected).max())
        sides.add(module.last_path.branches[0].choice)
    assert sides == {False, True}


class Table(nn.Module):
    """A table with an addition behind it, and its product with ones at one place: both give single weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 64)

    def forward(self, index: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(index) + bias, nn.functional.linear(x, self.table.weight)


def test_without_the_kernels_weights_are_the_same_to_the_bit(tmp_path: Path) -> None:
    torch.manual_seed(2)
    example = (torch.arange(20), torch.eye(64), torch.randn(64))
    quantised = dycl_tvm.quantize(Table().eval().requires_grad_(False), [example], weights_only="int4", group_size=32)
    assert [s.op for s in _steps(quantised)].count(ROWS) == 1
    assert any((s.args[2].data < 0).any() for s in _steps(quantised) if s.op == LINEAR)  # rounding must not rest on their signs
    art = dycl_tvm.build(quantised, target="native", disable_families=["weights_only"])
    assert "weights_only" not in str(art.report())
    art.export_library(tmp_path / "model.so")
    art.save_params(tmp_path / "model.params")
    made = dycl_tvm.load(tmp_path / "model.so", tmp_path / "model.params")(*example)
    for ours, reference in zip(made, quantised(*example)):
        np.testing.assert_array_equal(np.asarray(ours), reference.numpy())


def test_the_table_of_an_embedding_that_is_a_product_s_weights_is_one_with_them(decoder: nn.Module) -> None:
    quantised = dycl_tvm.quantize(decoder, [_tokens()], weights_only="int8")
    (rows,) = (s for s in _steps(quantised) if s.op == ROWS)
    heads = [s for s in _steps(quantised) if s.op == LINEAR and s.args[1] is rows.args[0]]
    assert heads and all(s.args[2] is rows.args[1] for s in heads)
    table = dequantised(rows.args[0].data, rows.args[1].data, rows.args[2], WIDE)
    weight = decoder.words.weight
    assert ((table - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 * 1.0001).all()
    (kept,) = (s for s in _steps(quantised) if s.op == "aten.embedding.default")
    assert kept.args[0].data.shape == (9, WIDE)
    assert [loss.name for loss in quantised.report.layers if loss.decibels is None] == ["places"]
    with torch.no_grad():
        twin = Decoder().eval().requires_grad_(False)
        twin.load_state_dict(decoder.state_dict())
        for name in ("left", "right", "head"):  # the meaning, written by hand
            layer = getattr(twin, name)
            scale = layer.weight.abs().amax(1, keepdim=True) / 127
            layer.weight.copy_(torch.round(layer.weight / scale) * scale)
        scale = twin.mixed.abs().amax(0) / 127
        twin.mixed.copy_(torch.round(twin.mixed / scale) * scale)
    for seed in range(6):
        torch.testing.assert_close(quantised(_tokens(seed=seed)), twin(_tokens(seed=seed)), rtol=1e-4, atol=1e-5)


def test_smaller_groups_and_more_bits_lose_less_and_skipped_layers_nothing(decoder: nn.Module) -> None:
    found = [
        dycl_tvm.quantize(decoder, [_tokens()], weights_only=kind, group_size=size, skip=["right"])
        for kind, size in (("int4", 128), ("int4", 64), ("int4", 32), ("int8", None), ("int8", 32))
    ]
    for name in ("left", "mixed", "words"):
        loss = [next(layer.decibels for layer in q.report.layers if layer.name == name) for q in found]
        assert loss == sorted(loss) and loss[0] > 18 and loss[3] > 40
    for quantised in found:
        assert [(layer.name, layer.why) for layer in quantised.report.layers if layer.decibels is None][0] == ("right", "skipped")
    assert dycl_tvm.quantize(decoder, [_tokens()], weights_only="int8", held_out=[_tokens(seed=k) for k in range(8)]).report.held_out


def test_four_bits_use_all_integers_and_weights_that_are_such_lose_nothing() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(64, 3, bias=False).eval().requires_grad_(False)
    layer.weight[0] = torch.arange(64) % 16 / 4 - 2
    layer.weight[1] = 0
    quantised = dycl_tvm.quantize(layer, [torch.zeros(1, 64)], weights_only="int4")
    (step,) = (s for s in _steps(quantised) if s.op == LINEAR)
    data, scales, group = (step.args[1].data, step.args[2].data, step.args[3])
    assert data.dtype == torch.uint8 and data.shape == (3, 32) and scales.shape == (3, 1)
    assert torch.equal(dequantised(data, scales, group, 64)[:2], layer.weight[:2])
    assert len(torch.cat([data[0] & 15, data[0] >> 4]).unique()) == 16


@pytest.mark.parametrize("k", [1, 2, 7, 33])
def test_two_integers_of_four_bits_lie_in_a_byte(k: int) -> None:
    integers = torch.randint(-8, 8, (5, k), generator=torch.Generator().manual_seed(k))
    data = in_bytes(integers, 4)
    assert data.shape == (5, -(-k // 2))
    assert torch.equal(dequantised(data, torch.ones(5, 1), k, k), integers.float())


class Square(nn.Module):
    """A square table whose product has its columns for outputs, or its rows."""

    def __init__(self, rows: bool) -> None:
        super().__init__()
        self.table, self.rows = nn.Embedding(64, 64), rows

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.table(index)
        return nn.functional.linear(x, self.table.weight) if self.rows else x @ self.table.weight


@pytest.mark.parametrize("rows", [False, True])
def test_a_square_table_is_read_in_integers_only_if_its_rows_are_the_product_s_outputs(rows: bool) -> None:
    torch.manual_seed(3)
    model, index = Square(rows).eval().requires_grad_(False), torch.arange(64)
    quantised = dycl_tvm.quantize(model, [index], weights_only="int8")
    assert [s.op for s in _steps(quantised)].count(ROWS) == rows
    expected = model(index)
    assert (quantised(index) - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("largest", [3e-38, 1e-30, 1e30, torch.finfo(torch.float32).max])
def test_weights_of_any_size_keep_their_digits(kind: Any, largest: float) -> None:
    torch.manual_seed(4)
    layer = nn.Linear(96, 5, bias=False).eval().requires_grad_(False)
    layer.weight.copy_(layer.weight / layer.weight.abs().amax(1, keepdim=True) * largest)
    layer.weight[0, 0], layer.weight[1] = largest, 0
    (loss,) = dycl_tvm.quantize(layer, [torch.zeros(1, 96)], weights_only=kind).report.layers
    assert loss.decibels is not None and {"int4": 20, "int8": 40}[kind] < loss.decibels < 60


class Others(nn.Module):
    """Products and a convolution whose weights stay float."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.conv = nn.Linear(64, 64).bfloat16(), nn.Conv2d(1, 1, 1)
        self.batches = nn.Parameter(torch.randn(2, 64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.short(x.bfloat16()).float()[None, None])[0, 0]
        return torch.matmul(x[None], self.batches)


def test_the_report_names_what_stays_float_and_why() -> None:
    quantised = dycl_tvm.quantize(Others().eval().requires_grad_(False), [torch.zeros(2, 64)], weights_only="int4", skip=["conv"])
    why = {layer.name: layer.why for layer in quantised.report.layers if layer.decibels is None}
    assert why["short"] == "its weights are bfloat16, not float32" and why["conv"] == "a convolution"
    with pytest.raises(UsageError, match="quantised already"):
        dycl_tvm.quantize(quantised, [torch.zeros(2, 64)])


def test_what_there_is_not_is_refused(decoder: nn.Module) -> None:
    with pytest.raises(UsageError, match="'int8' or 'int4'"):
        dycl_tvm.quantize(decoder, [_tokens()], weights_only="int2")  # type: ignore[arg-type]
    for size in (48, 64.0):
        with pytest.raises(UsageError, match="32, 64, 128"):
            dycl_tvm.quantize(decoder, [_tokens()], weights_only="int4", group_size=size)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="weights_only"):
        dycl_tvm.quantize(decoder, [_tokens()], group_size=64)
    with pytest.raises(UsageError, match="no layer 'nowhere'"):
        dycl_tvm.quantize(decoder, [_tokens()], weights_only="int4", skip=["nowhere"])
