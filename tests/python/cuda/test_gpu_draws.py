# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers of artefacts for GPUs, on the emulated driver: bit by bit those of eager on CUDA."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulation import Driver
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.hcfg.philox import DEVICE
from dycl_tvm.verify.as_on_gpu import drawing_as_on

TARGET = "cuda -arch=sm_72"
#: Two multiprocessors of 1024 threads, as the emulated driver says.
THREADS = 2048


@pytest.fixture(autouse=True)
def _as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICE, "threads", THREADS)


class Sampler(nn.Module):
    """Samples tokens until one is a end, with noise of its own on one side, and drops in between."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(8, 6)
        self.embedding = nn.Embedding(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.zeros((), dtype=torch.int64)
        for _ in range(4):
            token = torch.multinomial(self.logits(x).softmax(-1), 1)[0, 0]
            tokens = tokens * 6 + token
            if token == 0:
                break
            x = F.dropout(x + self.embedding(token), 0.2, training=True)
            if token > 3:
                x = x + 0.1 * torch.randn_like(x)
        return x, tokens


def eager_of(model: Any, seed: int, inputs: list[Tensor]) -> list[Any]:
    """Return what calls in succession give in eager on a GPU."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    with torch.no_grad(), drawing_as_on("cuda"):
        return [model(x.clone()) for x in inputs]


def test_a_sampler_takes_the_paths_of_eager(gpu: Driver, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sampler().eval()
    inputs = [torch.linspace(-1, 1, 8).reshape(1, 8) * k for k in (1, -2, 0.5, 3, 1, 1)]
    art = dycl_tvm.build(model, (inputs[0],), target=TARGET, host="llvm")
    net = gpu.load(art, tmp_path)
    paths = set()
    for seed in (0, 1, 2**63 + 5):
        net.reset_state()
        net.manual_seed(seed)
        for want, x in zip(eager_of(model, seed, inputs), inputs):
            got = net(x)
            assert torch.equal(got[1], want[1])
            torch.testing.assert_close(got[0], want[0])
            paths.add(str(net.last_path))
    assert len(paths) > 4
    net.reset_state()
    first = [net(x)[1] for x in inputs]
    assert [int(t) for t in first] == [int(t) for _, t in eager_of(model, torch.Generator().initial_seed(), inputs)]
    session = net.new_session()
    session.manual_seed(1)
    assert int(session(inputs[0])[1]) == int(eager_of(model, 1, inputs)[0][1])


def small_draws(x: Tensor) -> tuple[Tensor, ...]:
    e = torch.empty(3, 9, dtype=torch.float64)
    return (
        *(torch.empty(7).uniform_(-1, 3), torch.randn(7), torch.empty(40).exponential_(2.0), torch.empty(9).cauchy_()),
        *(torch.empty(9).log_normal_(), torch.empty(9).geometric_(0.3), torch.randint(-3, 10, (3, 3)), torch.bernoulli(x)),
        *(e.normal_(0.5, 2.0), torch.rand(2, 5).half(), torch.rand(5, dtype=torch.float16), torch.empty(4, 3).t().normal_()),
    )


def large_draws(x: Tensor) -> tuple[Tensor, ...]:
    wide = x.expand(700, 15).contiguous()
    return (
        torch.rand(5000),
        F.dropout(wide, 0.3, True),
        torch.randint(0, 1 << 40, (5000,)),
        F.dropout(wide[:, :1].contiguous().repeat(2, 1)),
    )


@pytest.mark.parametrize("program", [small_draws, large_draws])
def test_draws_are_bit_by_bit_those_of_eager(program: Any, gpu: Driver, tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 15)
    net = gpu.load(dycl_tvm.build(program, (x,), target=TARGET, host="llvm"), tmp_path)
    for seed in (0, 2**40 + 7):
        net.manual_seed(seed)
        for want in eager_of(program, seed, [x] * 3):
            for k, (expected, got) in enumerate(zip(want, net(x))):
                assert torch.equal(expected, got), f"draw {k} of seed {seed}"


def seeds(x: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
    first = torch.rand(3)
    torch.manual_seed(int(seed))
    with torch.random.fork_rng():
        if x.sum() > 3:
            first = first + torch.rand(3)
    return first, torch.rand(3)


def test_seeds_in_the_forward(gpu: Driver, tmp_path: Path) -> None:
    inputs = [(torch.full((4,), float(k)), torch.tensor(k - 1)) for k in range(3)]
    net = gpu.load(dycl_tvm.build(seeds, inputs[0], target=TARGET, host="llvm", verify="off"), tmp_path)
    call = dycl_tvm.stage(seeds, inputs[0], device="cuda").interpret()
    net.manual_seed(9)
    call.manual_seed(9)
    for args in inputs * 2:
        assert all(map(torch.equal, net(*args), call(*args)))


def test_what_is_no_probability_ends_the_call(gpu: Driver, tmp_path: Path) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bernoulli(x), torch.multinomial(x, 1)

    x = torch.tensor([[0.5, 0.25, 1.0]])
    net = gpu.load(dycl_tvm.build(program, (x,), target=TARGET, host="llvm"), tmp_path)
    net(x)
    for wrong in (x * 2, -x, x * 0):
        with pytest.raises(dycl_tvm.DeviceError, match="LAUNCH_FAILED"):
            net(wrong)


def from_a_known_state(x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(5)
    double = torch.empty(9, dtype=torch.float64)
    return torch.rand(3), torch.rand(5000), torch.randn(4), double.exponential_(), double.clone().normal_(), torch.rand(2), x


def test_only_what_every_gpu_draws_alike_is_drawn_while_building(gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICE, "threads", 1 << 20)  # another GPU than the one that runs it
    art = dycl_tvm.build(from_a_known_state, (torch.ones(3),), target=TARGET, host="llvm")
    net = gpu.load(art, tmp_path)
    monkeypatch.setattr(DEVICE, "threads", THREADS)
    for want, got in zip(eager_of(from_a_known_state, 0, [torch.ones(3)])[0], net(torch.ones(3))):
        assert torch.equal(want, got)


def test_a_full_check_compares_the_kernels_that_stand_for_those_of_the_gpu() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand(5000), torch.randn(3), torch.bernoulli(x), torch.multinomial(x[None], 1), F.dropout(x, 0.5, True)

    art = dycl_tvm.build(program, (torch.linspace(0.1, 0.9, 9),), target=TARGET, host="llvm", verify="full")
    kernels = art.certificate["kernels"]
    assert kernels["checked"] == kernels["total"] and kernels["twin"]
