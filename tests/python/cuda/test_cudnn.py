# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions by cuDNN, on an emulation of the library that checks descriptors as it does."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from emulation import Driver, errors_without_libraries, load_stub
from torch import Tensor, nn
from tvm import relax

import dycl_tvm
from dycl_tvm.backends.cudnn import is_bias, supported
from dycl_tvm.compare import difference
from dycl_tvm.errors import DeviceError, UsageError

torch.set_num_threads(1)

IMPLICIT_GEMM, PRECOMP_GEMM, WINOGRAD = 0, 1, 6


@pytest.fixture(scope="session")
def stub(_driver: Driver) -> ctypes.CDLL:
    library = load_stub(_driver, "cudnn_stub.cc", "libcudnn.so.9")
    library.emulated_cudnn_fastest.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    return library


@pytest.fixture
def cudnn(stub: ctypes.CDLL, gpu: Driver) -> Iterator[Driver]:
    """An emulated GPU with a driver of CUDA 12 and a cuDNN 9."""
    gpu.configure(90, 12020)
    stub.emulated_cudnn_fastest(PRECOMP_GEMM, 1000, 1)
    yield gpu
    stub.emulated_cudnn_fastest(PRECOMP_GEMM, 1000, 1)


def build(model: nn.Module, inputs: tuple[Tensor, ...]) -> dycl_tvm.Artifact:
    return dycl_tvm.build(model.eval(), inputs, target="cuda -arch=sm_90", host="llvm", enable_backends=["cudnn"])


class Convolutions(nn.Module):
    """Stride, padding, dilation, groups and bias, all sizes different along the two sides."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(4, 6, (3, 2))
        self.strided = nn.Conv2d(4, 8, (3, 5), stride=(2, 3), padding=(1, 2), bias=False)
        self.dilated = nn.Conv2d(4, 6, 3, dilation=(2, 1), padding=(2, 1))
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, padding=(0, 1))
        self.depthwise = nn.Conv2d(4, 8, 3, groups=4, stride=2)
        self.pointwise = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            F.relu(self.pointwise(F.relu(self.plain(x)))),
            self.strided(x),
            self.dilated(x),
            self.grouped(x),
            self.depthwise(x),
        )


@functools.lru_cache
def convolutions(half: bool = False) -> tuple[nn.Module, Tensor, dycl_tvm.Artifact]:
    """Return the model, an input and the artefact."""
    model, x = Convolutions(), torch.randn(2, 4, 11, 13)
    if half:
        model, x = model.half(), x.half()
    return model, x, build(model, (x,))


class Left(nn.Module):
    """Where TVM keeps something: float64, one dimension, what is added but no bias, a convolution that is needed without its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        w = self.taken.weight
        twice = F.conv2d(x, w)
        return (
            F.conv2d(x.double(), w.double()),
            self.taken(x) + x,
            F.conv2d(x, w, padding=1) + x,
            F.conv1d(x[:, :, 0], w[:, :, 0]),
            twice + self.taken.bias.reshape(1, 4, 1, 1) + twice,
            F.conv2d(x, x),
        )


def check(module: dycl_tvm.Module, model: nn.Module, x: Tensor, rtol: float = 1e-5) -> None:
    with torch.no_grad():
        expected = model(x)
    for k, (want, got) in enumerate(zip(expected, module(x))):
        assert difference(want.double(), got.double(), rtol=rtol) is None, f"output {k}"


@pytest.mark.parametrize("half", [False, True])
def test_convolutions_are_those_of_eager(half: bool, cudnn: Driver, stub: ctypes.CDLL, tmp_path: Path) -> None:
    model, x, art = convolutions(half)
    assert art._lowered.stats.offload["cudnn"].regions == 6
    assert art._lowered.stats.offload["cudnn"].nodes == 11  # with five biases
    alive = stub.emulated_cudnn_alive()
    module = cudnn.load(art, tmp_path)
    for _ in range(4):  # runs after the first ones would be graphs
        check(module, model, x, rtol=4e-3 if half else 1e-5)
    assert cudnn.count("library calls") == 24 and stub.emulated_cudnn_fused() == 20
    assert cudnn.count("launches") == 8  # two times relu: a bias has no kernel
    # a handle; tensors, filter and window of each convolution; what a bias and the identity are
    assert stub.emulated_cudnn_alive() == alive + 1 + 6 * 4 + 5 * 2
    del module
    assert stub.emulated_cudnn_alive() == alive


def test_what_one_call_does_not_compute_is_left(cudnn: Driver, tmp_path: Path) -> None:
    model, x = Left(), torch.randn(4, 4, 3, 3)
    art = build(model, (x,))
    check(cudnn.load(art, tmp_path), model, x)
    taken = art._lowered.stats.offload["cudnn"]
    assert (taken.regions, taken.nodes) == (4, 5)


def test_layouts_and_paddings_that_it_has() -> None:
    def tensor(*shape: int, dtype: str = "float32") -> relax.Var:
        return relax.Var("t", relax.TensorType(shape, dtype))

    def taken(x: relax.Var, w: relax.Var, **attrs: object) -> bool:
        call = relax.BlockBuilder().normalize(relax.op.nn.conv2d(x, w, **attrs))
        return supported(call)

    x, w = tensor(1, 4, 8, 8), tensor(6, 4, 3, 3)
    assert taken(x, w, padding=(1, 2, 1, 2))
    assert not taken(x, w, padding=(1, 2, 1, 1))
    assert not taken(tensor(1, 8, 8, 4), w, data_layout="NHWC")
    assert not taken(x, tensor(3, 3, 4, 6), kernel_layout="HWIO")
    assert not taken(x, w, out_dtype="float16")
    assert not taken(tensor(1, 4, 8, 8, dtype="float64"), tensor(6, 4, 3, 3, dtype="float64"))
    assert not taken(tensor(1, 4, 1 << 16, 1 << 14), w)
    call = relax.BlockBuilder().normalize(relax.op.nn.conv2d(x, w))
    assert all(is_bias(tensor(*shape), call) for shape in ((1, 6, 1, 1), (6, 1, 1)))
    assert not any(is_bias(tensor(*shape), call) for shape in ((6,), (1, 6, 1, 6), (1, 1, 1, 1), (1, 1, 6, 1, 1)))
    assert not is_bias(tensor(1, 6, 1, 1, dtype="float16"), call)


@pytest.mark.parametrize(
    ("algorithm", "workspace", "fuses", "calls", "fused"),
    [
        (PRECOMP_GEMM, 0, 1, 6, 5),
        (PRECOMP_GEMM, 100_000, 0, 11, 0),  # it refuses this shape
        (WINOGRAD, 100_000, 1, 11, 0),
        (PRECOMP_GEMM, 1 << 28, 1, 11, 0),  # too large: the next one is taken
    ],
)
def test_algorithms_and_their_workspace(
    algorithm: int, workspace: int, fuses: int, calls: int, fused: int, cudnn: Driver, stub: ctypes.CDLL, tmp_path: Path
) -> None:
    stub.emulated_cudnn_fastest(algorithm, workspace, fuses)
    model, x, art = convolutions()
    module = cudnn.load(art, tmp_path)
    check(module, model, x)
    assert (cudnn.count("library calls"), stub.emulated_cudnn_fused()) == (calls, fused)


class Sizes(nn.Module):
    """Convolutions with more filters and with fewer."""

    def __init__(self, *filters: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, n, 3) for n in filters)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


@pytest.mark.parametrize("filters", [(8, 2), (2, 8)])
def test_the_workspace_is_that_of_the_largest_call(filters: tuple[int, int], cudnn: Driver, stub: ctypes.CDLL, tmp_path: Path) -> None:
    stub.emulated_cudnn_fastest(WINOGRAD, 2000, 1)  # for each filter; the input comes next in memory
    model, x = Sizes(*filters), torch.randn(1, 3, 6, 6)
    check(cudnn.load(build(model, (x,)), tmp_path), model, x)


def test_a_workspace_that_does_not_fit(cudnn: Driver, stub: ctypes.CDLL, tmp_path: Path) -> None:
    stub.emulated_cudnn_fastest(WINOGRAD, 10 << 20, 1)
    _, _, art = convolutions()
    alive = stub.emulated_cudnn_alive()
    cudnn.configure(90, 12020, memory=50 << 20)
    with pytest.raises(MemoryError, match="no room for the tensors of a session"):
        cudnn.load(art, tmp_path)
    assert stub.emulated_cudnn_alive() == alive


def test_a_network_without_kernels_of_its_own(cudnn: Driver, tmp_path: Path) -> None:
    model, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 5, 5)
    # what is asked of the package's kernels does not reach into the library
    art = dycl_tvm.build(model, (x,), target="cuda -arch=sm_90", host="llvm", enable_backends=["cudnn"], accuracy="fp16")
    module = cudnn.load(art, tmp_path)
    with torch.no_grad():
        assert difference(model(x), module(x), rtol=1e-5) is None
    assert (cudnn.count("launches"), cudnn.count("library calls")) == (0, 1)


class Skips(nn.Module):
    """A layer that the data may skip, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.first(x))
        if y.mean().item() > 0.4:
            y = y + self.second(y)
            self.calls = self.calls + 1
        return y, self.calls


def test_networks_with_branches(cudnn: Driver, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Skips().eval(), torch.randn(1, 3, 6, 5)
    module = cudnn.load(build(model, (x,)), tmp_path)
    paths = set()
    for scale in (0.1, 10.0, 0.1, 10.0, 10.0):
        check(module, model, x * scale)
        paths.add(str(module.last_path))
    assert len(paths) == 2


def test_both_libraries(cudnn: Driver, tmp_path: Path) -> None:
    load_stub(cudnn, "cublas_stub.cc", "libcublas.so.12")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 5))
    x = torch.randn(2, 3, 6, 6)
    art = dycl_tvm.build(model.eval(), (x,), target="cuda -arch=sm_90", host="llvm", enable_backends=["cudnn", "cublas"])
    offload = art._lowered.stats.offload
    assert (offload["cudnn"].regions, offload["cublas"].regions) == (1, 1)
    with torch.no_grad():
        assert difference(model(x), cudnn.load(art, tmp_path)(x), rtol=1e-5) is None


def test_a_machine_without_the_library_is_told_so(gpu: Driver, tmp_path: Path) -> None:
    art = build(nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 5, 5),))
    said = errors_without_libraries(gpu, art, tmp_path)
    words = "was built with the backend cudnn, but libcudnn.so of version 8 to 9 is not on this machine"
    assert DeviceError.__name__ in said and words in said, said[-2000:]


def test_it_is_for_gpus_and_on_request() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5)
    with pytest.raises(UsageError, match="'cudnn' takes nothing for"):
        dycl_tvm.build(model, (x,), target="llvm", enable_backends=["cudnn"])
    art = dycl_tvm.build(model, (x,), target="cuda -arch=sm_90", host="llvm")
    assert "cudnn" not in art._lowered.stats.offload
