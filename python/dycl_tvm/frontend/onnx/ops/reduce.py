# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reductions, cumulative operators, orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import CONVERTERS, Node, op

Tensor = torch.Tensor


def _reduction(**functions: tuple[int, Callable[[Tensor, list[int], bool], Tensor]]) -> None:
    """Register reductions; the number is the operator set from which on the axes are an input."""
    for name, (since, fn) in functions.items():
        CONVERTERS[name] = lambda node, x, axes=None, since=since, fn=fn: _reduce(node, x, axes, since, fn)


def _reduce(node: Node, x: Tensor, axes: Tensor | None, since: int, fn: Any) -> Any:
    found = node.ints(axes, "its axes") if node.opset >= since else node.attr("axes")
    keep = bool(node.attr("keepdims", 1))
    if not found:
        if node.attr("noop_with_empty_axes", 0):
            # What is done to each element is done all the same: the absolute value of L1, the logarithm of LogSum.
            return (
                fn(x.unsqueeze(0), [0], False)
                if node.type not in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd")
                else (x,)
            )
        found = list(range(x.dim()))
    if x.dim() == 0:
        return fn(x.reshape(1), [0], False)
    return fn(x, [a % x.dim() for a in found], keep)


def _keep_type(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, axes, keep: fn(x, axes, keep).to(x.dtype)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep).to(x.dtype)
    return x


def _extreme(fn: Any, empty: Callable[[torch.dtype], Any], boolean: Any) -> Callable[..., Tensor]:
    def run(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.numel() == 0:
            shape = [1 if k in axes else s for k, s in enumerate(x.shape) if keep or k not in axes]
            return torch.full(shape, empty(x.dtype), dtype=x.dtype)
        if x.dtype == torch.bool:
            return boolean(x, axes, keep)
        return fn(x, axes, keep)

    return run


def _any(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.any(x, dim=tuple(axes), keepdim=keep)


def _all(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.all(x, dim=tuple(axes), keepdim=keep)


def _lowest(dtype: torch.dtype) -> Any:
    return False if dtype == torch.bool else -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    return True if dtype == torch.bool else float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return torch.mean(x, axes, keepdim=keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(torch.sum(x, axes, keepdim=keep), count, rounding_mode="trunc").to(x.dtype)


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.dtype.is_floating_point:
        return torch.logsumexp(x.to(torch.float64), axes, keepdim=keep).to(x.dtype)
    return torch.logsumexp(x, axes, keepdim=keep)


_reduction(
    ReduceSum=(13, _keep_type(lambda x, axes, keep: torch.sum(x, axes, keepdim=keep))),
    ReduceMean=(18, _mean),
    ReduceProd=(18, _product),
    ReduceMax=(18, _extreme(torch.amax, _lowest, _any)),
    ReduceMin=(18, _extreme(torch.amin, _highest, _all)),
    ReduceL1=(18, _keep_type(lambda x, axes, keep: torch.sum(torch.abs(x), axes, keepdim=keep))),
    ReduceL2=(18, _keep_type(lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keepdim=keep)))),
    ReduceSumSquare=(18, _keep_type(lambda x, axes, keep: torch.sum(x * x, axes, keepdim=keep))),
    ReduceLogSum=(18, _keep_type(lambda x, axes, keep: torch.log(torch.sum(x, axes, keepdim=keep)))),
    ReduceLogSumExp=(18, _log_sum_exp),
)


@op("ArgMax", "ArgMin")
def _arg(node: Node, x: Tensor) -> Tensor:
    axis, keep = node.attr("axis", 0), bool(node.attr("keepdims", 1))
    fn = torch.argmax if node.type == "ArgMax" else torch.argmin
    if not node.attr("select_last_index", 0):
        return fn(x, axis, keepdim=keep)
    return x.shape[axis] - 1 - fn(torch.flip(x, [axis]), axis, keepdim=keep)


@op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node, x: Tensor) -> Tensor:
    fn: Any = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax, "Hardmax": _hardmax}[node.type]
    if node.opset >= 13:
        return fn(x, node.attr("axis", -1))
    # Before operator set 13 the tensor counts as a matrix, split before the axis.
    axis = node.attr("axis", 1) % max(x.dim(), 1)
    return fn(x.reshape(math.prod(x.shape[:axis]), -1), 1).reshape(tuple(x.shape))


def _hardmax(x: Tensor, axis: int) -> Tensor:
    extent = x.shape[axis]
    best = torch.argmax(x, axis, keepdim=True)
    shape = [1] * x.dim()
    shape[axis] = extent
    return (torch.arange(extent).reshape(shape) == best).to(x.dtype)


@op("CumSum", "CumProd")
def _cumulative(node: Node, x: Tensor, axis: Tensor) -> Tensor:
    dim = node.int(axis, "its axis") % max(x.dim(), 1)
    total = node.type == "CumSum"
    if node.attr("reverse", 0):
        x = torch.flip(x, [dim])
    extent = x.shape[dim]
    if node.attr("exclusive", 0):
        first = torch.full([1 if k == dim else s for k, s in enumerate(x.shape)], 0 if total else 1, dtype=x.dtype)
        x = torch.cat([first, x.narrow(dim, 0, extent - 1)], dim)
    result = (torch.cumsum(x, dim) if total else torch.cumprod(x, dim)).to(x.dtype)
    return torch.flip(result, [dim]) if node.attr("reverse", 0) else result


@op("TopK")
def _topk(node: Node, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count = node.attr("k") if k is None else node.int(k, "k")
    axis, descending = node.attr("axis", -1), bool(node.attr("largest", 1))
    # Stable, so that of equal elements the one with the lower index wins.
    values, indices = torch.sort(x, stable=True, dim=axis, descending=descending)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


@op("Trilu")
def _trilu(node: Node, x: Tensor, k: Tensor | None = None) -> Tensor:
    diagonal = 0 if k is None else node.int(k, "the diagonal")
    return torch.triu(x, diagonal) if node.attr("upper", 1) else torch.tril(x, diagonal)


@op("MatMul")
def _matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 1 and b.dim() > 1:  # PyTorch takes the row out of the result in place
        return torch.matmul(a.unsqueeze(0), b).squeeze(-2)
    return torch.matmul(a, b)


@op("Gemm")
def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.t() if node.attr("transA", 0) else a
    b = b.t() if node.attr("transB", 0) else b
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if c is None:
        product = torch.mm(a, b)
        return product if alpha == 1.0 else alpha * product
    if a.dtype.is_floating_point:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return int(alpha) * torch.mm(a, b) + int(beta) * c


@op("Einsum")
def _einsum(node: Node, *xs: Tensor) -> Tensor:
    return torch.einsum(node.attr("equation").replace(" ", ""), *xs)


@op("Det")
def _det(node: Node, x: Tensor) -> Tensor:
    return torch.linalg.det(x)
