# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Integers of 8 bits on GPUs: exact sums by dp4a and on tensor cores, and what follows them in the same kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emulation import DRIVERS, Driver
from models import Several
from torch import Tensor, nn

import dycl_tvm
import dycl_tvm.hcfg.quantized  # registers the operators
from dycl_tvm.codegen.cuda import compile_images

torch.set_num_threads(1)

ARCH = pytest.mark.parametrize("arch", ["sm_62", "sm_87"])
conv2d, matmul = torch.ops.dycl_quantized.conv2d, torch.ops.dycl_quantized.matmul


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def run(gpu: Driver, folder: Path, model: nn.Module, inputs: tuple[Tensor, ...], arch: str) -> dycl_tvm.Artifact:
    """Compare with eager, bit by bit."""
    art = dycl_tvm.build(model.eval(), inputs, target=f"cuda -arch={arch}", host="llvm")
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    for k, (got, want) in enumerate(zip(gpu.load(art, folder)(*inputs), model(*inputs), strict=True)):
        assert got.dtype == want.dtype and torch.equal(got, want), f"function {k}: {got} is not {want}"
    return art


@ARCH
def test_convolutions(arch: str, gpu: Driver, tmp_path: Path) -> None:
    """Channels that make words and others, windows, strides, borders, dilation."""
    weights = [integers(24, 12, 3, 3), integers(23, 12, 1, 1), integers(9, 12, 5, 3), integers(40, 7, 3, 3)]
    functions: list[Callable[..., Tensor]] = [
        lambda x, a, b, c, d: conv2d(x, a, [1, 1], [1, 1], [1, 1], 1),
        lambda x, a, b, c, d: conv2d(x, b, [2, 2], [0, 0], [1, 1], 1),
        lambda x, a, b, c, d: conv2d(x, c, [1, 2], [2, 0], [1, 2], 1),
        lambda x, a, b, c, d: conv2d(x[:, :7], d, [1, 1], [1, 1], [1, 1], 1),
    ]
    art = run(gpu, tmp_path, Several(functions, weights), (bytes_of(2, 12, 13, 10),), arch)
    assert art._lowered.stats.families["int8"] == 4


@ARCH
def test_products(arch: str, gpu: Driver, tmp_path: Path) -> None:
    inputs = (bytes_of(33, 70), integers(17, 64), bytes_of(8, 64))
    functions: list[Callable[..., Tensor]] = [
        lambda a, b, c, w: matmul(a, w),
        lambda a, b, c, w: torch._int_mm(b, w[:64]),
        lambda a, b, c, w: matmul(c, w[:64, 3:29]),
        lambda a, b, c, w: torch._int_mm(b, b.T),
    ]
    art = run(gpu, tmp_path, Several(functions, [integers(70, 45)]), inputs, arch)
    assert art._lowered.stats.families["int8"] == 4


@ARCH
def test_the_largest_sums_and_terms_that_are_split_among_blocks(arch: str, gpu: Driver, tmp_path: Path) -> None:
    x, w = torch.full((1, 512, 4, 4), 255, dtype=torch.uint8), torch.full((32, 512, 3, 3), -128, dtype=torch.int8)
    w[::2] = 127
    art = run(gpu, tmp_path, Several([lambda x, w: conv2d(x, w, [1, 1], [1, 1], [1, 1], 1)], [w]), (x,), arch)
    device = art._lowered.program.device
    assert device is not None and [len(launches) for launches in device.launches] == [2]


class Blocks(nn.Module):
    """A network of what is quantised, with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.depthwise, self.pointwise, self.last = nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Conv2d(32, 32, 1), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(nn.functional.hardswish(self.first(x))).relu()
        if y.mean() > 0.05:
            y = y + self.pointwise(self.depthwise(y).relu())
        return self.last(y.mean((2, 3)))


def quantised_blocks() -> tuple[dycl_tvm.Quantized, list[tuple[Tensor]]]:
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 3, 16, 16) * (0.3 if k % 2 else 1),) for k in range(8)]
    return dycl_tvm.quantize(Blocks().eval(), inputs), inputs


@pytest.mark.parametrize("arch", ["sm_53", "sm_72", "sm_87"])
def test_a_quantised_network_is_its_graph_of_integers_and_finishes_sums_where_they_are(arch: str, gpu: Driver, tmp_path: Path) -> None:
    network, inputs = quantised_blocks()
    art = dycl_tvm.build(network, target=f"cuda -arch={arch}", host="llvm")
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    module = gpu.load(art, tmp_path)
    paths = set()
    for given in inputs:
        assert torch.allclose(module(*given), network.graph().interpret()(*given), atol=1e-4)
        paths.add(str(module.last_path))
    assert len(paths) == 2
    families = art._lowered.stats.families
    assert families.get("int8", 0) == (0 if arch == "sm_53" else 3)
    # a convolution with its bias, scale, activation and quantisation is one kernel
    assert sum(families.values()) <= 11, families


@pytest.mark.parametrize("arch", ["sm_53", "sm_87"])
def test_sums_of_groups_are_finished_by_the_thread_that_has_them(arch: str, gpu: Driver, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 32, 5, 4)
    network = dycl_tvm.quantize(nn.Conv2d(32, 32, 3, 1, 2, dilation=2, groups=2).eval(), [(x,)])
    art = dycl_tvm.build(network, target=f"cuda -arch={arch}", host="llvm")
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    torch.testing.assert_close(gpu.load(art, tmp_path)(x), network.graph().interpret()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_72", "sm_87"])
def test_the_code_has_the_instructions_and_sums_in_registers(arch: str) -> None:
    network, _ = quantised_blocks()
    images = compile_images(dycl_tvm.build(network, target=f"cuda -arch={arch}", host="llvm", verify="off")._lowered.program.device)
    found = b"mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32" if arch == "sm_87" else b"dp4a.s32.u32"
    assert found in images.ptx
    assert not re.search(rb"\.local|__local_depot", images.ptx), "sums are not in registers"
