# Licensed under the Apache License, Version 2.0; see LICENSE.
"""RMS normalisation, PyTorch's own and written out, becomes one kernel; results against float64, within 2e-6 of the largest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dycl_tvm

G = torch.Generator().manual_seed(7)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


W, TABLE, WIDE = _randn(37), _randn(3, 5), _randn(1, 1, 24)


def _inverse(x: Tensor, axis: Any = -1) -> Tensor:
    return torch.rsqrt((x * x).mean(axis, keepdim=True) + 1e-6)


class Llama(nn.Module):
    """As models of the Llama kind write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_randn(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


LLAMA, MODULE = Llama(37), nn.RMSNorm(19, eps=1e-3)

EPS = torch.finfo(torch.float32).eps


def _norm(x: Tensor, eps: float, axis: Any = -1) -> Tensor:
    """The definition, in float64."""
    return x / ((x * x).mean(axis, keepdim=True) + eps).sqrt()


#: What is computed, its input, the same of an input in float64, and whether it is a kernel of the family.
CASES: dict[str, tuple[Callable[..., Any], Tensor, Callable[[Tensor], Tensor], bool]] = {
    "no epsilon": (lambda x: F.rms_norm(x, (37,), W), _randn(1, 7, 37) * 1e-4, lambda x: _norm(x, EPS) * W, True),
    "no weight": (lambda x: F.rms_norm(x, (1,), eps=0.5), _randn(5, 1), lambda x: _norm(x, 0.5), True),
    "two axes": (lambda x: F.rms_norm(x, (3, 5), TABLE, 0.1), _randn(2, 4, 3, 5), lambda x: _norm(x, 0.1, (-2, -1)) * TABLE, True),
    "module": (lambda x: MODULE(x), _randn(2, 19), lambda x: _norm(x, 1e-3) * MODULE.weight, True),
    "written out": (lambda x: LLAMA(x), _randn(1, 6, 37), lambda x: _norm(x, 1e-6) * LLAMA.weight, True),
    "inverse first": (lambda x: _inverse(x) * x * W, _randn(3, 37), lambda x: _norm(x, 1e-6) * W, True),
    "divided": (lambda x: x / torch.sqrt(1e-6 + x.square().mean(-1, keepdim=True)), _randn(3, 33), lambda x: _norm(x, 1e-6), True),
    "weight with dimensions of 1": (lambda x: F.rms_norm(x, (24,)) * WIDE, _randn(2, 3, 24), lambda x: _norm(x, EPS) * WIDE, True),
    "weight of each row": (lambda x: x * _inverse(x) * x[:, :1], _randn(4, 13), lambda x: _norm(x, 1e-6) * x[:, :1], True),
    "weight of run time": (lambda x: x * _inverse(x) * (x[0] + 1), _randn(4, 21), lambda x: _norm(x, 1e-6) * (x[0] + 1), True),
    "another axis": (lambda x: x * _inverse(x, 0), _randn(6, 11), lambda x: _norm(x, 1e-6, 0), False),
    "of another tensor": (lambda x: (x + 1) * _inverse(x), _randn(6, 11), lambda x: _norm(x, 1e-6) * (x + 1) / x, False),
    "of all": (lambda x: x * torch.rsqrt((x * x).mean() + 1e-6), _randn(6, 11), lambda x: _norm(x, 1e-6, (0, 1)), False),
}


def _all(*tensors: Tensor) -> list[Any]:
    return [case[0](x) for case, x in zip(CASES.values(), tensors)]


def _run(fn: Callable[..., Any], args: tuple[Tensor, ...], folder: Path, **options: Any) -> tuple[Any, dict[str, int]]:
    artifact = dycl_tvm.build(fn, args, **options)
    module = dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
    return module(*args), dict(artifact._lowered.stats.families)


def _check(actual: Any, name: str) -> None:
    exact = CASES[name][2](CASES[name][1].double()).detach()
    torch.testing.assert_close(torch.as_tensor(actual).double(), exact, rtol=0, atol=2e-6 * float(exact.abs().max()))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, int]]:
    return _run(_all, tuple(case[1] for case in CASES.values()), tmp_path_factory.mktemp("rms"))


@pytest.mark.parametrize("name", CASES)
def test_results(name: str, built: Any) -> None:
    _check(built[0][list(CASES).index(name)], name)


def test_those_over_the_last_axes_are_one_kernel(built: Any) -> None:
    assert built[1]["normalisation"] == sum(case[3] for case in CASES.values())


def test_a_case_alone_is_one_kernel_and_nothing_else(tmp_path: Path) -> None:
    artifact = dycl_tvm.build(LLAMA, (CASES["written out"][1],))
    assert artifact.report().kernels == 1


def test_the_family_can_be_disabled(tmp_path: Path) -> None:
    found, families = _run(CASES["written out"][0], CASES["written out"][1:2], tmp_path, disable_families=("normalisation",))
    assert "normalisation" not in families
    _check(found, "written out")
