# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Eigenvectors and singular vectors: compiled where no sign of theirs is seen, refused where one is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg import vectors


def _run(tmp_path: Path, model: Any, *inputs: Tensor, **options: Any) -> Any:
    artifact = dycl_tvm.build(model, inputs, **options)
    return dycl_tvm.load(artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params"))(*inputs)


def _whitened(x: Tensor) -> Tensor:
    values, v = torch.linalg.eigh(x @ x.mT)
    return (v * (values + 1).rsqrt().unsqueeze(-2)) @ v.mT


def _polar(x: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return u @ vh


def _solution(x: Tensor) -> Tensor:
    """Return the null vector of a 4x5 matrix, as homographies are found: its last element is one."""
    v = torch.linalg.svd(x[..., :4, :])[2][..., -1, :]
    return v / v[..., -1:]


def _of_both_signs(x: Tensor) -> Tensor:
    u, sizes, v = torch.svd(x)
    if torch.det(u[0] @ v[0].mT) < 0:
        return x
    return u.abs() * sizes.unsqueeze(-2)


def _turned(x: Tensor) -> Tensor:
    """Return eigenvectors whose first elements are positive: a choice of the program's own."""
    v = torch.linalg.eigh(x + x.mT)[1]
    return v * v[..., :1, :].sign()


@pytest.mark.parametrize("model", [_whitened, _polar, _solution, _of_both_signs, _turned])
def test_what_depends_on_no_sign_is_compiled(tmp_path: Path, model: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 5)
    torch.testing.assert_close(_run(tmp_path, model, x), model(x), rtol=1e-4, atol=1e-5)


def _vector(x: Tensor) -> Tensor:
    return torch.linalg.eigh(x + x.mT)[1]


def _product(x: Tensor) -> Tensor:
    v = torch.linalg.eigh(x + x.mT)[1]
    return v[..., 0] * v[..., 3]


def _branch(x: Tensor) -> Tensor:
    if torch.linalg.svd(x)[0][0, 0, 0] > 0:
        return x * 2
    return x


def _null_space(x: Tensor) -> Tensor:
    return torch.linalg.svd(x[..., :3, :])[2][..., -1, :].abs()  # one of two directions, which may be any of a plane


@pytest.mark.parametrize("model", [_vector, _product, _branch, _null_space])
def test_what_depends_on_a_sign_is_refused(model: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedError, match="left open by PyTorch, and the result depends on them"):
        dycl_tvm.build(model, torch.randn(3, 5, 5))


def test_nobody_knows_without_the_check() -> None:
    with pytest.raises(UnsupportedError, match="verify='off', does not find out"):
        dycl_tvm.build(_whitened, torch.randn(3, 5, 5), verify="off")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_accepted_signs_are_those_of_the_rule(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 4, dtype=dtype)

    def model(x: Tensor) -> Any:
        return torch.linalg.eigh(x + x.mH), torch.linalg.svd(x), torch.linalg.svd(x[..., :2])

    (values, v), first, second = _run(tmp_path, model, x, open_signs=True)
    torch.testing.assert_close((v * values.unsqueeze(-2)) @ v.mH, x + x.mH, rtol=1e-4, atol=1e-5)
    with vectors.chosen(vectors.BY_RULE):
        for found, of in ((first, x), (second, x[..., :2])):
            torch.testing.assert_close(found, tuple(torch.ops.dycl_vectors.svd(of, True)), rtol=1e-4, atol=1e-4)


def test_matrices_of_equal_values(tmp_path: Path) -> None:
    x = torch.stack([torch.eye(4), torch.zeros(4, 4), torch.diag(torch.tensor([3.0, -1, 0, 3])), torch.ones(4, 4)])

    def model(x: Tensor) -> Any:
        values, v = torch.linalg.eigh(x)
        u, sizes, vh = torch.linalg.svd(x)
        return (v * values.unsqueeze(-2)) @ v.mT, v.mT @ v, (u * sizes.unsqueeze(-2)) @ vh, u.mT @ u, vh @ vh.mT

    torch.testing.assert_close(_run(tmp_path, model, x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_least_squares(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 6, 3, dtype=dtype), torch.randn(2, 6, dtype=dtype)

    def model(a: Tensor, b: Tensor) -> Any:
        many = torch.linalg.lstsq(a, b.unsqueeze(-1))
        return many.solution, many.rank, torch.linalg.lstsq(a[0], b[0]).solution, torch.linalg.lstsq(a.mT, a[..., :3, :]).solution

    torch.testing.assert_close(_run(tmp_path, model, a, b), model(a, b), rtol=1e-4, atol=1e-5)


def test_the_report_says_it() -> None:
    artifact = dycl_tvm.build(_whitened, torch.randn(3, 5, 5))
    assert "the signs that LAPACK gives the vectors of linalg_eigh()" in str(artifact.report())
    assert "the result was the same for any" in str(artifact.report())
