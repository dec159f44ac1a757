# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of PyTorch's made of others, which know what to do with tensors whose length is known only at run time.

Each is called while the modes are on, so what it calls is looked up like what a program calls; none asks for an element.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extents import least_of
from dycl_tvm.frontend.trace.values.grown import INSTEAD
from dycl_tvm.frontend.trace.values.grown_math import Handler, as_row, flat
from dycl_tvm.frontend.trace.values.grown_rules import body_of, named
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.recorder import item

_T = Tensor


def composed(function: Callable[..., Any]) -> Handler:
    """Return the handler that calls a function with the modes on, as the program would."""

    def handler(func: Any, *args: Any, **kwargs: Any) -> Any:
        with current().functions:
            return function(*args, **kwargs)

    first = inspect.Parameter("func", inspect.Parameter.POSITIONAL_ONLY)
    given = [p.replace(name="x") if p.name == "t" else p for p in inspect.signature(function).parameters.values()]
    handler.__signature__ = inspect.Signature([first, *given])  # type: ignore[attr-defined]
    return handler


def refuse_here(what: str) -> Any:
    raise UnsupportedError(f"{what} is not supported of a tensor whose length is known only at run time", current().origin(), INSTEAD)


# -- shapes ---------------------------------------------------------------------------------------------------------------
def _movedim(t: Tensor, source: Any, destination: Any) -> Tensor:
    pairs = [(d,) if isinstance(d, int) else tuple(d) for d in (source, destination)]
    left, right = [[d % t.dim() for d in dims] for dims in pairs]
    rest = iter([d for d in range(t.dim()) if d not in left])
    return t.permute([left[right.index(d)] if d in right else next(rest) for d in range(t.dim())])


def _ravel(t: Tensor) -> Tensor:
    return t.reshape(-1)


def _like(t: Tensor, other: Tensor) -> Tensor:
    return t.view(other.size())


def _reshape_like(t: Tensor, other: Tensor) -> Tensor:
    return t.reshape(other.size())


def _expand_as(t: Tensor, other: Tensor) -> Tensor:
    return t.expand(other.size())


def _unflatten(t: Tensor, dim: int, sizes: Sequence[Any]) -> Tensor:
    dim, parts = dim % t.dim(), list(sizes)
    others = [n for n in parts if type(n) is not int or n != -1]
    if len(others) == len(parts) - 1 and all(
        type(n) is int and n > 0 for n in others
    ):  # it follows from the dimension, not from all elements
        size, rest = t.size()[dim], math.prod(others)
        if type(size % rest) is not int or size % rest:
            require(size % rest == 0, RuntimeError("unflatten: the sizes don't multiply up to the size of the dimension"))
        parts[parts.index(-1)] = size // rest
    return t.view([*t.size()[:dim], *parts, *t.size()[dim + 1 :]])


def _rank_one(*tensors: Any) -> Any:
    return _each([t[None] if not t.dim() else t for t in flat(tensors)])


def _rank_two(*tensors: Any) -> Any:
    return _each([t.reshape(1, 1) if not t.dim() else t[None] if t.dim() == 1 else t for t in flat(tensors)])


def _rank_three(*tensors: Any) -> Any:
    return _each(
        [
            t.reshape(1, 1, 1) if not t.dim() else t[None, :, None] if t.dim() == 1 else t[..., None] if t.dim() == 2 else t
            for t in flat(tensors)
        ]
    )


def _each(made: list[Tensor]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)


def _hstack(tensors: Sequence[Tensor]) -> Tensor:
    parts = [t[None] if not t.dim() else t for t in tensors]
    return torch.cat(parts, 0 if parts[0].dim() == 1 else 1)


def _vstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([_rank_two(t) for t in tensors], 0)


def _dstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([_rank_three(t) for t in tensors], 2)


def _column_stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1, 1) if t.dim() <= 1 else t for t in tensors], 1)


def _tensor_split(t: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    size, before = t.size(dim), (slice(None),) * (dim % t.dim())
    if isinstance(indices_or_sections, int):
        each, more = size // indices_or_sections, size % indices_or_sections
        ends = [each * k + least_of(more, k) for k in range(1, indices_or_sections)]
    else:
        ends = list(indices_or_sections)
    parts = [(*before, slice(a, b)) for a, b in zip([0, *ends], [*ends, None])]
    return tuple([t[part] for part in parts])


def _take_along_dim(t: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return as_row(t).gather(0, indices.reshape(-1))
    if t.dim() != indices.dim():
        return refuse_here("take_along_dim() of tensors of several ranks")  # type: ignore[no-any-return]
    along = dim % t.dim()  # the other dimensions broadcast
    spread = t.new_zeros([1 if d == along else n for d, n in enumerate(t.shape)], dtype=indices.dtype)
    indices = indices + spread
    shape = [n if d == along else indices.size(d) for d, n in enumerate(t.shape)]
    return t.expand(shape).gather(along, torch.where(indices < 0, indices + t.size(along), indices))


def _fliplr(t: Tensor) -> Tensor:
    return t.flip(1)


def _flipud(t: Tensor) -> Tensor:
    return t.flip(0)


def _rot90(t: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    a, b = dims
    turned = [lambda: t.clone(), lambda: t.flip(b).transpose(a, b), lambda: t.flip(a, b), lambda: t.flip(a).transpose(a, b)]
    return turned[k % 4]()


def _broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    given = flat(tensors)
    whole = sum([torch.zeros_like(t, dtype=torch.bool) for t in given], torch.zeros((), dtype=torch.bool)).size()
    return tuple([t.expand(whole) for t in given])


def _meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    given = [t.reshape(-1) for t in flat(tensors)]
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    sizes = [given[k].size(0) for k in order]
    around = [[None] * order.index(k) + [slice(None)] + [None] * (len(given) - 1 - order.index(k)) for k in range(len(given))]
    return tuple([t[tuple(index)].expand(sizes) for t, index in zip(given, around)])


# -- products -------------------------------------------------------------------------------------------------------------
def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, None] * b


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return a * b if not a.dim() or not b.dim() else torch.matmul(a, b.transpose(-2, -1) if b.dim() > 1 else b)


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _require_elements(t: Tensor, otherwise: str) -> None:
    """End the call where a tensor may be empty, and is: what PyTorch does then is of another shape, or nothing at all."""
    least, _ = scalars.bounds_of(t.numel()) or (1, 1)
    if least < 1:
        limit(scalars.operand_of(t.numel() > 0), otherwise)


def _added(input: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if b.dim() == 1 and (input.dim() == 0 or (type(input.size(0)) is int and (type(a.size(0)), a.size(0)) != (int, input.size(0)))):
        _require_elements(a, "addmv() of an empty matrix leaves the tensor that it adds as small as it is")
    made = (torch.bmm if a.dim() == 3 else torch.matmul)(a, b)
    made = made if type(alpha) is int and alpha == 1 else made * alpha
    return made if type(beta) is not Tensor and beta == 0 else made + (input if type(beta) is int and beta == 1 else input * beta)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _added(input, mat1, mat2, beta=beta, alpha=alpha)


def _addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _added(input, mat, vec, beta=beta, alpha=alpha)


def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _added(input, batch1, batch2, beta=beta, alpha=alpha)


def _heads(query: Tensor, key: Tensor, value: Tensor, *others: Any, need_weights: bool = True, **kwargs: Any) -> Any:
    masked = any(kwargs.get(name) is not None for name in ("key_padding_mask", "attn_mask"))
    if need_weights or masked:  # PyTorch's fast path returns None, its other one raises
        _require_elements(query, "attention of no rows has no weights and takes no mask")
    body: Any = body_of(F.multi_head_attention_forward)
    return body(query, key, value, *others, need_weights=need_weights, **kwargs)


# -- measures -------------------------------------------------------------------------------------------------------------
def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    a, b = [t / torch.linalg.vector_norm(t, 2, dim, True).clamp_min(eps) for t in (x1, x2)]
    return (a * b).sum(dim)


def _pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _dist(a: Tensor, b: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(a - b, p)


def _vector_norm(t: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    typed = {} if dtype is None else {"dtype": dtype}
    if ord is None or type(dim) is int or (dim is None and t.dim() == 1):
        return torch.linalg.vector_norm(t, 2 if ord is None else ord, dim, keepdim, **typed)
    return refuse_here("linalg.norm() of matrices")  # type: ignore[no-any-return]


def _with_mean(spread: Any) -> Callable[..., Any]:
    def function(t: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None) -> Any:
        if type(dim) is bool:
            dim, unbiased = None, dim
        correction = (None if unbiased is None else int(unbiased)) if correction is None else correction
        dims = [dim] if type(dim) is int else [] if dim is None else list(dim)
        if (dim is None and keepdim) or len(dims) > 1:
            return refuse_here("var_mean() of several dimensions")
        found = spread(t, dim, correction=correction, keepdim=keepdim)
        return found, _running_mean(as_row(t), 0, False) if not dims else _running_mean(t, dims[0] % t.dim(), keepdim)

    return function


def _running_mean(t: Tensor, dim: int, keepdim: bool) -> Tensor:
    """Return the mean as PyTorch computes it beside a variance: after an infinity that is not the last element it is NaN."""
    wide, size = t.to(torch.float64), t.size(dim)
    last = torch.arange(size) == size - 1
    for _ in range(t.dim() - 1 - dim):
        last = last.unsqueeze(-1)
    return (wide.mean(dim, keepdim) + wide.masked_fill(last, 0).sum(dim, keepdim) * 0).to(t.dtype)


def _nansum(t: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    there = t.masked_fill(t.isnan(), 0) if t.is_floating_point() else t
    typed = {} if dtype is None else {"dtype": dtype}
    return there.sum(**typed) if dim is None else there.sum(dim, keepdim, **typed)


def _nanmean(t: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    count = (~t.isnan()).sum() if dim is None else (~t.isnan()).sum(dim, keepdim)
    return _nansum(t, dim, keepdim) / count


def _aminmax(t: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    given = () if dim is None else (dim, keepdim)
    return torch.return_types.aminmax((torch.amin(t, *given), torch.amax(t, *given)))  # type: ignore[attr-defined]


def _cross(t: Tensor, other: Tensor, *, dim: int = -1) -> Any:
    if (t.dim(), t.dtype) != (other.dim(), other.dtype) or (t.size(dim), other.size(dim)) != (3, 3):
        return refuse_here("cross() of tensors of several ranks or dtypes, or along another dimension than one of 3,")
    next_, last = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    return t.index_select(dim, next_) * other.index_select(dim, last) - t.index_select(dim, last) * other.index_select(dim, next_)


def _cross_somewhere(t: Tensor, other: Tensor, dim: int | None = None) -> Any:
    if dim is None:  # the first of 3, which one whose size the run tells may be
        return refuse_here("cross() without `dim`")
    return _cross(t, other, dim=dim)


def _tensordot(t: Tensor, other: Tensor, dims: Any = 2, out: Any = None) -> Tensor:
    if out is not None or isinstance(dims, Tensor):
        return refuse_here("tensordot() with such arguments")  # type: ignore[no-any-return]
    given = ([*range(-dims, 0)], [*range(dims)]) if type(dims) is int else dims
    left, right = [[d % x.dim() for d in flat((along,))] for x, along in zip((t, other), given)]
    own, others = [*range(t.dim())], [t.dim() + d for d in range(other.dim())]
    for mine, of_other in zip(left, right):
        others[of_other] = own[mine]
    kept = [d for d in own if d not in left] + [d for d in others if d >= t.dim()]
    return torch.einsum(t, own, other, others, kept)


def _allclose(t: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return item(torch.isclose(t, other, rtol, atol, equal_nan).all())


def _equal(t: Tensor, other: Tensor) -> Any:
    same = t.dim() == other.dim() and all(n == m for n, m in zip(t.size(), other.size()))
    return same and item((t == other).all())


# -- places and kinds -----------------------------------------------------------------------------------------------------
def _take(t: Tensor, index: Tensor) -> Tensor:
    return as_row(t)[index.reshape(-1)].reshape(index.size())


def _index_put(t: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    made = t.clone()
    if not accumulate:
        made[tuple(indices)] = values
        return made
    if len(indices) == 1 and indices[0].dtype == torch.bool:  # each place is there once
        made[indices[0]] += values
        return made
    if any(not isinstance(i, Tensor) or i.dtype == torch.bool for i in indices):
        return refuse_here("index_put() that adds up, with such indices,")  # type: ignore[no-any-return]
    sizes, rest = t.shape[: len(indices)], t.shape[len(indices) :]
    place: Any = 0
    for size, index in zip(sizes, indices):
        if len(indices) > 1:  # one out of range would be a place in another row
            require(item(((index >= -size) & (index < size)).all()), IndexError("index out of range"))
        place = place * size + torch.where(index < 0, index + size, index)
    values = values.expand([*place.shape, *rest]).reshape([-1, *rest])
    return made.reshape([-1, *rest]).index_add(0, place.reshape(-1), values).reshape(t.shape)


def _one_hot(t: Tensor, num_classes: Any = -1) -> Tensor:
    if type(num_classes) is not int or num_classes < 1:
        if type(num_classes) is not int and (scalars.bounds_of(t.numel()) or (1, 1))[0] < 1:  # PyTorch takes no elements of some classes
            return refuse_here("one_hot() of a number of classes known only at run time")  # type: ignore[no-any-return]
        return one_hot_of_classes(t, num_classes)
    require(item((t < num_classes).all()), RuntimeError("Class values must be smaller than num_classes."))
    require(item((t >= 0).all()), RuntimeError("Class values must be non-negative."))
    return (t[..., None] == torch.arange(num_classes)).to(torch.int64)


def one_hot_of_classes(t: Tensor, num_classes: Any = -1) -> Tensor:
    """``one_hot(t)`` of as many classes as a number of the run or the largest element says; it asks for what PyTorch asks for."""
    require(item(t.min()) >= 0, RuntimeError("Class values must be non-negative."))
    classes = item(num_classes) if isinstance(num_classes, Tensor) else num_classes
    if scalars.is_symbolic(classes) and scalars.mixed_of(classes) and scalars._kind(scalars.operand_of(classes)) == "int":
        bounds, classes = scalars.bounds_of(classes), scalars.wrap(scalars.operand_of(classes))  # a tensor or a number is an int here
        classes.node.bounds = bounds
    largest = item(t.max())
    if type(classes) is int and classes == -1:
        classes = largest + 1
    else:
        require(largest < classes, RuntimeError("Class values must be smaller than num_classes."))
    return (t[..., None] == torch.arange(classes)).to(torch.int64)


def _prelu(t: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() != 1 and (t.dim() < 2 or type(t.size(1)) is not int):
        return refuse_here("prelu() with a weight for each channel")  # type: ignore[no-any-return]
    return torch.where(t > 0, t, t * weight.reshape([-1] + [1] * (t.dim() - 2) if weight.numel() != 1 else ()))


_BOTH = (torch, _T, torch._C._VariableFunctions)
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(named("movedim moveaxis", *_BOTH), _movedim),
    **dict.fromkeys(named("ravel", *_BOTH), _ravel),
    _T.view_as: _like,
    _T.reshape_as: _reshape_like,
    _T.expand_as: _expand_as,
    **dict.fromkeys(named("unflatten", *_BOTH), _unflatten),
    **dict.fromkeys(named("atleast_1d", *_BOTH), _rank_one),
    **dict.fromkeys(named("atleast_2d", *_BOTH), _rank_two),
    **dict.fromkeys(named("atleast_3d", *_BOTH), _rank_three),
    torch.hstack: _hstack,
    **dict.fromkeys(named("vstack row_stack", torch), _vstack),
    torch.dstack: _dstack,
    torch.column_stack: _column_stack,
    **dict.fromkeys(named("fliplr", *_BOTH), _fliplr),
    **dict.fromkeys(named("flipud", *_BOTH), _flipud),
    **dict.fromkeys(named("rot90", *_BOTH), _rot90),
    **dict.fromkeys(named("broadcast_tensors", *_BOTH), _broadcast_tensors),
    **dict.fromkeys(named("meshgrid", *_BOTH), _meshgrid),
    **dict.fromkeys(named("outer ger", *_BOTH), _outer),
    **dict.fromkeys(named("dot vdot", *_BOTH), _dot),
    **dict.fromkeys(named("inner", *_BOTH), _inner),
    **dict.fromkeys(named("mm mv", *_BOTH), _multiplied),
    **dict.fromkeys(named("addmm", *_BOTH), _addmm),
    **dict.fromkeys(named("addmv", *_BOTH), _addmv),
    **dict.fromkeys(named("baddbmm", *_BOTH), _baddbmm),
    **dict.fromkeys(named("tensor_split", *_BOTH), _tensor_split),
    **dict.fromkeys(named("take_along_dim", *_BOTH), _take_along_dim),
    torch.linalg.cross: _cross,
    **dict.fromkeys(named("cross", *_BOTH), _cross_somewhere),
    torch.tensordot: _tensordot,
    **dict.fromkeys(named("msort", *_BOTH), lambda t: t.sort(0).values),
    **dict.fromkeys(named("allclose", *_BOTH), _allclose),
    **dict.fromkeys(named("equal", *_BOTH), _equal),
    _T.cpu: lambda t: t.to("cpu"),
    torch.cosine_similarity: _cosine_similarity,
    torch.pairwise_distance: _pairwise_distance,
    torch.cdist: _cdist,
    **dict.fromkeys(named("dist", *_BOTH), _dist),
    torch.linalg.norm: _vector_norm,
    torch.var_mean: _with_mean(torch.var),
    torch.std_mean: _with_mean(torch.std),
    **dict.fromkeys(named("nansum", *_BOTH), _nansum),
    **dict.fromkeys(named("nanmean", *_BOTH), _nanmean),
    **dict.fromkeys(named("aminmax", *_BOTH), _aminmax),
    **dict.fromkeys(named("take", *_BOTH), _take),
    **dict.fromkeys(named("index_put", *_BOTH), _index_put),
    torch.prelu: _prelu,
    F.one_hot: _one_hot,
    F.multi_head_attention_forward: _heads,
}
HANDLERS: dict[Any, Handler] = {func: composed(function) for func, function in _FUNCTIONS.items()}
