# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes that each call decides, in networks for GPUs: results, blocks that are launched, tensors on the device that are smaller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from emulation import Driver, OnDevice
from torch import nn

import dycl_tvm

MOST = 192


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(torch.relu(self.first(x)))
        return y.mean(0) if y.sum() > 0 else y.softmax(-1)


class Rows(nn.Module):
    """Products, a norm, a softmax and element-wise kernels, all of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(32, 48), nn.LayerNorm(48), nn.Linear(48, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(self.norm(torch.relu(self.first(x)))).softmax(-1) * 3)


class Chooses(nn.Module):
    """A branch whose sides meet again, so that a GPU can take it, on kernels of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.one = nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.one(x))
        if t.sum() > 0:
            y = torch.relu(self.one(y)) + 1
        return y * 2


def build(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], sizes: dict[str, dict[int, dycl_tvm.Dim]], arch: int = 72
) -> dycl_tvm.Artifact:
    return dycl_tvm.build(model.eval(), inputs, target=f"cuda -arch=sm_{arch}", host="llvm", dynamic_shapes=sizes)


def rows(arch: int = 72) -> dycl_tvm.Artifact:
    return build(Rows(), (torch.zeros(2, 32),), {"x": {0: dycl_tvm.Dim("N", min=0, max=MOST)}}, arch)


def blocks_of(artifact: dycl_tvm.Artifact, size: int) -> int:
    """Return the blocks of all launches, where the one size is this."""
    device, blocks = artifact._lowered.program.device, 0
    assert device is not None
    for launch in (launch for of_kernel in device.launches for launch in of_kernel):
        grid = list(launch.grid)
        for of_axis in launch.sizes:
            grid[of_axis.axis] = of_axis.at(size, grid[of_axis.axis])
        blocks += grid[0] * grid[1] * grid[2]
    return blocks


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_all_sizes(gpu: Driver, tmp_path: Path) -> None:
    model = Branching().eval()
    module, ranks = gpu.load(build(model, (torch.ones(2, 4),), {"x": {0: dycl_tvm.Dim("N", max=5)}}), tmp_path), set()
    for n in (5, 1, 3, 2, 5):
        for sign in (1, -1):
            x = sign * torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
            with torch.no_grad():
                want = model(x)
            torch.testing.assert_close(module(x), want)
            ranks.add(want.dim())
    assert ranks == {1, 2}


def test_a_session_for_smaller_sizes(gpu: Driver, tmp_path: Path) -> None:
    model, size = Rows().eval(), {"x": {0: dycl_tvm.Dim("N", min=0, max=MOST)}}
    how = {"target": "cuda -arch=sm_72", "host": "llvm", "verify": "off"}
    artifact = dycl_tvm.build(model, (torch.zeros(9, 32),), dynamic_shapes=size, specialize=["N<=8"], **how)
    module = gpu.load(artifact, tmp_path)
    small = module.new_session(largest_sizes={"N": 8})
    assert small.arena_bytes * 16 < module.arena_bytes
    for n in (8, 0, 3, 8):
        with torch.no_grad():
            torch.testing.assert_close(small(random(n, 32)), model(random(n, 32)))
    with pytest.raises(dycl_tvm.InputError, match="dimension 0 is 9, expected N = 0 to 8"):
        small(random(9, 32))


@pytest.mark.parametrize("arch", [62, 72, 87])
def test_blocks_that_write_nothing_wanted_are_not_launched(arch: int, gpu: Driver, tmp_path: Path) -> None:
    """What lies behind the rows is NaN: memory of the emulated GPU that was never written is."""
    gpu.configure(sm=arch)
    artifact, model = rows(arch), Rows().eval()
    module = gpu.load(artifact, tmp_path)
    counts = {}
    for n in (0, 1, 63, 64, 65, MOST, 7):
        session, x, before = module.new_session(), random(n, 32), gpu.count("blocks")
        with torch.no_grad():
            torch.testing.assert_close(session(x), model(x))
        counts[n] = gpu.count("blocks") - before
        assert counts[n] == blocks_of(artifact, n)
    device = artifact._lowered.program.device
    assert device is not None
    assert counts[MOST] == sum(np.prod(launch.grid) for of_kernel in device.launches for launch in of_kernel)
    assert counts[0] == 0
    assert counts[1] * 8 < counts[MOST]
    assert sorted(counts.values()) == [counts[n] for n in sorted(counts)]


def test_device_code_is_that_of_the_largest_size(gpu: Driver) -> None:
    """Grids alone follow from sizes, and of a static network none does."""
    sized, static = rows(), dycl_tvm.build(Rows().eval(), (torch.zeros(MOST, 32),), target="cuda -arch=sm_72", host="llvm")
    ours, theirs = sized._lowered.program.device, static._lowered.program.device
    assert ours is not None and theirs is not None
    assert re.sub(r"_front_[0-9a-f]{8}", "", ours.source) == theirs.source
    assert any(launch.sizes for of_kernel in ours.launches for launch in of_kernel)
    assert not any(launch.sizes for of_kernel in theirs.launches for launch in of_kernel)
    assert "GridSize kGridSizes" not in static.source()


def test_graphs_follow_the_sizes(gpu: Driver, tmp_path: Path) -> None:
    artifact, model = rows(), Rows().eval()
    module = gpu.load(artifact, tmp_path)
    for n in (3, 3, 3, 3, 70, 70, 0, 3, 70, 70, 70, 70, 70, 0, 0, 0, 0, 5):
        x, before = random(n, 32), gpu.count("blocks")
        with torch.no_grad():
            torch.testing.assert_close(module(x), model(x))
        assert gpu.count("blocks") - before == blocks_of(artifact, n)
    assert gpu.count("graph_launches") > 6


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.product = nn.Conv2d(16, 32, 3, padding=1), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(torch.relu(self.conv(x)).mean((2, 3)))


def test_images_of_integers_of_a_batch(gpu: Driver, tmp_path: Path) -> None:
    sizes = {"x": {0: dycl_tvm.Dim("N", max=24)}}
    model = dycl_tvm.quantize(Images().eval(), [(random(2, 16, 6, 6),) for _ in range(4)], dynamic_shapes=sizes)
    artifact = dycl_tvm.build(model, target="cuda -arch=sm_72", host="llvm")
    assert artifact._lowered.stats.families["int8"] >= 1
    module = gpu.load(artifact, tmp_path)
    for n in (1, 5, 24, 2):
        session, x, before = module.new_session(), random(n, 16, 6, 6), gpu.count("blocks")
        torch.testing.assert_close(session(x), model.graph().interpret()(x), rtol=1e-5, atol=1e-5)
        assert gpu.count("blocks") - before == blocks_of(artifact, n)
    assert blocks_of(artifact, 1) * 2 < blocks_of(artifact, 24)


@pytest.mark.parametrize(("accuracy", "rule"), [("default", "convolution"), ("fp16", "tensor_cores")])
def test_convolutions_of_a_batch(accuracy: Literal["default", "fp16"], rule: str, gpu: Driver, tmp_path: Path) -> None:
    """On tensor cores blocks are tiles of pixels of several images, else each is of one image."""
    model = Images().eval()
    sizes = {"x": {0: dycl_tvm.Dim("N", max=24)}}
    artifact = dycl_tvm.build(
        model, (torch.zeros(2, 16, 6, 6),), target="cuda -arch=sm_72", host="llvm", accuracy=accuracy, dynamic_shapes=sizes
    )
    assert artifact._lowered.stats.families[rule] >= 1
    module = gpu.load(artifact, tmp_path)
    for n in (1, 5, 24, 2):
        session, x, before = module.new_session(), random(n, 16, 6, 6), gpu.count("blocks")
        with torch.no_grad():
            torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5 if accuracy == "default" else 5e-3)
        assert gpu.count("blocks") - before == blocks_of(artifact, n)
    assert blocks_of(artifact, 1) * 4 < blocks_of(artifact, 24)


def test_branches_that_the_gpu_takes_have_grids_of_the_sizes(gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(sm=90, version=12080)
    model = Chooses().eval()
    artifact = build(model, (torch.zeros(2, 8), torch.zeros(1)), {"x": {0: dycl_tvm.Dim("N", min=0, max=MOST)}}, 90)
    module = gpu.load(artifact, tmp_path)
    for n in (3, 3, 3, 3, 70, 70, 0, 0, 0, 3, MOST):
        for sign in (1.0, -1.0):
            x, t = random(n, 8), torch.tensor([sign])
            with torch.no_grad():
                torch.testing.assert_close(module(x, t), model(x, t))
    assert gpu.count("bodies") > 0


class TwoLengths(nn.Module):
    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (nn.functional.embedding(ids, self.table) * x).sum((1, 2)), x.sum((0, 1))

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(5.0)[:, None] + torch.zeros(3))


def test_tensors_on_the_device_are_smaller_in_any_dimension(gpu: Driver, tmp_path: Path) -> None:
    """Behind them are zeros: what was never written there is no index."""
    batch, length = dycl_tvm.Dim("B", max=4), dycl_tvm.Dim("T", max=6)
    model = TwoLengths()
    example = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 3)
    module = gpu.load(build(model, example, {"ids": {0: batch, 1: length}, "x": {0: batch, 1: length}}), tmp_path)
    zeros: list[int] = []
    for b, t in ((4, 6), (2, 3), (1, 6), (4, 1), (3, 5), (1, 1), (4, 6)):
        x, ids = random(b, t, 3), torch.arange(b * t).reshape(b, t) % 5
        fills = gpu.count("fills")
        for found, want in zip(module(OnDevice(gpu, ids.numpy()), OnDevice(gpu, x.numpy())), model(ids, x)):
            np.testing.assert_allclose(np.asarray(found), want.numpy(), rtol=1e-5, atol=1e-6)
        zeros.append(gpu.count("fills") - fills)
    assert zeros == [zeros[0], *[zeros[0] + 2] * 5, zeros[0]]  # those of the largest size are read where they are


def test_rows_of_four_dimensions_go_to_their_places(gpu: Driver, tmp_path: Path) -> None:
    """Two copies of one kernel would not do: dimensions 0, 2 and 3 are smaller, 1 is not."""
    sizes = {0: dycl_tvm.Dim("B", max=3), 2: dycl_tvm.Dim("H", max=4), 3: dycl_tvm.Dim("W", max=5)}
    module = gpu.load(build(_Sums(), (torch.zeros(2, 2, 2, 2),), {"x": sizes}), tmp_path)
    for b, h, w in ((2, 3, 4), (3, 4, 5), (3, 1, 5), (1, 4, 1), (2, 4, 5)):
        x = random(b, 2, h, w)
        np.testing.assert_allclose(np.asarray(module(OnDevice(gpu, x.numpy()))), _Sums()(x).numpy(), rtol=1e-5, atol=1e-6)


class _Sums(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [x.sum((1, 2, 3)).pow(2).sum(), x.sum((0, 2, 3)).pow(2).sum(), x.sum((0, 1, 3)).pow(2).sum(), x.sum((0, 1, 2)).pow(2).sum()]
        )
