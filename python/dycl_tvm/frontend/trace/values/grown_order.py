# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What puts elements in another order, repeats them, or measures them, of tensors whose length is known only at run time.

Along that dimension what lies behind the length is made neutral: it is sorted last, counts nothing, and is no different element.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import equalized, fitted, is_same
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.extents import as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    dtype_of,
    elementwise,
    flat,
    masked,
    new,
    reduction,
    refuse_call,
    valid,
)
from dycl_tvm.frontend.trace.values.grown_shapes import as_known, cat, length_of_size, most_of
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.picked import by_mask
from dycl_tvm.frontend.trace.values.recorder import to_tensor
from dycl_tvm.frontend.trace.values.tensors import read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.types import INT

_T = torch.Tensor


def flip(func: Any, t: Grown, *dims: Any) -> Any:
    """Turn dimensions round: along that of unknown length, the last that there is comes first."""
    turned = [d % t.dim_() for d in flat(dims)]
    whole: torch.Tensor = t.padded()
    others = [d for d in turned if d != t.along]
    whole = whole.flip(others) if others else whole
    if t.along in turned:
        size = int(whole.shape[t.along])
        source = to_tensor(number(t.length), torch.int64) - 1 - torch.arange(size)
        whole = whole.index_select(t.along, source.clamp(0, max(size - 1, 0)))
    return as_known(not others or t.contiguous_, whole.clone() if whole is t else whole, t.along, t.length)


def _last(t: Grown, descending: bool) -> torch.Tensor:
    """Return a buffer in which all that there is not is sorted last: equal elements stay in their order, and NaN is the largest."""
    dtype = dtype_of(t)
    if dtype.is_floating_point:
        fill: Any = -math.inf if descending else math.nan
    elif dtype == torch.bool:
        fill = not descending
    else:
        fill = torch.iinfo(dtype).min if descending else torch.iinfo(dtype).max
    return masked(t.padded(), t.along, t.length, fill)


def sort(func: Any, t: Grown, dim: Any = -1, descending: bool = False, *, stable: Any = False) -> Any:
    """Sort, as PyTorch does on CPUs: equal elements stay in their order, whether that is asked for or not."""
    if type(dim) is not int or (t.is_floating() and dtype_of(t) not in (torch.float32, torch.float64)):
        return refuse_call(func, t)
    whole = _last(t, bool(descending)) if dim % t.dim_() == t.along else t.padded()
    if func in _POSITIONS:
        return new(torch.argsort(whole, dim=dim, descending=bool(descending), stable=True), t.along, t.length)
    made = torch.sort(whole, dim=dim, descending=bool(descending), stable=True)
    return _pair(made, t)


def _pair(made: Any, t: Grown) -> Any:
    return type(made)([new(part, t.along, t.length) for part in made])


def topk(func: Any, t: Grown, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Take the largest along another dimension; along that of unknown length, which of equal ones PyTorch takes follows from the length."""
    if dim % t.dim_() == t.along:
        return refuse_call(func, t)
    return _pair(func(t.padded(), k, dim, largest, sorted), t)


def unique(
    func: Any, x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """Return the different elements in order, where each element went, and how many there are of each."""
    if dim is not None or sorted is not True or (isinstance(x, Grown) and x.dim_() != 1) or dtype_of(x).is_complex:
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    row = _last(x, False) if isinstance(x, Grown) else x.reshape(-1)
    size = int(row.shape[0])
    if not size:
        return NotImplemented
    there = valid(x.length, size, 1, 0) if isinstance(x, Grown) else torch.ones(size, dtype=torch.bool)
    in_order, source = torch.sort(row, stable=True)
    begins = torch.cat([torch.ones(1, dtype=torch.bool), in_order[1:] != in_order[:-1]]) & there
    found = by_mask(func, in_order, 0, begins)
    group = begins.to(torch.int64).cumsum(0) - 1
    results = [found]
    if return_inverse:
        inverse = torch.zeros(size, dtype=torch.int64).scatter(0, source, group)
        results.append(new(inverse, 0, x.length) if isinstance(x, Grown) else inverse.reshape(x.shape))
    if return_counts:
        counts = torch.zeros(size, dtype=torch.int64).scatter_add(0, group.clamp(min=0), there.to(torch.int64))
        results.append(new(counts, 0, found.length) if isinstance(found, Grown) else counts)
    return tuple(results) if len(results) > 1 else found


def repeat(func: Any, t: Grown, *sizes: Any) -> Any:
    """Repeat the whole: along the dimension of unknown length it is joined with itself."""
    wanted = flat(sizes)
    along = t.along + len(wanted) - t.dim_()
    if not all(type(n) is int for n in wanted) or along < t.along or wanted[along] < 1:
        return refuse_call(func, t)
    times, wanted[along] = wanted[along], 1
    made: Any = new(t.padded().repeat(wanted), along, t.length)
    return made if times == 1 else cat(torch.cat, [made] * times, along)


def repeat_interleave(func: Any, x: torch.Tensor, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    """Repeat each element or row: as often as a number says, or each as often as its element of a tensor says."""
    if scalars.is_symbolic(repeats) and not isinstance(x, Grown):
        repeats = to_tensor(repeats, torch.int64).expand(x.numel() if dim is None else x.shape[dim])
    if isinstance(repeats, torch.Tensor):
        return _repeated(func, x, repeats, dim, output_size)
    return _all_repeated(func, x, repeats, dim) if isinstance(x, Grown) else NotImplemented


def _repeated(func: Any, x: torch.Tensor, repeats: torch.Tensor, dim: Any, output_size: Any) -> Any:
    if dim is None:
        x, dim = (x if rank_of(x) == 1 else refuse_call(func, x)) if isinstance(x, Grown) else x.reshape(-1), 0
    dim = dim % rank_of(x)
    if isinstance(x, Grown) and x.along != dim:
        return refuse_call(func, x)
    if output_size is not None or dtype_of(repeats) not in (torch.int64, torch.int32) or rank_of(repeats) != 1:
        return refuse_call(func, x, repeats) if isinstance(x, Grown) or isinstance(repeats, Grown) else NotImplemented
    if not isinstance(x, Grown) and not isinstance(repeats, Grown) and x.shape[dim] != repeats.shape[0]:
        return NotImplemented  # PyTorch says what is wrong, or repeats all rows as often
    (whole, times), length = equalized([x, repeats], [dim, 0])
    if isinstance(length, Length):
        times = masked(times, 0, length, 0)
    room = int(times.shape[0])
    if not room:
        return whole.clone()
    ends, most = times.to(torch.int64).cumsum(0), elements().of(read(times))
    total = scalars.emit("item", read(torch.where((times < 0).any(), -1, ends[-1])), type_=INT, text=OF_SHAPE)
    if most is not None:
        total.node.bounds = (0 if most[0] >= 0 else -1, max(most[1], 0) * room)
    if most is None or most[0] < 0:
        require(total >= 0, RuntimeError("repeats can not be negative"))
    count = length_of_size(total)
    if not isinstance(count, Length):
        return whole.narrow(dim, 0, count)
    source = torch.searchsorted(ends, torch.arange(most_of(count)), right=True)
    return new(whole.index_select(dim, source.clamp(max=room - 1)), dim, count)


def _all_repeated(func: Any, t: Grown, repeats: Any, dim: Any) -> Any:
    if type(repeats) is not int or repeats < 1 or (dim is None and t.dim_() > 1):
        return refuse_call(func, t)
    dim = 0 if dim is None else dim % t.dim_()
    length = combine("mul", t.length, repeats) if dim == t.along else t.length
    return new(t.padded().repeat_interleave(repeats, dim), t.along, length)  # type: ignore[arg-type]  # a product is a length


def gather(func: Any, t: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Take elements along another dimension than that of unknown length, which both have: what is behind the end is no place."""
    if not (isinstance(t, Grown) and isinstance(index, Grown) and t.along == index.along and t.dim_() == index.dim_()):
        return refuse_call(func, t, index)
    if dim % t.dim_() == t.along:
        return refuse_call(func, t, index)
    if not is_same(t.length, index.length):
        require(number(index.length) <= number(t.length), RuntimeError("the index of gather() is longer than what it is taken from"))
    places = masked(index.padded(), index.along, index.length, 0)
    return new(func(fitted(t.padded(), t.along, places.shape[t.along]), dim, places), t.along, index.length)


# -- measures -------------------------------------------------------------------------------------------------------------
def vector_norm(func: Any, x: Grown, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the norm of vectors, of which zeros are no part."""
    if type(ord) not in (int, float) or not ord > 0 or dtype is not None:
        return refuse_call(func, x)
    dims = list(range(x.dim_())) if dim is None else [d % x.dim_() for d in flat((dim,))]
    if x.along not in dims:
        along = x.along if keepdim else x.along - sum(d < x.along for d in dims)
        return new(torch.linalg.vector_norm(x.padded(), ord, dims, keepdim), along, x.length)
    if ord == math.inf and bounds_of(x.length)[0] < 1:  # PyTorch has no largest of no elements
        return refuse_call(func, x)
    return torch.linalg.vector_norm(masked(x.padded(), x.along, x.length, 0), ord, dims, keepdim)


def norm(func: Any, input: Grown, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None) -> Any:
    """``torch.norm``: of all elements, or along dimensions."""
    if out is not None:
        return refuse_call(func, input)
    p = 2 if p is None or p == "fro" else p
    return vector_norm(func, input, p, dim, keepdim, dtype=dtype)


def linalg_norm(func: Any, input: Grown, *order: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """``torch.linalg.norm`` of all elements, or of vectors along a dimension."""
    return norm(func, input, 2, dim, keepdim) if not order and not isinstance(dim, (tuple, list)) else refuse_call(func, input)


def normalize(func: Any, input: Grown, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """Divide by norms."""
    if out is not None or type(dim) is not int:
        return refuse_call(func, input)
    size = vector_norm(func, input, p, dim, True)
    least = elementwise(torch.clamp_min, size, eps) if isinstance(size, Grown) else size.clamp_min(eps)
    return elementwise(torch.div, input, least)


def count_nonzero(func: Any, t: Grown, dim: Any = None) -> Any:
    """Count what is not zero, which PyTorch does without ``keepdim``."""
    return reduction(lambda dtype: 0)(torch.sum, elementwise(torch.ne, t, 0), dim)


def logsumexp(func: Any, t: Grown, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithms of sums of exponentials; what is behind the end has none."""
    return reduction(lambda dtype: -math.inf)(func, t, dim, keepdim) if t.is_floating() else refuse_call(func, t)


def spread(func: Any, t: Grown, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Variance and standard deviation: along the dimension of unknown length, the mean of squares is taken of what there is."""
    if type(dim) is bool or dtype_of(t) not in (torch.float32, torch.float64) or type(correction) not in (type(None), int):
        return refuse_call(func, t)
    less = (1 if unbiased is None or unbiased else 0) if correction is None else correction
    dims = list(range(t.dim_())) if dim is None else [d % t.dim_() for d in flat((dim,))]
    if t.along not in dims:
        along = t.along if keepdim else t.along - sum(d < t.along for d in dims)
        return new(func(t.padded(), dims, correction=less, keepdim=keepdim), along, t.length)
    whole, others = t.padded(), math.prod(t.buffer.shape[d] for d in dims if d != t.along)
    count = to_tensor(as_number(t.length) * others, whole.dtype)
    mean = masked(whole, t.along, t.length, 0).sum(dims, True) / count
    total = masked((whole - mean) ** 2, t.along, t.length, 0).sum(dims, keepdim)
    variance = total / (count - less).clamp(min=0)
    return variance.sqrt() if func in (torch.std, _T.std) else variance


_POSITIONS = (torch.argsort, _T.argsort)
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([torch.flip, _T.flip], flip),
    **dict.fromkeys([torch.sort, _T.sort, *_POSITIONS], sort),
    **dict.fromkeys([torch.topk, _T.topk], topk),
    **dict.fromkeys([torch.unique, _T.unique], unique),
    **dict.fromkeys([_T.repeat, torch.tile, _T.tile], repeat),
    **dict.fromkeys([torch.repeat_interleave, _T.repeat_interleave], repeat_interleave),
    **dict.fromkeys([torch.gather, _T.gather], gather),
    torch.linalg.vector_norm: vector_norm,
    torch.linalg.norm: linalg_norm,
    **dict.fromkeys([torch.norm, _T.norm], norm),
    F.normalize: normalize,
    **dict.fromkeys([torch.logsumexp, _T.logsumexp], logsumexp),
    **dict.fromkeys([torch.prod, _T.prod], reduction(lambda dtype: 1)),
    **dict.fromkeys([torch.count_nonzero, _T.count_nonzero], count_nonzero),
    **dict.fromkeys([torch.std, _T.std, torch.var, _T.var], spread),
}
