# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A dynamic network built with ``accuracy="bf16"``: within 2e-2 of eager on every path; in float32 where the CPU lacks the instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from kernel_utils import BF16, needs
from torch import Tensor, nn

import dycl_tvm


class EarlyExit(nn.Module):
    """Leaves after the first stage if the input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 1)
        self.early, self.late = nn.Linear(32, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs().mean()
        x = self.stem(x).relu()
        if size > 2:
            return self.early(x.mean((2, 3)))
        return self.late(self.body(x).relu().mean((2, 3)))


def run(target: Any, tmp_path: Path) -> tuple[float, bool]:
    """Return the largest error relative to the largest output, and whether kernels of the family are in the library."""
    torch.manual_seed(0)
    model, x = EarlyExit().eval(), torch.randn(1, 3, 12, 12)
    artefact = dycl_tvm.build(model, (x,), target=target, accuracy="bf16")
    artefact.export_library(tmp_path / "model.so", embed_params=True)
    session = dycl_tvm.load(tmp_path / "model.so")
    paths, errors = set(), []
    for scale in (1, 4):
        with torch.no_grad():
            expected = model(x * scale)
        errors.append(float((torch.as_tensor(session(x * scale)) - expected).abs().max() / expected.abs().max()))
        paths.add(str(session.last_path))
    assert len(paths) == 2
    return max(errors), "dycl_conv2d_bf16_" in artefact.source()


@needs(BF16)
def test_rounded_factors(tmp_path: Path) -> None:
    error, rounded = run(BF16, tmp_path)
    assert rounded and 1e-5 < error < 2e-2


def test_float32_where_the_target_has_no_bfloat16(tmp_path: Path) -> None:
    error, rounded = run("llvm", tmp_path)
    assert not rounded and error < 1e-5


class Layer(nn.Module):
    """Attention and a perceptron with residuals, of tensors of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.wide, self.narrow = nn.Linear(64, 192), nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 64)
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.view(1, -1, 2, 32).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.scale * self.narrow(nn.functional.gelu(self.wide(x)))


@needs(BF16)
def test_what_follows_a_product_behind_a_view(tmp_path: Path) -> None:
    """It is in the product's epilogue, and there are no more kernels; with the default accuracy kernels are what they were."""
    torch.manual_seed(0)
    model, x = Layer().eval(), torch.randn(1, 40, 64)
    with torch.no_grad():
        expected = model(x)
    kernels, errors = {}, {}
    for accuracy in ("default", "bf16"):
        artefact = dycl_tvm.build(model, (x,), target=BF16, accuracy=accuracy)
        artefact.export_library(tmp_path / f"{accuracy}.so", embed_params=True)
        errors[accuracy] = float((torch.as_tensor(dycl_tvm.load(tmp_path / f"{accuracy}.so")(x)) - expected).abs().max())
        kernels[accuracy] = set(re.findall(r"dycl_([a-z_0-9]+)_[0-9a-f]{8}", artefact.source()))
    products = {f"matmul_bf16_add{rest}" for rest in ("", "_add", "_gelu", "_multiply_add")}
    assert kernels["bf16"] == {"pack_bf16", "attention", *products}
    assert "gelu" in kernels["default"]
    assert errors["default"] < 1e-5 < 1e-4 < errors["bf16"] < 8e-3 * float(expected.abs().max())


class Broadcast(nn.Module):
    """A product of one matrix, seen as three dimensions, that an operation behind it repeats for several."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:1]) * x


@needs(BF16)
def test_what_has_more_elements_than_a_product_is_no_part_of_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Broadcast().eval(), torch.randn(3, 30, 40)
    artefact = dycl_tvm.build(model, (x,), target=BF16, accuracy="bf16", verify="off")
    artefact.export_library(tmp_path / "model.so", embed_params=True)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(torch.as_tensor(dycl_tvm.load(tmp_path / "model.so")(x)), expected, rtol=0, atol=5e-2)
