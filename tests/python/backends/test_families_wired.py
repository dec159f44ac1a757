# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of run-time tensors, softmax, norms and functions in whole builds: which family takes them, and that results stay right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm.compare import difference

G = torch.Generator().manual_seed(5)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


W, B, C = _randn(24), _randn(24), _randn(6)

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, int]]] = {
    "product": (lambda a, b: a @ b, (_randn(2, 3, 5, 7), _randn(2, 3, 7, 9)), {"matmul": 1}),
    "shared right side": (lambda a, b: a @ b, (_randn(2, 5, 7), _randn(7, 9)), {"matmul": 1}),
    "transposed": (lambda a, b: a @ b.transpose(-1, -2), (_randn(3, 5, 17), _randn(3, 19, 17)), {"matmul": 1}),
    "transposed and read again": (lambda a, b: (a @ b.mT, b.mT + 1), (_randn(3, 5, 8), _randn(3, 6, 8)), {"matmul": 1}),
    "scaled and masked": (lambda a, b, m: a @ b.mT * 0.25 + m, (_randn(2, 5, 16), _randn(2, 5, 16), _randn(2, 5, 5)), {"matmul": 1}),
    "attention": (
        F.scaled_dot_product_attention,
        (_randn(1, 2, 40, 8), _randn(1, 2, 36, 8), _randn(1, 2, 36, 8)),
        {"attention": 1},
    ),
    "softmax of columns": (lambda x: x.softmax(1), (_randn(3, 7, 11),), {"softmax": 1}),
    "log softmax": (lambda x: x.log_softmax(-1), (_randn(3, 19),), {"softmax": 1}),
    "layer norm": (lambda x: F.layer_norm(x, (24,), W, B), (_randn(5, 24) + 100,), {"normalisation": 1}),
    "layer norm without bias": (lambda x: F.layer_norm(x, (24,), W), (_randn(5, 24),), {"normalisation": 1}),
    "layer norm without weight": (lambda x: F.layer_norm(x, (4, 6)), (_randn(5, 4, 6),), {"normalisation": 1}),
    "group norm": (lambda x: F.group_norm(x, 3, C, C), (_randn(2, 6, 5, 5),), {"normalisation": 1}),
    "float64": (lambda a, b: F.layer_norm((a @ b).softmax(-1), (4,)), (_randn(3, 4).double(), _randn(4, 4).double()), {}),
    "nested functions": (lambda x: torch.tanh(torch.sigmoid(torch.erf(torch.exp(x)))) + F.gelu(F.silu(x)), (_randn(5, 21),), {}),
}


def test_without_the_backend_tvm_makes_all_kernels(tmp_path: Path) -> None:
    net, x = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(80, 4)), _randn(1, 3, 6, 6)
    found, families = _build(net.eval(), (x,), tmp_path, disable_backends=["tir_cpu"])
    assert not families
    torch.testing.assert_close(torch.as_tensor(found), net(x).detach())
    assert _build(net, (x,), tmp_path)[1]


def _all(*tensors: Tensor) -> list[Any]:
    rest, found = list(tensors), []
    for fn, args, _ in CASES.values():
        found.append(fn(*rest[: len(args)]))
        rest = rest[len(args) :]
    return found


def _build(fn: Callable[..., Any], args: tuple[Tensor, ...], folder: Path, **options: Any) -> tuple[Any, dict[str, int]]:
    artifact = dycl_tvm.build(fn, args, **options)
    module = dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
    return module(*args), dict(artifact._lowered.stats.families)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, int]]:
    return _build(_all, tuple(t for _, args, _ in CASES.values() for t in args), tmp_path_factory.mktemp("wired"))


@pytest.mark.parametrize("name", CASES)
def test_results(name: str, built: Any) -> None:
    fn, args, _ = CASES[name]
    assert difference(fn(*args), built[0][list(CASES).index(name)], rtol=2e-5) is None


def test_families_take_what_they_should(built: Any) -> None:
    expected: dict[str, int] = {}
    for _, _, families in CASES.values():
        for family, count in families.items():
            expected[family] = expected.get(family, 0) + count
    assert {k: v for k, v in built[1].items() if k in expected} == expected


def test_families_can_be_disabled(tmp_path: Path) -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm((a @ b.mT).softmax(-1), (5,))

    args = (_randn(2, 5, 8), _randn(2, 5, 8))
    found, families = _build(fn, args, tmp_path, disable_families=("matmul", "softmax", "normalisation"))
    assert not {"matmul", "softmax", "normalisation"} & set(families)
    assert difference(fn(*args), found, rtol=2e-5) is None


def test_tanh_keeps_its_digits_near_zero(tmp_path: Path) -> None:
    x = torch.tensor([1e-30, -3e-8, 1e-4, 0.01, -0.0, 3.0])
    found, _ = _build(lambda x: torch.tanh(x), (x,), tmp_path)  # noqa: PLW0108
    assert torch.allclose(torch.as_tensor(found), torch.tanh(x), rtol=4e-7, atol=0.0)
