# Licensed under the Apache License, Version 2.0; see LICENSE.
"""oneDNN as a backend: what it takes, what it leaves, and its results against eager on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dycl_tvm
from dycl_tvm.backends import onednn, partition, registry
from dycl_tvm.backends.onednn import library
from dycl_tvm.errors import UsageError

needs_library = pytest.mark.skipif(
    onednn.find_library() is None, reason="oneDNN is not installed (Debian, Ubuntu: apt-get install libdnnl-dev)"
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.na, self.nb = (nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class EarlyExit(nn.Module):
    """Residual blocks of 20 channels (no multiple of a vector), an exit after each, one weight-sharing head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(20), Block(20)])
        self.down = nn.Conv2d(20, 40, 3, stride=2, padding=1, groups=4)
        self.head, self.hidden, self.last = nn.Linear(20, 5), nn.Linear(40, 32), nn.Linear(32, 5)

    def forward(self, x, threshold):
        x = F.silu(self.stem(x))
        for k, block in enumerate(self.blocks):
            x = block(x)
            y = (1 + k) * self.head(x.mean((2, 3)))  # the second exit is the surer one
            if torch.softmax(y, 1).max() > threshold:
                return y
        x = torch.tanh(self.down(x)).mean((2, 3))
        return self.last(F.gelu(self.hidden(x)))


def build(model: nn.Module, inputs: Any, **options: Any) -> Any:
    return dycl_tvm.build(model.eval(), inputs, enable_backends=["onednn"], **options)


def load(art: Any, folder: Path, **options: Any) -> Any:
    so = folder / "model.so"
    art.export_library(so)
    art.save_params(folder / "model.params")
    return dycl_tvm.load(so, folder / "model.params", **options)


def text_of(art: Any) -> str:
    (source,) = art._lowered.library.sources
    return str(source[1])


def close(got: Any, want: torch.Tensor) -> None:
    np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=2e-5, atol=2e-5)


@needs_library
def test_early_exit_on_all_paths(tmp_path: Path) -> None:
    model = EarlyExit()
    art = build(model, (torch.randn(2, 3, 24, 24), torch.tensor(0.5)))
    modules = [load(art, tmp_path), load(art, tmp_path, num_threads=2)]
    seen: list[float] = []
    model.head.register_forward_hook(lambda m, args, y: seen.append(float(torch.softmax((1 + len(seen)) * y, 1).max())))
    paths = set()
    for k in range(3):
        x = torch.randn(2, 3, 24, 24) * (k + 1)
        with torch.no_grad():
            seen.clear()
            model(x, torch.tensor(2.0))
            for threshold in torch.tensor([0.0, sum(seen[:2]) / 2, 2.0]):
                want = model(x, threshold)
                for module in modules:
                    close(module(x, threshold), want)
                    paths.add(str(module.last_path))
                    assert any(name.startswith("onednn") for name in module.kernels_run)
    assert len(paths) == 3


@needs_library
def test_residual_block_is_one_region_and_weights_are_packed(tmp_path: Path) -> None:
    model, x = nn.Sequential(Block(20), Block(20)), torch.randn(1, 20, 9, 11)
    art = build(model, x)
    text = text_of(art)
    assert text.count("Region& r)") == 1
    assert (text.count("r.Convolution("), text.count("r.Relu("), text.count("Add(")) == (4, 4, 2)
    assert text.count(", true)") == 8  # weights and biases
    module = load(art, tmp_path)
    for _ in range(2):
        x = torch.randn_like(x)
        with torch.no_grad():
            close(module(x), model(x))
    assert module.kernels_run == {"onednn_region_0": 1}


@needs_library
def test_weights_that_are_no_constants(tmp_path: Path) -> None:
    def forward(x, w):
        return F.relu(x @ w)

    art = dycl_tvm.build(forward, (torch.randn(3, 8), torch.randn(8, 6)), enable_backends=["onednn"])
    assert ", true)" not in text_of(art)
    module = load(art, tmp_path)
    for _ in range(3):
        x, w = torch.randn(3, 8), torch.randn(8, 6)
        close(module(x, w), F.relu(x @ w))


class Samples(nn.Module):
    """Convolutions of random shapes, each with an activation and a product of four dimensions."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.nets, self.inputs = nn.ModuleList(), []
        for k, act in enumerate((nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh())):
            groups = int(rng.choice([1, 1, 2, 3]))
            channels, out = groups * int(rng.integers(1, 20)), groups * int(rng.integers(1, 20))
            kernel, stride, dilation = (int(rng.integers(1, n)) for n in (5, 4, 3))
            conv = nn.Conv2d(channels, out, kernel, stride, int(rng.integers(0, 3)), dilation, groups, bias=bool(k % 2))
            x = torch.randn(int(rng.integers(1, 4)), channels, *(int(n) for n in rng.integers(9, 20, 2)))
            self.nets.append(nn.Sequential(conv, act, nn.Linear(conv(x).shape[-1], 7), nn.ReLU()))
            self.inputs.append(x)

    def forward(self, *xs):
        return tuple(net(x) for net, x in zip(self.nets, xs))


@needs_library
@pytest.mark.parametrize("seed", range(2))
def test_random_shapes(seed: int, tmp_path: Path) -> None:
    model = Samples(np.random.default_rng(seed))
    art = build(model, tuple(model.inputs))
    assert text_of(art).count("r.Convolution(") == text_of(art).count("r.Product(") == 6
    with torch.no_grad():
        for got, want in zip(load(art, tmp_path)(*model.inputs), model(*model.inputs)):
            close(got, want)


@needs_library
def test_two_sessions_and_changed_threads(tmp_path: Path) -> None:
    model, x = nn.Sequential(Block(16)), torch.randn(1, 16, 12, 12)
    module = load(build(model, x), tmp_path, num_threads=1)
    other = module.new_session()
    with torch.no_grad():
        want = model(x)
    for session in (module, other, module):
        close(session(x), want)
    del module
    close(other(x), want)


@needs_library
def test_nan_and_infinity_pass_as_in_eager(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()), torch.randn(1, 3, 8, 8)
    x[0, 1, 2, 3], x[0, 2, 6, 6] = float("nan"), float("inf")
    module = load(build(model, x), tmp_path)
    with torch.no_grad():
        want = model(x)
    assert want.isnan().any() and want.isinf().any()
    close(module(x), want)


@needs_library
def test_predicate_leaves_other_types_and_results_that_are_read_twice() -> None:
    def twice(x, w):
        y = x @ w
        return torch.relu(y), y

    art = dycl_tvm.build(twice, (torch.randn(3, 8), torch.randn(8, 6)), enable_backends=["onednn"])
    assert "Relu" not in text_of(art) and "r.Product(" in text_of(art)
    double = dycl_tvm.build(lambda x, w: x @ w, (torch.randn(3, 8).double(), torch.randn(8, 6).double()), enable_backends=["onednn"])
    assert not double._lowered.library.sources


@needs_library
def test_cost_hook_and_report() -> None:
    model, x = nn.Sequential(Block(16)), torch.randn(1, 16, 12, 12)
    by_cost = dycl_tvm.build(model.eval(), x, enable_backends=["onednn:faster"])
    assert not by_cost._lowered.library.sources  # generated kernels are estimated to be faster
    left, taken = by_cost.report().offload["onednn"], build(model, x).report().offload["onednn"]
    assert (left.regions, left.rejected, taken.regions, taken.rejected) == (0, 1, 1, 0)
    assert (left.rejected_nodes, left.rejected_macs) == (taken.nodes, taken.macs)
    assert taken.macs == 2 * 16 * 16 * 9 * 144
    assert "onednn" in str(by_cost.report())


@needs_library
def test_cost_hook_takes_what_is_estimated_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn.cost, "families_seconds", lambda step, target: 1.0)
    art = dycl_tvm.build(Block(16).eval(), torch.randn(1, 16, 12, 12), enable_backends=["onednn:faster"])
    assert art.report().offload["onednn"].regions == 1


def test_without_the_library_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn.table, "find_library", lambda: None)
    model, x = nn.Linear(4, 4), torch.randn(1, 4)
    assert not dycl_tvm.build(model, x)._lowered.library.sources
    with pytest.raises(UsageError, match="onednn.*installed"):
        build(model, x)


def test_names_of_backends_are_checked() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        registry.active_backends(enabled=["nonsense"])
    with pytest.raises(UsageError, match="both"):
        registry.active_backends(["onednn"], ["onednn"])
    with pytest.raises(UsageError, match="collection"):
        registry.active_backends(enabled="onednn")
    assert partition.Offload().rejected_macs == 0


@pytest.mark.parametrize(
    "cpu, threads, version, good",
    [("OMP", "OMP", (3, 5), True), ("SEQ", "SEQ", (2, 6), True), ("SYCL", "TBB", (3, 5), False), ("OMP", "OMP", (1, 9), False)],
)
def test_library_is_looked_for_and_refused_where_its_threads_are_strange(
    cpu: str, threads: str, version: tuple[int, int], good: bool, tmp_path: Path
) -> None:
    headers, libs = tmp_path / "include" / "oneapi" / "dnnl", tmp_path / "lib"
    headers.mkdir(parents=True)
    libs.mkdir()
    (headers / "dnnl_config.h").write_text(
        f"#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_{threads}\n#define DNNL_CPU_RUNTIME DNNL_RUNTIME_{cpu}\n"
    )
    (headers / "dnnl_version.h").write_text(
        f"#define DNNL_VERSION_MAJOR {version[0]}\n#define DNNL_VERSION_MINOR {version[1]}\n#define DNNL_VERSION_PATCH 0\n"
    )
    (libs / "libdnnl.so").touch()
    found = library._find(str(tmp_path / "include"), str(libs))
    assert (found == library.Library((*version, 0), threads)) if good else found is None


def test_it_takes_part_on_request_only() -> None:
    names = [b.name for b in registry.active_backends()]
    assert "onednn" not in names
    (forced,) = [b for b in registry.active_backends(enabled=["onednn"]) if b.name == "onednn"]
    (faster,) = [b for b in registry.active_backends(enabled=["onednn:faster"]) if b.name == "onednn"]
    assert forced.worth is None and faster.worth is not None
