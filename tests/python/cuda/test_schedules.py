# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of many shapes, computed by GPU kernels on the emulated GPU: the results are PyTorch's, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from emulation import Driver
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.backends.tir_cuda.convolution import Shape, choose, cost, tiles
from dycl_tvm.backends.tir_cuda.device import Gpu
from dycl_tvm.compare import difference


class Several(nn.Module):
    """Several functions of the same inputs."""

    def __init__(self, functions: list[Callable[..., Tensor]], weights: list[Tensor] = []) -> None:
        super().__init__()
        self.functions = functions
        for k, w in enumerate(weights):
            self.register_buffer(f"w{k}", w)

    def forward(self, *x: Tensor) -> tuple[Tensor, ...]:
        w = dict(self.named_buffers())
        return tuple(f(*x, w) if w else f(*x) for f in self.functions)


def check(
    gpu: Driver, folder: Path, functions: list[Callable[..., Tensor]], inputs: tuple[Tensor, ...], weights: list[Tensor] = []
) -> None:
    model = Several(functions, weights)
    art = dycl_tvm.build(model, inputs, target="cuda -arch=sm_72", host="llvm")
    actual = gpu.load(art, folder)(*inputs)
    for k, (got, want) in enumerate(zip(actual, model(*inputs))):
        assert difference(want, got, rtol=1e-4) is None, f"function {k}: {difference(want, got, rtol=1e-4)}"


def test_convolutions(gpu: Driver, tmp_path: Path) -> None:
    x = torch.randn(1, 12, 15, 20)
    weights = [
        torch.randn(24, 12, 3, 3),
        torch.randn(24, 12, 1, 1),
        torch.randn(12, 1, 3, 3),
        torch.randn(18, 4, 5, 3),
        torch.randn(7, 12, 3, 3),
    ]
    check(
        gpu,
        tmp_path,
        [
            lambda x, w: F.relu(F.conv2d(x, w["w0"], padding=1) + 1),
            lambda x, w: F.conv2d(x, w["w0"], stride=2, padding=1),
            lambda x, w: F.conv2d(x, w["w0"], dilation=2),
            lambda x, w: torch.sigmoid(F.conv2d(x, w["w1"])),
            lambda x, w: F.conv2d(x, w["w2"], padding=1, groups=12),
            lambda x, w: F.conv2d(x, w["w3"], stride=(1, 2), padding=(2, 0), groups=3),
            lambda x, w: F.conv2d(x, w["w4"]),
        ],
        (x,),
        weights,
    )


def test_convolutions_with_batches_and_of_odd_sizes(gpu: Driver, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 13, 7)
    weights = [torch.randn(5, 3, 3, 3), torch.randn(64, 3, 2, 2)]
    check(gpu, tmp_path, [lambda x, w: F.conv2d(x, w["w0"], padding=1), lambda x, w: F.conv2d(x, w["w1"], stride=3)], (x,), weights)


def test_a_convolution_of_many_channels_and_few_pixels_is_split_among_blocks(gpu: Driver, tmp_path: Path) -> None:
    x, weight, bias = torch.randn(1, 256, 4, 4), torch.randn(64, 256, 3, 3) / 48, torch.randn(64)
    functions: list[Callable[..., Tensor]] = [
        lambda x, w: F.relu(F.conv2d(x, w["w0"], w["w1"], padding=1)),
        lambda x, w: F.conv2d(x, w["w0"]),
    ]
    check(gpu, tmp_path, functions, (x,), [weight, bias])
    assert gpu.count("launches") == 4


def test_products(gpu: Driver, tmp_path: Path) -> None:
    inputs = (torch.randn(1, 70), torch.randn(33, 70), torch.randn(4, 17, 9), torch.randn(4, 9, 5))
    weights = [torch.randn(45, 70), torch.randn(45)]
    check(
        gpu,
        tmp_path,
        [
            lambda a, b, c, d, w: F.linear(a, w["w0"], w["w1"]),
            lambda a, b, c, d, w: F.relu(F.linear(b, w["w0"], w["w1"])),
            lambda a, b, c, d, w: b @ a.T,
            lambda a, b, c, d, w: torch.softmax(c @ d, -1),
        ],
        inputs,
        weights,
    )


def test_tiled_products(gpu: Driver, tmp_path: Path) -> None:
    inputs = (torch.randn(16, 96), torch.randn(2, 8, 32, 24), torch.randn(2, 8, 48, 24))
    check(
        gpu,
        tmp_path,
        [
            lambda a, b, c, w: F.gelu(F.linear(a, w["w0"], w["w1"])),
            lambda a, b, c, w: torch.softmax(b @ c.transpose(-1, -2), -1),
            lambda a, b, c, w: b.transpose(-1, -2) @ b,
            lambda a, b, c, w: a @ a.T,
        ],
        inputs,
        [torch.randn(64, 96), torch.randn(64)],
    )


def test_reductions_and_rows(gpu: Driver, tmp_path: Path) -> None:
    x = torch.randn(3, 5, 300)
    y = torch.randn(2, 6, 8, 8)
    check(
        gpu,
        tmp_path,
        [
            lambda x, y: torch.softmax(x, -1),
            lambda x, y: torch.softmax(x, 1),
            lambda x, y: torch.log_softmax(x, -1),
            lambda x, y: F.layer_norm(x, (300,)),
            lambda x, y: x.sum(),
            lambda x, y: x.mean(-1),
            lambda x, y: x.amax((0, 2)),
            lambda x, y: x.argmax(-1),
            lambda x, y: x.var(1),
            lambda x, y: F.max_pool2d(y, 3, 2, 1),
            lambda x, y: F.avg_pool2d(y, 2),
            lambda x, y: F.adaptive_avg_pool2d(y, 1),
            lambda x, y: torch.cumsum(x, 1),
            lambda x, y: torch.cumprod(x, -1),
            lambda x, y: torch.topk(x, 4)[0] + torch.topk(x, 4, 2)[1],
            lambda x, y: torch.argsort(y, dim=1, stable=True),
        ],
        (x, y),
    )


def test_maxima_spread_nan_and_rows_of_infinities_give_nan(gpu: Driver, tmp_path: Path) -> None:
    x = torch.randn(4, 200)
    x[0, 77], x[1], x[2, 3] = math.nan, -math.inf, math.inf
    x[3, 10] = x[3, 150] = 9.0
    check(gpu, tmp_path, [lambda x: x.argmax(-1), lambda x: (-x).argmin(-1)], (x,))
    check(gpu, tmp_path, [lambda x: x.amax(-1), lambda x: x.amin(-1), lambda x: torch.softmax(x, -1), lambda x: F.relu(x)], (x,))


def test_other_types(gpu: Driver, tmp_path: Path) -> None:
    inputs = (torch.randint(-49, 50, (6, 40)), torch.randn(6, 40, dtype=torch.float64), torch.randn(50, 8))
    check(
        gpu,
        tmp_path,
        [
            lambda i, d, e: i * 3 - 7,
            lambda i, d, e: i.sum(-1),
            lambda i, d, e: i.to(torch.int32) // 7,
            lambda i, d, e: (i > 3) & (d < 0.5),
            lambda i, d, e: torch.exp(d) @ d.T,
            lambda i, d, e: e[i.abs()],
            lambda i, d, e: torch.where(i > 0, d, -d),
            lambda i, d, e: torch.cat([d, d * 2], 1).permute(1, 0),
            lambda i, d, e: i.to(torch.uint8),
            lambda i, d, e: torch.tanh(e) + torch.erf(e) + torch.sqrt(e.abs()),
        ],
        inputs,
    )


def test_the_chosen_tile_fits_and_costs_least() -> None:
    gpu = Gpu(multiprocessors=8, lanes=64)
    for shape in (
        Shape(1, 64, 56, 56, 64, 3, 3, (1, 1), (1, 1)),
        Shape(1, 256, 7, 7, 512, 1, 1, (1, 1), (1, 1)),
        Shape(4, 16, 32, 32, 3, 3, 3, (2, 2), (1, 1)),
    ):
        best = choose(shape, gpu)
        assert best is not None
        everything = list(tiles(shape, gpu))
        assert cost(shape, best, gpu) == min(cost(shape, t, gpu) for t in everything)
        for tile in everything:
            assert shape.x % tile.columns == 0 and shape.y % tile.rows == 0 and shape.f % tile.filters == 0 and shape.c % tile.channels == 0
            assert tile.channels * (shape.patch(tile.rows, tile.columns) + tile.filters * shape.r * shape.s) * 4 <= gpu.shared_bytes


def test_more_multiprocessors_get_more_blocks() -> None:
    shape = Shape(1, 64, 28, 28, 64, 3, 3, (1, 1), (1, 1))

    def blocks(multiprocessors: int) -> int:
        tile = choose(shape, Gpu(multiprocessors, 128))
        assert tile is not None
        return shape.f // tile.filters * (shape.y // tile.rows) * (shape.x // tile.columns)

    assert blocks(2) < blocks(132)
