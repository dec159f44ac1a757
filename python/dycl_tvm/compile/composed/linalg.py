# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Linear algebra: what is made of the factorisations of :mod:`dycl_tvm.compile.ops.linalg`.

Results that are defined but for a sign (singular vectors, eigenvectors) are not given: nobody could say whether they are right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition

aten = torch.ops.aten


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two batches of matrices with the same batch dimensions."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _substituted(a: Tensor, b: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """Return x with a x = b, a triangular."""
    return torch.ops.dycl_tvm.substituted(*_together(a, b), upper, unit)


@decomposition("linalg_solve_triangular.default")
def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if not left:
        return _substituted(a.mT, b.mT, not upper, unitriangular).mT
    return _substituted(a, b, upper, unitriangular)


@decomposition("triangular_solve.default")
def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    solved = _substituted(a.mT, b, not upper, unitriangular) if transpose else _substituted(a, b, upper, unitriangular)
    return solved, a.expand(*solved.shape[:-2], *a.shape[-2:]).clone()


def _order(pivots: Tensor, m: int) -> Tensor:
    """Return which row each row of the factors was: the exchanges one after the other."""
    number = torch.arange(m).expand(*pivots.shape[:-1], m)
    order = number
    for k in range(pivots.shape[-1]):
        other = (pivots[..., k : k + 1] - 1).to(torch.int64)
        here, there = order[..., k : k + 1], order.gather(-1, other)
        order = torch.where(number == k, there, torch.where(number == other, here, order))
    return order


def _solved(lu: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    """Return x with a x = b, of the factors of a."""
    lu, b = _together(lu, b)
    order = _order(pivots, lu.shape[-1]).expand(*b.shape[:-1])
    y = _substituted(lu, b.gather(-2, order.unsqueeze(-1).expand(b.shape)), upper=False, unit=True)
    return _substituted(lu, y, upper=True)


def _solved_transposed(lu: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    """Return x with a^T x = b, of the factors of a."""
    lu, b = _together(lu, b)
    y = _substituted(lu.mT, _substituted(lu.mT, b, upper=False), upper=True, unit=True)
    back = _order(pivots, lu.shape[-1]).expand(*b.shape[:-1]).argsort(-1)
    return y.gather(-2, back.unsqueeze(-1).expand(b.shape))


@decomposition("linalg_lu_solve.default")
def lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    solve = _solved if left != adjoint else _solved_transposed
    return solve(lu, pivots, b) if left else solve(lu, pivots, b.mT).mT


@decomposition("lu_unpack.default")
def lu_unpack(lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Tensor | None, ...]:
    m, n = lu.shape[-2:]
    k = min(m, n)
    rows = lower = upper = None
    if unpack_pivots:
        rows = (_order(pivots, m).unsqueeze(-2) == torch.arange(m).unsqueeze(-1)).to(lu.dtype)
    if unpack_data:
        lower, upper = lu[..., :k].tril(-1) + torch.eye(m, k, dtype=lu.dtype), lu[..., :k, :].triu()
    return rows, lower, upper


@decomposition("linalg_lu.default")
def lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor | None, ...]:
    factors, pivots, _ = aten.linalg_lu_factor_ex(a, pivot=pivot)
    return lu_unpack(factors, pivots)


@decomposition("linalg_inv_ex.default")
def inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factors, pivots, info = aten.linalg_lu_factor_ex(a)
    return _solved(factors, pivots, torch.eye(a.shape[-1], dtype=a.dtype)), info


@decomposition("_linalg_solve_ex.default")
def solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor | None, ...]:
    factors, pivots, info = aten.linalg_lu_factor_ex(a)
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    x = lu_solve(factors, pivots, b.unsqueeze(-1) if vector else b, left=left or vector)
    return x.squeeze(-1) if vector else x, None, None, info  # the factors are those of the transposed matrix, for training


def _diagonal(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return what stands on the diagonal after elimination, and whether rows were exchanged an odd number of times."""
    factors, pivots, _ = aten.linalg_lu_factor_ex(a)
    exchanged = (pivots != torch.arange(1, a.shape[-1] + 1)).to(torch.int64).sum(-1)
    return factors.diagonal(dim1=-2, dim2=-1), exchanged % 2 == 1


@decomposition("_linalg_det.default")
def det(a: Tensor) -> tuple[Tensor | None, ...]:
    diagonal, odd = _diagonal(a)
    product = diagonal.prod(-1)
    return torch.where(odd, -product, product), None, None


@decomposition("_linalg_slogdet.default")
def slogdet(a: Tensor) -> tuple[Tensor | None, ...]:
    diagonal, odd = _diagonal(a)
    sign = diagonal.sign().prod(-1)
    return torch.where(odd, -sign, sign), diagonal.abs().log().sum(-1), None, None


@decomposition("linalg_cholesky_ex.default")
def cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lower, info = torch.ops.dycl_tvm.cholesky(a.mT if upper else a)
    return lower.mT if upper else lower, info


@decomposition("cholesky.default")
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return cholesky_ex(a, upper=upper)[0]


@decomposition("cholesky_solve.default")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    return _substituted(lower.mT, _substituted(lower, b, upper=False), upper=True)


@decomposition("cholesky_inverse.default")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


@decomposition("linalg_qr.default")
def qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    k = min(m, n)
    packed, tau = torch.ops.dycl_tvm.reflections(a)
    if mode == "r":
        return torch.empty((0,), dtype=a.dtype), packed[..., :k, :].triu()
    columns = m if mode == "complete" else k
    vectors = packed[..., :columns]
    if columns > n:
        vectors = torch.nn.functional.pad(vectors, (0, columns - n))
    return aten.linalg_householder_product(vectors, tau), packed[..., :columns, :].triu()


@decomposition("ormqr.default")
def ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    m = other.shape[-2 if left else -1]
    vectors = torch.nn.functional.pad(a, (0, m - a.shape[-1])) if a.shape[-1] < m else a[..., :m]
    q = aten.linalg_householder_product(vectors, tau)
    q = q.mT if transpose else q
    return q @ other if left else other @ q


def _rotated(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return u with orthogonal columns, their norms, and v: a = u v^T, in float64."""
    u, v = torch.ops.dycl_tvm.rotations(a)
    return u, (u * u).sum(-2).sqrt(), v


@decomposition("_linalg_svd.default")
def svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple[Tensor | None, ...]:
    sizes = _rotated(a if a.shape[-2] >= a.shape[-1] else a.mT)[1]
    return None, torch.sort(sizes, -1, descending=True)[0].to(a.dtype), None


def _pinv(a: Tensor, atol: Tensor | None, rtol: Tensor | None) -> Tensor:
    if a.shape[-2] < a.shape[-1]:
        return _pinv(a.mT, atol, rtol).mT
    u, sizes, v = _rotated(a)
    largest = sizes.amax(-1, keepdim=True)
    bound = torch.zeros_like(largest) if atol is None else atol.to(torch.float64).unsqueeze(-1)
    least = max(a.shape[-2:]) * torch.finfo(a.dtype).eps
    if rtol is not None:
        relative = rtol.to(torch.float64).unsqueeze(-1)
    else:
        relative = torch.where(bound > 0, 0.0, least)
    kept = sizes > torch.maximum(bound, relative * largest)
    scale = torch.where(kept, 1 / (sizes * sizes), 0.0)
    return ((v * scale.unsqueeze(-2)) @ u.mT).to(a.dtype)


@decomposition("linalg_pinv.atol_rtol_tensor")
def pinv(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    return _pinv(_mirrored(a, False) if hermitian else a, atol, rtol)


def _mirrored(a: Tensor, upper: bool) -> Tensor:
    """Return the symmetric matrix of which one triangle counts."""
    half = a.triu(1) if upper else a.tril(-1)
    return half + half.mT + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))


@decomposition("_linalg_eigh.default")
def eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor | None, ...]:
    """Return the eigenvalues: singular values of the matrix, moved by its largest row sum so that all are positive."""
    whole = _mirrored(a, UPLO == "U").to(torch.float64)
    shift = whole.abs().sum(-1).amax(-1)
    moved = whole + torch.eye(a.shape[-1], dtype=torch.float64) * shift[..., None, None]
    return torch.sort(_rotated(moved)[1] - shift.unsqueeze(-1), -1)[0].to(a.dtype), None
