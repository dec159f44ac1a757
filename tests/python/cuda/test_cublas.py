# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of matrices by cuBLAS, on an emulation of the library that counts along columns as it does."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from emulation import Driver, Stream, errors_without_libraries, load_stub
from models import EarlyExit, example
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.compare import difference
from dycl_tvm.errors import DeviceError, UsageError

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def stub(_driver: Driver) -> ctypes.CDLL:
    return load_stub(_driver, "cublas_stub.cc", "libcublas.so.12")


@pytest.fixture
def cublas(stub: ctypes.CDLL, gpu: Driver) -> Driver:
    """An emulated GPU with a driver of CUDA 12 and a cuBLAS of CUDA 12."""
    gpu.configure(90, 12020)
    return gpu


def build(model: nn.Module, inputs: tuple[Tensor, ...]) -> dycl_tvm.Artifact:
    return dycl_tvm.build(model.eval(), inputs, target="cuda -arch=sm_90", host="llvm", enable_backends=["cublas"])


class Products(nn.Module):
    """All forms that one call of the library computes, and one that is left to TVM."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 5)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (
            F.relu(self.linear(a)),
            b @ c,
            b.transpose(-1, -2) @ b,
            self.linear(b[..., :7]),
            (b @ c) @ c.transpose(-1, -2),
            b[0, 0] @ c[0],
            a @ a.T @ (a @ a.T),
        )


@pytest.mark.parametrize("half", [False, True])
def test_products_are_those_of_eager(half: bool, cublas: Driver, stub: ctypes.CDLL, tmp_path: Path) -> None:
    model, inputs = Products(), (torch.randn(3, 7), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 8, 3))
    if half:
        model, inputs = model.half(), tuple(x.half() for x in inputs)
    art = build(model, inputs)
    assert art._lowered.stats.offload["cublas"].regions == 8
    with torch.no_grad():
        expected = model(*inputs)
    module = cublas.load(art, tmp_path)
    for _ in range(4):  # runs after the first ones would be graphs
        actual = module(*inputs)
        for k, (want, got) in enumerate(zip(expected, actual)):
            assert difference(want.float(), got.float(), rtol=4e-3 if half else 1e-5) is None, f"output {k}"
    assert cublas.count("library calls") == 32
    assert stub.emulated_cublas_handles() == 1
    del module
    assert stub.emulated_cublas_handles() == 0


def test_calls_go_to_a_stream_of_the_caller(cublas: Driver, tmp_path: Path) -> None:
    model, x = nn.Linear(7, 5).eval(), torch.randn(3, 7)
    module, stream = cublas.load(build(model, (x,)), tmp_path), Stream(cublas)
    for given, calls in ((None, 0), (stream, 1), (stream, 2), (None, 2), (stream, 3)):
        module.set_cuda_stream(given)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(module(x.numpy())), model(x))
        assert stream.count("library calls") == calls
    assert cublas.count("library calls") == 5


def test_networks_with_branches(cublas: Driver, tmp_path: Path) -> None:
    model, (x, threshold) = EarlyExit().eval(), example()
    module = cublas.load(build(model, (x, threshold)), tmp_path)
    for limit in (100.0, -100.0, 100.0):
        with torch.no_grad():
            expected = model(x, torch.tensor(limit))
        assert difference(expected, module(x, torch.tensor(limit)), rtol=1e-5) is None


def test_cublas_before_cuda_11_has_another_name_for_float32(cublas: Driver, stub: ctypes.CDLL, tmp_path: Path) -> None:
    x = torch.randn(2, 7)
    model = nn.Linear(7, 5)
    stub.emulated_cublas_version(10200)
    try:
        assert torch.allclose(cublas.load(build(model, (x,)), tmp_path)(x), model(x), atol=1e-5)
    finally:
        stub.emulated_cublas_version(120000)


def test_a_machine_without_the_library_is_told_so(gpu: Driver, tmp_path: Path) -> None:
    art = build(nn.Linear(7, 5), (torch.randn(2, 7),))
    said = errors_without_libraries(gpu, art, tmp_path)
    words = "was built with the backend cublas, but libcublas.so of version 10 to 12 is not on this machine"
    assert DeviceError.__name__ in said and words in said, said[-2000:]


def test_it_is_for_gpus_and_on_request() -> None:
    x = torch.randn(2, 7)
    with pytest.raises(UsageError, match="'cublas' takes nothing for"):
        dycl_tvm.build(nn.Linear(7, 5), (x,), target="llvm", enable_backends=["cublas"])
    art = dycl_tvm.build(nn.Linear(7, 5), (x,), target="cuda -arch=sm_90", host="llvm")
    assert "cublas" not in art._lowered.stats.offload
