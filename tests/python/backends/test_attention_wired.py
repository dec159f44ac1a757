# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention in whole builds: the forms in which models write it become one kernel, and results stay those of eager mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm.backends.tir_cpu.families import attention
from dycl_tvm.compare import difference

G = torch.Generator().manual_seed(7)
NAN = float("nan")


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


def _heads(x: Tensor, heads: int = 3) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = _heads(q), _heads(k), _heads(v)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    return (scores.masked_fill(mask, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def packed_projection(x: Tensor, bias: Tensor) -> Tensor:
    q, k, v = (_heads(t) for t in x.split(24, dim=2))
    scores = torch.matmul(q * 0.3, k.mT) + bias
    return torch.matmul(scores.softmax(dim=-1), v).transpose(1, 2).reshape(x.shape[0], -1, 24) + 1.0


def batched_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=0.5).softmax(-1)
    return F.relu(torch.bmm(weights, v))


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bqk,bke->bqe", torch.softmax(10 * torch.tanh(torch.einsum("bqe,bke->bqk", q, k) / 10), -1), v)


def decoding(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(_heads(q), k, v, attn_mask=seen[None, None, None])


def causal(x: Tensor) -> Tensor:
    q, k, v = (_heads(t) for t in x.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, scale=0.4, enable_gqa=True)


def weights_are_read(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights.mean(1)


def transposed_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ v


def other_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


MASK = torch.rand(9, 9, generator=G) < 0.3
MASK[4] = True  # a row that sees nothing
SPECIAL = _randn(1, 2, 9, 8)
SPECIAL[0, 0, 2, 3], SPECIAL[0, 1, 5] = NAN, 3e38
MHA = nn.MultiheadAttention(24, 3, batch_first=True).eval().requires_grad_(False)

#: Functions, arguments, and how many kernels of attention there should be.
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "written out": (written_out, (_randn(2, 9, 24), _randn(2, 9, 24), _randn(2, 9, 24), MASK), 1),
    "packed projection": (packed_projection, (_randn(2, 11, 72), _randn(2, 1, 1, 11)), 1),
    "batched products": (batched_products, (_randn(4, 5, 8), _randn(4, 9, 8), _randn(4, 9, 7), _randn(4, 5, 9)), 1),
    "soft cap": (soft_capped, (_randn(2, 5, 8), _randn(2, 9, 8), _randn(2, 9, 7)), 1),
    "sdpa": (F.scaled_dot_product_attention, (_randn(1, 2, 5, 20), _randn(1, 2, 9, 20), _randn(1, 2, 9, 12)), 1),
    "sdpa, boolean mask": (F.scaled_dot_product_attention, (*(_randn(1, 2, 9, 8) for _ in range(3)), ~MASK), 1),
    "sdpa, additive mask": (F.scaled_dot_product_attention, (*(_randn(2, 2, 9, 8) for _ in range(3)), _randn(2, 1, 9, 9)), 1),
    "sdpa, special values": (F.scaled_dot_product_attention, (SPECIAL, _randn(1, 2, 20, 8), _randn(1, 2, 20, 8)), 1),
    "causal": (causal, (_randn(1, 10, 72),), 1),
    "decoding": (decoding, (_randn(1, 1, 24), _randn(1, 3, 40, 8), _randn(1, 3, 40, 8), torch.arange(40) < 17), 1),
    "grouped": (grouped, (_randn(2, 6, 5, 8), _randn(2, 2, 7, 8), _randn(2, 2, 7, 8), _randn(2, 6, 5, 7)), 1),
    "nn.MultiheadAttention": (lambda x: MHA(x, x, x, need_weights=False)[0], (_randn(2, 9, 24),), 1),
    "weights are read": (weights_are_read, tuple(_randn(2, 3, 9, 9) for _ in range(3)), 0),
    "transposed weights": (transposed_weights, tuple(_randn(3, 9, 9) for _ in range(3)), 0),
    "other axis": (other_axis, tuple(_randn(3, 9, 9) for _ in range(3)), 0),
}


def _all(*tensors: Tensor) -> list[Any]:
    rest, found = list(tensors), []
    for fn, args, _ in CASES.values():
        found.append(fn(*rest[: len(args)]))
        rest = rest[len(args) :]
    return found


def _build(folder: Path, **options: Any) -> tuple[Any, dict[str, int]]:
    args = tuple(t for _, given, _ in CASES.values() for t in given)
    artifact = dycl_tvm.build(_all, args, **options)
    module = dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
    return module(*args), dict(artifact._lowered.stats.families)


@pytest.fixture(scope="module", params=[False, True], ids=["one kernel", "separate kernels"])
def built(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "wins", lambda work, machine: True)  # these are small: forms are tested here, not costs
        return _build(tmp_path_factory.mktemp("attention"), disable_families=("attention",) if request.param else ())


@pytest.mark.parametrize("name", CASES)
def test_results(name: str, built: Any) -> None:
    fn, args, _ = CASES[name]
    with torch.no_grad():
        assert difference(fn(*args), built[0][list(CASES).index(name)], rtol=2e-5) is None


def test_forms_that_become_one_kernel(built: Any) -> None:
    expected = sum(count for _, _, count in CASES.values())
    assert built[1].get("attention", 0) in (0, expected)
    assert "attention" in built[1] or built[1]["softmax"] == len(CASES)
