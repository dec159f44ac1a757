# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Losses, covariances and integrals of tensors whose length is known only at run time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.aligned import dims_of, equalized_buffers, fitted
from dycl_tvm.frontend.trace.values.extents import bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, rank_of
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, dtype_of, elementwise, filled, masked, new_in, refuse_call
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.numbers import is_symbolic

_NONE, _MEAN, _SUM = range(3)


# -- losses ---------------------------------------------------------------------------------------------------------------
def _loss(at: int, fill: Any = None) -> Handler:
    """Return the handler of a loss that is computed element by element and then reduced, as its argument number ``at`` says.

    What lies behind the length is ``fill`` in the first operand, where not every number may be there.
    """

    def handler(func: Any, *args: Any, **kwargs: Any) -> Any:
        reduction = args[at] if len(args) > at else None
        tensors = [a for a in args if isinstance(a, Tensor)]
        if reduction not in (_NONE, _MEAN, _SUM) or not all(t.dtype.is_floating_point for t in map(buffer_of, tensors)):
            return refuse_call(func, *tensors)
        first = args[0]
        if fill is not None and isinstance(first, Grown):
            first = new_in(filled(first, fill), first.lengths)
        each = elementwise(func, first, *args[1:at], _NONE, *args[at + 1 :], **kwargs)
        with current().functions:
            return each if reduction == _NONE else each.mean() if reduction == _MEAN else each.sum()

    return handler


def _classes(func: Any, x: Tensor, target: Tensor, weight: Any = None, reduction: Any = _MEAN, *args: Any, **kwargs: Any) -> Any:
    """Losses by classes: what lies behind the length is of the class that counts for nothing."""
    ignored = args[0] if args else -100
    of_class = rank_of(x) > 1
    if isinstance(weight, Grown) or is_symbolic(ignored) or dtype_of(target).is_floating_point or rank_of(target) != rank_of(x) - of_class:
        return refuse_call(func, x, target, weight)
    if not of_class or (isinstance(x, Grown) and 1 in x.lengths):
        return refuse_call(func, x, target)
    rows, classes, lengths = buffer_of(x), buffer_of(target), {}
    for d in sorted({d - (d > 1) for d in dims_of([x])} | set(dims_of([target]))):
        within = d + (d > 0)  # classes are the second dimension of the input
        length = equalized_buffers([x, target], [within, d], RuntimeError if d else ValueError)[1]
        rows, classes = fitted(rows, within, bounds_of(length)[1]), fitted(classes, d, bounds_of(length)[1])
        if isinstance(length, Length):
            rows, classes, lengths[d] = masked(rows, within, length, 0), masked(classes, d, length, ignored), length
    made = func(rows, classes, weight, reduction, *args, **kwargs)
    return new_in(made, lengths) if reduction == _NONE else made


# -- statistics -----------------------------------------------------------------------------------------------------------
def _cov(t: Tensor, *, correction: int = 1) -> Tensor:
    rows = t.reshape(1, -1) if t.dim() < 2 else t
    count = torch.scalar_tensor(rows.size(1), dtype=rows.dtype)
    apart = rows - (rows.sum(1) / count).unsqueeze(1)
    return (torch.matmul(apart, apart.t()) / (count - correction).clamp(min=0)).squeeze()


def _corrcoef(t: Tensor) -> Tensor:
    found = _cov(t)
    if not found.dim():
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation[:, None] / deviation[None, :]).clip(-1, 1)


# -- integrals ------------------------------------------------------------------------------------------------------------
def _pairs(t: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return all elements but the last, and all but the first."""
    before = (slice(None),) * (dim % t.dim())
    first, second = (*before, slice(None, -1)), (*before, slice(1, None))
    return t[first], t[second]


def _steps(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return how far apart the places are, in a shape that broadcasts with pairs of elements."""
    if x.dim() != 1:
        return x.diff(dim=dim)
    made = x.diff()
    for _ in range(y.dim() - 1 - dim % y.dim()):
        made = made.unsqueeze(-1)
    return made


def _trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    if x is not None:
        left, right = _pairs(y, dim)
        return ((left + right) * _steps(y, x, dim)).sum(dim) / 2
    size = y.size(dim)
    at = torch.arange(size)
    for _ in range(y.dim() - 1 - dim % y.dim()):
        at = at.unsqueeze(-1)
    ends = y.masked_fill(at != 0, 0).sum(dim) + y.masked_fill(at != size - 1, 0).sum(dim)
    return (y.sum(dim) - ends * 0.5) * dx


def _cumulative_trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    left, right = _pairs(y, dim)
    if x is not None:
        return ((left + right) * _steps(y, x, dim)).cumsum(dim) / 2
    return (left + right).cumsum(dim) * (dx / 2)


def _of_floats(function: Callable[..., Any]) -> Handler:
    """Return the handler of a function that is composed of others, for real numbers."""

    def handler(func: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if any(dtype_of(t) not in (torch.float32, torch.float64) for t in tensors):
            return refuse_call(func, *tensors)
        with current().functions:
            return function(*args, **kwargs)

    first = inspect.Parameter("func", inspect.Parameter.POSITIONAL_ONLY)
    handler.__signature__ = inspect.Signature([first, *inspect.signature(function).parameters.values()])  # type: ignore[attr-defined]
    return handler


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(named("mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss", torch._C._nn), _loss(2)),
    torch._C._nn.binary_cross_entropy: _loss(3, 0.5),  # type: ignore[attr-defined]
    torch.binary_cross_entropy_with_logits: _loss(4),
    torch.kl_div: _loss(2),
    torch.poisson_nll_loss: _loss(5),
    **dict.fromkeys(named("cross_entropy_loss nll_loss_nd", torch._C._nn), _classes),
    **dict.fromkeys(named("cov", torch, torch.Tensor), _of_floats(_cov)),
    **dict.fromkeys(named("corrcoef", torch, torch.Tensor), _of_floats(_corrcoef)),
    **dict.fromkeys(named("trapezoid trapz", torch), _of_floats(_trapezoid)),
    **dict.fromkeys(named("cumulative_trapezoid", torch), _of_floats(_cumulative_trapezoid)),
}
