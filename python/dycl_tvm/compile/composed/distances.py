# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Distances, and products of three."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition


def _norm(difference: Tensor, p: float) -> Tensor:
    """Return the norm of differences over the last dimension; ``p`` is a number of any size."""
    size = difference.abs()
    if p == 0:
        return torch.where(torch.isnan(difference), difference, (difference != 0).to(difference.dtype)).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    return size.amax(-1) if math.isinf(p) else size.pow(p).sum(-1).pow(1 / p)


@decomposition("_cdist_forward.default")
def cdist(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Distances of all pairs. Their maximum leaves out what is no number, as ATen's does here, but not in ``pdist``."""
    if 0 in (a.shape[-1], *a.shape, *b.shape):
        return torch.zeros((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]), dtype=a.dtype)
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    return _norm(torch.where(torch.isnan(difference), 0, difference) if math.isinf(p) else difference, p)


@decomposition("_pdist_forward.default")
def pdist(x: Tensor, p: float = 2) -> Tensor:
    n = x.shape[0]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    if not pairs or not x.shape[1]:
        return torch.zeros(len(pairs), dtype=x.dtype)
    first, second = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    return _norm(x[first] - x[second], p)


@decomposition("_trilinear.default")
def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int], unroll_dim: int = 1
) -> Tensor:
    def expanded(t: Tensor, dims: list[int]) -> Tensor:
        for dim in dims:
            t = t.unsqueeze(dim)
        return t

    product = expanded(a, expand1) * expanded(b, expand2)
    first = [d for d in sumdim if d in expand3]  # what the third does not have is summed before it comes in
    product = (product.sum(first, keepdim=True, dtype=a.dtype) if first else product) * expanded(c, expand3)
    rest = [d for d in sumdim if d not in expand3]
    product = product.sum(rest, keepdim=True, dtype=a.dtype) if rest else product
    for d in sorted(sumdim, reverse=True):
        product = product.squeeze(d)
    return product


@decomposition("addbmm.default")
def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):  # PyTorch rounds the sum after each product
        total = x.expand(a.shape[1], b.shape[2])
        for k in range(a.shape[0]):
            total = torch.addmm(total, a[k], b[k], beta=1 if k else beta, alpha=alpha)
        return total
    product = a.transpose(0, 1).flatten(1) @ b.flatten(0, 1)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)
