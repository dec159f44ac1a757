# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of the user's own in an exported program: those of ``torch.library.custom_op`` are Python code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.exported import stage_exported
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify


@torch.library.custom_op("dycl_tvm_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float = 3.0) -> Tensor:
    return torch.relu(x) * by


@torch.library.custom_op("dycl_tvm_tests::bump", mutates_args={"x"})
def bump(x: Tensor) -> None:
    x[1:].add_(2)


@torch.library.custom_op("dycl_tvm_tests::by_numpy", mutates_args=())
def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() + 1)


@torch.library.custom_op("dycl_tvm_tests::two_kernels", mutates_args=())
def two_kernels(x: Tensor) -> Tensor:
    return x + 1


@two_kernels.register_kernel("cpu")
def _(x: Tensor) -> Tensor:
    return x + 100


for operator in (scaled, by_numpy, two_kernels):
    operator.register_fake(lambda x, *_: torch.empty_like(x))


class Net(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = scaled(x)
        bump(y)
        return y, two_kernels(scaled(x, 0.5))


class OutOfSight(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_numpy(x)


def test_python_code_is_looked_into() -> None:
    x = torch.tensor([-1.0, 2.0, 3.0])
    graph = stage_exported(torch.export.export(Net(), (x,)), (x,))
    verify(graph)
    got, want = interpret(graph, [x * 2])[0], Net()(x * 2)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert got[1].tolist() == [100.0, 102.0, 103.0]


def test_code_that_leaves_pytorch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="numpy\\(\\) on a tensor that is known only at run time"):
        stage_exported(torch.export.export(OutOfSight(), (torch.zeros(3),)), (torch.zeros(3),))
