# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Linear algebra: what is made of the factorisations of :mod:`dycl_tvm.compile.ops.linalg`.

Vectors that are defined but for a sign have the sign of :mod:`dycl_tvm.hcfg.vectors`.
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
    return torch.ops.dycl_tvm.triangular(*_together(a, b), upper, unit)


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


@decomposition("linalg_lu_factor_ex.default")
def lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise NotImplementedError("a factorisation without pivots")
    return torch.ops.dycl_tvm.lu(a)  # type: ignore[no-any-return]


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


def _solved_adjoint(lu: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    """Return x with a^H x = b, of the factors of a."""
    lu, b = _together(lu, b)
    y = _substituted(lu.mH, _substituted(lu.mH, b, upper=False), upper=True, unit=True)
    back = _order(pivots, lu.shape[-1]).expand(*b.shape[:-1]).argsort(-1)
    return y.gather(-2, back.unsqueeze(-1).expand(b.shape))


@decomposition("linalg_lu_solve.default")
def lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if left:
        return (_solved_adjoint if adjoint else _solved)(lu, pivots, b)
    return (_solved if adjoint else _solved_adjoint)(lu, pivots, b.mH).mH  # x a = b where a^H x^H = b^H


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
    sign = diagonal.sgn().prod(-1)
    return torch.where(odd, -sign, sign), diagonal.abs().log().sum(-1), None, None


@decomposition("linalg_cholesky_ex.default")
def cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lower, info = torch.ops.dycl_tvm.cholesky(a.mH if upper else a)
    return lower.mH if upper else lower, info


@decomposition("cholesky_solve.default")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    return _substituted(lower.mH, _substituted(lower, b, upper=False), upper=True)


@decomposition("cholesky_inverse.default")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


@decomposition("geqrf.default")
def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.dycl_tvm.reflections(a)  # type: ignore[no-any-return]


@decomposition("linalg_householder_product.default")
def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    return torch.ops.dycl_tvm.orthogonal(a, tau)  # type: ignore[no-any-return]


@decomposition("linalg_qr.default")
def qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    k = min(m, n)
    packed, tau = geqrf(a)
    if mode == "r":
        return torch.empty((0,), dtype=a.dtype), packed[..., :k, :].triu()
    columns = m if mode == "complete" else k
    vectors = packed[..., :columns]
    if columns > n:
        vectors = torch.nn.functional.pad(vectors, (0, columns - n))
    return householder_product(vectors, tau), packed[..., :columns, :].triu()


@decomposition("ormqr.default")
def ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    m = other.shape[-2 if left else -1]
    vectors = torch.nn.functional.pad(a, (0, m - a.shape[-1])) if a.shape[-1] < m else a[..., :m]
    q = householder_product(vectors, tau)
    q = q.mH if transpose else q
    return q @ other if left else other @ q


@decomposition("_linalg_svd.default")
def svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple[Tensor | None, ...]:
    is_wide = a.shape[-2] < a.shape[-1]
    factor = torch.ops.dycl_tvm.svd_complete if full_matrices and compute_uv else torch.ops.dycl_tvm.svd
    u, sizes, v = factor(a.mH if is_wide else a)
    if not compute_uv:
        return None, sizes, None
    return (v, sizes, u.mH) if is_wide else (u, sizes, v.mH)


@decomposition("_linalg_eigh.default")
def eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor | None, ...]:
    sizes, vectors = torch.ops.dycl_tvm.eigh(a.mH if UPLO == "U" else a)
    return sizes, vectors if compute_v else None


def _inverted(a: Tensor, atol: Tensor | None, rtol: Tensor | None, hermitian: bool) -> tuple[Tensor, Tensor]:
    """Return the pseudo-inverse in float64, where the singular vectors are, and how many singular values count."""
    wide = a.to(torch.complex128 if a.is_complex() else torch.float64)
    if hermitian:
        sizes, v = torch.ops.dycl_tvm.eigh(wide)
        u = v
    else:
        u, sizes, vh = svd(wide)
        v = vh.mH  # type: ignore[union-attr]
    largest = sizes.abs().amax(-1, keepdim=True)  # type: ignore[union-attr]
    bound = torch.zeros_like(largest) if atol is None else atol.to(torch.float64).unsqueeze(-1)
    least = max(a.shape[-2:]) * torch.finfo(a.dtype).eps
    relative = torch.where(bound > 0, 0.0, least) if rtol is None else rtol.to(torch.float64).unsqueeze(-1)
    kept = sizes.abs() > torch.maximum(bound, relative * largest)  # type: ignore[union-attr]
    made = (v * torch.where(kept, 1 / sizes, 0.0).unsqueeze(-2)) @ u.mH  # type: ignore[union-attr, operator]
    return made, kept.sum(-1)


@decomposition("linalg_pinv.atol_rtol_tensor")
def pinv(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    return _inverted(a, atol, rtol, hermitian)[0].to(a.dtype)


@decomposition("linalg_lstsq.default")
def lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> tuple[Tensor | None, ...]:
    """Return the least of all solutions, and the rank, as LAPACK's gelsy."""
    inverse, rank = _inverted(a, None, None if rcond is None else torch.full(a.shape[:-2], rcond, dtype=torch.float64), False)
    is_row = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    found = inverse @ (b.unsqueeze(-1) if is_row else b).to(inverse.dtype)
    return (found.squeeze(-1) if is_row else found).to(a.dtype), None, rank, None


#: How many terms of its series an exponential has, of matrices whose norm is at most 1; how often a result is squared at most.
_TERMS, _SQUARES = 20, 32


@decomposition("linalg_matrix_exp.default")
def matrix_exp(a: Tensor) -> Tensor:
    """Return the exponential: of a part of the matrix, by its series, and squared as often as that was halved; in float64."""
    if a.dtype in (torch.float16, torch.bfloat16):
        raise NotImplementedError("exponentials of matrices of halves, which PyTorch gives as NaN where its squares overflow")
    wide = a.to(torch.complex128 if a.is_complex() else torch.float64)
    norm = wide.abs().sum(-2).amax(-1)[..., None, None]
    halved = norm.log2().ceil().clamp(0, _SQUARES)
    part = wide * torch.exp2(-halved)
    one = torch.eye(a.shape[-1], dtype=wide.dtype)
    made = one + part / _TERMS
    for k in range(_TERMS - 1, 0, -1):
        made = one + (part @ made) / k
    for k in range(_SQUARES):
        made = torch.where(halved > k, made @ made, made)
    return made.to(a.dtype)
