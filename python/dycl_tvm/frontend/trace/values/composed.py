# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of ATen that are recorded as several others. ``dispatch`` records one of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.layouts import meta_of
from dycl_tvm.frontend.trace.values.tensors import as_constant, fresh_like, read, write

aten = torch.ops.aten
Dispatch = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def batch_norm_in_training(
    dispatch: Dispatch, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: float
) -> tuple[Any, Any, Any]:
    """Normalise by the batch, and update the running statistics, which ATen's operator changes although its schema does not say so.

    As there, halves are computed in float32 and rounded once.
    """
    dtype, kept_as = x.dtype, running_mean.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x, weight, bias = (t if t is None else cast(dispatch, t, torch.float32) for t in (x, weight, bias))
    sizes, dims = [1, -1] + [1] * (x.dim() - 2), [d for d in range(x.dim()) if d != 1]
    count = x.numel() // x.shape[1]
    mean = dispatch(aten.mean.dim, (x, dims), {})
    centred = dispatch(aten.sub.Tensor, (x, dispatch(aten.view.default, (mean, sizes), {})), {})
    var = dispatch(aten.mean.dim, (dispatch(aten.mul.Tensor, (centred, centred), {}), dims), {})
    scale = dispatch(aten.rsqrt.default, (dispatch(aten.add.Tensor, (var, eps), {}),), {})
    y = dispatch(aten.mul.Tensor, (centred, dispatch(aten.view.default, (scale, sizes), {})), {})
    for factors, op in ((weight, aten.mul.Tensor), (bias, aten.add.Tensor)):
        if factors is not None:
            y = dispatch(op, (y, dispatch(aten.view.default, (factors, sizes), {})), {})
    unbiased = dispatch(aten.mul.Tensor, (var, count / (count - 1) if count > 1 else math.nan), {})
    for running, seen in ((running_mean, mean), (running_var, unbiased)):
        kept = dispatch(aten.mul.Tensor, (cast(dispatch, running, seen.dtype), 1 - momentum), {})
        new = dispatch(aten.add.Tensor, (kept, dispatch(aten.mul.Tensor, (seen, momentum), {})), {})
        write(running, read(cast(dispatch, new, running.dtype)))
    return cast(dispatch, y, dtype), cast(dispatch, mean, kept_as), cast(dispatch, scale, kept_as)


def is_grouped(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> bool:
    """Whether the rows of ``a`` are in groups, each with a matrix of its own, as experts have."""
    return a.dim() == 2 and b.dim() == 3 and offs is not None and bias is None and out_dtype in (None, a.dtype)


def grouped_mm(dispatch: Dispatch, a: Any, b: Any, offs: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply groups of rows by a matrix each: group k ends at row ``offs[k]``.

    Every row is multiplied by every matrix, and the one is taken in whose group it is: which that is, is known only at run time.
    """
    with plainly():  # eager checks alignments and types, and says how the result lies in memory
        like = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).zero_() for t in (a, b, offs)]
        try:
            made = aten._grouped_mm.default(*like, None, out_dtype)
        except (RuntimeError, ValueError, IndexError) as error:
            raise of_program(error) from None
    rows = dispatch(aten.arange.default, (a.shape[0],), {"dtype": offs.dtype})
    result = dispatch(aten.full.default, (list(made.shape), 0), {"dtype": made.dtype})
    for k in range(b.shape[0]):
        product = dispatch(aten.mm.default, (a, dispatch(aten.select.int, (b, 0, k), {})), {})
        inside = dispatch(aten.lt.Tensor, (rows, dispatch(aten.select.int, (offs, 0, k), {})), {})
        if k:
            begun = dispatch(aten.ge.Tensor, (rows, dispatch(aten.select.int, (offs, 0, k - 1), {})), {})
            inside = dispatch(aten.bitwise_and.Tensor, (inside, begun), {})
        result = dispatch(aten.where.self, (dispatch(aten.unsqueeze.default, (inside, 1), {}), product, result), {})
    return fresh_like(meta_of(tuple(made.shape), tuple(made.stride()), made.dtype), read(result))


def is_counted(x: Any, bins: int = 100, low: float = 0, high: float = 0) -> bool:
    """Whether a histogram has bins and a range, that of the elements if none is given."""
    return low <= high and bins > 0 and x.numel() > 0 and x.dtype in (torch.float32, torch.float64)


def _range_of(dispatch: Dispatch, x: Any) -> tuple[Any, Any]:
    """Return the least and the largest element; one below and one above it where all are the same."""
    low, high = (dispatch(op, (x, [], False), {}) for op in (aten.amin.default, aten.amax.default))
    same = dispatch(aten.eq.Tensor, (low, high), {})
    apart = ((low, dispatch(aten.sub.Tensor, (low, 1), {})), (high, dispatch(aten.add.Tensor, (high, 1), {})))
    low, high = (dispatch(aten.where.self, (same, wider, edge), {}) for edge, wider in apart)
    return low, high


def histc(dispatch: Dispatch, x: Any, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Count elements in bins of equal width, rounding as ATen does on CPU."""
    x = dispatch(aten.view.default, (dispatch(aten.clone.default, (x,), {"memory_format": torch.contiguous_format}), [-1, 1]), {})
    edges: tuple[Any, Any] = (low, high)
    if low == high:
        edges = _range_of(dispatch, x)
        width = dispatch(aten.sub.Tensor, (edges[1], edges[0]), {})
    else:
        width = high - low
    scaled = dispatch(aten.mul.Tensor, (dispatch(aten.sub.Tensor, (x, edges[0]), {}), bins), {})
    place = dispatch(
        aten.clamp.default, (dispatch(aten.floor.default, (dispatch(aten.div.Tensor, (scaled, width), {}),), {}), 0, bins - 1), {}
    )
    ge, le = (aten.ge.Tensor, aten.le.Tensor) if low == high else (aten.ge.Scalar, aten.le.Scalar)
    within = dispatch(aten.bitwise_and.Tensor, (dispatch(ge, (x, edges[0]), {}), dispatch(le, (x, edges[1]), {})), {})
    numbers = dispatch(aten.arange.default, (bins,), {"dtype": x.dtype})
    counted = dispatch(aten.bitwise_and.Tensor, (dispatch(aten.eq.Tensor, (place, numbers), {}), within), {})
    return cast(dispatch, dispatch(aten.sum.dim_IntList, (counted, [0]), {}), x.dtype)


def as_strided_copy(dispatch: Dispatch, x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Copy a view by sizes and strides."""
    view = dispatch(aten.as_strided.default, (x, size, stride, storage_offset), {})
    return dispatch(aten.clone.default, (view,), {"memory_format": torch.contiguous_format})


def as_strided_scatter(dispatch: Dispatch, x: Any, src: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Write to a view, by sizes and strides, of a copy; ``x`` is all of its memory."""
    made = dispatch(aten.clone.default, (x,), {})
    dispatch(aten.copy_.default, (dispatch(aten.as_strided.default, (made, size, stride, storage_offset), {}), src), {})
    return made


def masked_select(dispatch: Dispatch, x: Any, mask: Any) -> Any:
    """Pick the elements that a known mask says: it is as indexing by it."""
    shape = list(torch.broadcast_shapes(x.shape, mask.shape))
    whole, mask = (dispatch(aten.expand.default, (t, shape), {}) for t in (x, mask))
    return dispatch(aten.index.Tensor, (whole, [mask]), {})


#: Operators by which tensors are indexed.
INDEXING = frozenset([aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor])


def without_masks(dispatch: Dispatch, indices: list[Any]) -> list[Any]:
    """Return indices with the positions of masks that are known in the place of these."""
    found: list[Any] = []
    for i in indices:
        known = as_constant(i) if isinstance(i, torch.Tensor) and i.dtype == torch.bool else None
        if known is None:
            found.append(i)
        else:
            positions = dispatch(aten.nonzero.default, (i,), {})
            found += dispatch(aten.unbind.int, (positions, 1), {})
    return found


def cast(dispatch: Dispatch, t: Any, dtype: torch.dtype) -> Any:
    """Return a tensor in another dtype."""
    return t if t.dtype == dtype else dispatch(aten._to_copy.default, (t,), {"dtype": dtype})


#: Those that may be recorded as several others.
COMPOSED = (
    aten.native_batch_norm.default,
    aten._grouped_mm.default,
    aten.histc.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
    aten.masked_select.default,
)


def composition_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the function that records an operator as several others; None if it is recorded as it is."""
    if func is aten.native_batch_norm.default:
        return batch_norm_in_training if args[5] and args[3] is not None else None
    if func is aten._grouped_mm.default:
        return grouped_mm if is_grouped(*args, **kwargs) else None
    if func is aten.histc.default:
        return histc if is_counted(*args, **kwargs) else None
    if func is aten.masked_select.default:
        return masked_select if as_constant(args[1]) is not None else None
    if func is aten.as_strided_copy.default:
        return as_strided_copy
    if func is aten.as_strided_scatter.default:
        x = args[0]
        return as_strided_scatter if x.is_contiguous() and x.storage_offset() == 0 and getattr(x, "base", None) is None else None
    return None
