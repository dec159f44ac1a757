# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Eigenvectors and singular vectors: defined but for a sign (a factor of length 1, if complex), and in null spaces but for a rotation.

PyTorch leaves the choice open, and makes none that could be repeated: of random symmetric 9x9 matrices of float32 one in thirty gets a
vector of the other sign if its elements change by their last bit, of 25x25 matrices two in five; other LAPACKs give other signs to one
matrix of three from 3x3 on. So artefacts have a choice of their own, by a rule that follows from the matrix alone, and a network is
compiled without more only if its result is the same whatever is chosen: its graph is run with choices made at random, against the model.

Importing the file makes these factorisations PyTorch operators of the namespace ``dycl_vectors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dycl_tvm.hcfg.nodes import HCFG, TensorOp, block_operands

NAMESPACE = "dycl_vectors"
#: Operators of ATen that give such vectors, what stands for them, and which of their results are vectors.
FACTORS = {
    "aten._linalg_eigh.default": (f"{NAMESPACE}.eigh.default", (1,)),
    "aten._linalg_svd.default": (f"{NAMESPACE}.svd.default", (0, 2)),
}

#: Who chooses.
AS_LAPACK, BY_RULE, AT_RANDOM = "as LAPACK", "by rule", "at random"
_choice = AS_LAPACK
_random = torch.Generator()
_GOLDEN = 0.6180339887498949

_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("eigh(Tensor A, str UPLO='L', bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)")
_library.define("svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)")


@contextmanager
def chosen(choice: str, seed: int = 0) -> Iterator[None]:
    """Run what follows with vectors that are chosen in some way."""
    global _choice
    before, _choice = _choice, choice
    _random.manual_seed(seed)
    try:
        yield
    finally:
        _choice = before


def are_random() -> bool:
    """Whether vectors are chosen at random at the moment."""
    return _choice == AT_RANDOM


def places_of(graph: HCFG) -> list[TensorOp]:
    """Return the operations of a graph, as staged, whose vectors something reads."""
    read = {id(v) for b in graph.blocks for v in block_operands(b)}
    ops = [s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) and s.op in FACTORS]
    return [op for op in ops if any(id(op.outputs[k]) in read for k in FACTORS[op.op][1])]


def _weights(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return the directions by which vectors are chosen, as ``src/runtime/matrices.h`` has them."""
    turns = _GOLDEN * torch.outer(torch.arange(1, rows + 1), torch.arange(1, columns + 1)).double()
    return (0.5 + turns - turns.floor()).to(like.dtype)


def _factors(vectors: Tensor) -> Tensor:
    """Return by what each of the vectors, which are columns, is multiplied."""
    shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
    if _choice == AS_LAPACK:
        return torch.ones(shape, dtype=vectors.dtype)
    if _choice == BY_RULE:
        along = _weights(vectors.shape[-2], 1, vectors).mH @ vectors
        return torch.where(along == 0, torch.ones_like(along), along.sgn().conj())
    if vectors.is_complex():
        return torch.randn(shape, generator=_random, dtype=vectors.dtype).sgn()
    return torch.randint(0, 2, shape, generator=_random).to(vectors.dtype) * 2 - 1


def _rest(vectors: Tensor) -> Tensor:
    """Return another basis of the space of these columns."""
    m, count = vectors.shape[-2:]
    if _choice == BY_RULE:
        directions = vectors.mH @ _weights(m, count, vectors)
    else:
        directions = torch.randn(*vectors.shape[:-2], count, count, generator=_random, dtype=vectors.dtype)
    turned, triangle = torch.linalg.qr(directions)
    return vectors @ (turned * triangle.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2))


def _eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    values, vectors = torch.ops.aten._linalg_eigh(A, UPLO, compute_v)
    return values, vectors * _factors(vectors) if compute_v and _choice != AS_LAPACK else vectors


def _svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    u, values, vh = torch.ops.aten._linalg_svd(A, full_matrices, compute_uv, driver=driver)
    if not compute_uv or _choice == AS_LAPACK:
        return u, values, vh
    sides, k = [u, vh.mH], values.shape[-1]
    factors = _factors(sides[A.shape[-2] >= A.shape[-1]][..., :k])
    made = [torch.cat([s[..., :k] * factors, _rest(s[..., k:])], -1) if s.shape[-1] > k else s * factors for s in sides]
    return made[0], values, made[1].mH


_library.impl("eigh", _eigh, "CompositeExplicitAutograd")
_library.impl("svd", _svd, "CompositeExplicitAutograd")
