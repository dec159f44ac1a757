# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of which elements are chosen by masks and positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition


@decomposition("masked_scatter.default")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    taken = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[taken].reshape(mask.shape), x)


@decomposition("multilabel_margin_loss_forward.default")
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Compare the scores of targets, those before the first -1, with those of the other classes; PyTorch's takes class 0 for the rest."""
    scores, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = scores.shape[1]
    counts = (targets == -1).cumsum(1) == 0
    is_target = ((targets.unsqueeze(2) == torch.arange(classes)) & counts.unsqueeze(2)).any(1)
    margins = (1 - scores.gather(1, targets.clamp(min=0)).unsqueeze(2) + scores.unsqueeze(1)).clamp(min=0)
    losses = torch.where(counts.unsqueeze(2) & ~is_target.unsqueeze(1), margins, 0).sum((1, 2)) / classes
    result = losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses.reshape(x.shape[:-1])
    return result, is_target.to(x.dtype).reshape(target.shape)


@decomposition("put.default")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if not index.numel():
        return x.clone()
    flat = torch.ops.aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


@decomposition("index_reduce.default")
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    if x.dim() == 0:
        return index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self).reshape(())
    lined = [1] * x.dim()
    lined[dim] = index.numel()
    places = index.to(torch.int64).reshape(lined).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


@decomposition("scatter.reduce")
def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return torch.scatter_reduce(x, dim, index, src, _REDUCTIONS[reduce])


@decomposition("scatter.value_reduce")
def scatter_number(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Tensor:
    return torch.scatter_reduce(x, dim, index, torch.full(index.shape, value, dtype=x.dtype), _REDUCTIONS[reduce])


@decomposition("nonzero_static.default")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if not x.dim() or not x.numel() or not size:
        return torch.full((size, x.dim()), fill_value)
    found = x.reshape(-1) != 0
    counted, number = found.to(torch.int64).cumsum(0), torch.arange(size)
    row = torch.where(found, counted - 1, size).clamp(max=size)  # in the last row stands what is not wanted
    flat = torch.zeros(size + 1, dtype=torch.int64).scatter(0, row, torch.arange(x.numel()))[:size]
    places: list[Tensor] = []
    for extent in reversed(x.shape[1:]):
        places.insert(0, flat % extent)
        flat = flat // extent
    places.insert(0, flat)
    return torch.where((number < counted[-1]).unsqueeze(1), torch.stack(places, 1), fill_value)


@decomposition("diagonal_scatter.default")
def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = torch.arange(moved.shape[-2]).unsqueeze(1), torch.arange(moved.shape[-1])
    if not source.shape[-1]:
        return x.clone()
    at = (rows.squeeze(1) - max(-offset, 0)).clamp(0, source.shape[-1] - 1)
    written = torch.where(columns - rows == offset, source[..., at].unsqueeze(-1), moved)
    return written.movedim((-2, -1), (dim1, dim2))


@decomposition("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    weight: Tensor,
    index: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor | None, ...]:
    """Sum (0), average (1) or maximum (2) of the rows of each bag: the others of its results serve training only."""
    if include_last_offset:
        offsets = offsets[:-1]
    count, bags = index.shape[0], offsets.shape[0]
    if not count or not bags:
        return torch.zeros((bags, weight.shape[1]), dtype=weight.dtype), None, None, None
    # as ATen, which takes offsets in any order where it does not refuse them
    begun = torch.zeros(count + 1, dtype=torch.int64).index_add(
        0, offsets.clamp(0, count).to(torch.int64), torch.ones(bags, dtype=torch.int64)
    )
    begun_in = (begun.cumsum(0)[:count] - 1).clamp(min=0)
    kept = index != padding_idx
    rows = weight[index]
    # what is left out goes to a bag of its own
    bag = torch.where(kept, begun_in, bags)
    if mode == 2:
        return _largest_in_bags(rows, bag, bags), None, None, None
    wide = weight.dtype if weight.dtype == torch.float64 else torch.float32
    rows = rows.to(wide)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(wide).unsqueeze(1)
    result = torch.zeros((bags + 1, weight.shape[1]), dtype=wide).index_add(0, bag, rows)[:bags]
    if mode == 1:
        sizes = torch.cat((offsets[1:], offsets.new_full((1,), count))) - offsets
        padded = torch.zeros(bags, dtype=sizes.dtype).index_add(0, begun_in, (~kept).to(sizes.dtype))
        result = result / (sizes - padded).clamp(min=1).unsqueeze(1)
    return result.to(weight.dtype), None, None, None


def _largest_in_bags(rows: Tensor, bag: Tensor, bags: int) -> Tensor:
    """Reduce the rows of each bag as ATen does: what is not a number stays if it is the first of its bag, and else is passed over."""
    count, places = rows.shape[0], bag.unsqueeze(1).expand(rows.shape)
    empty = torch.zeros((bags + 1, rows.shape[1]), dtype=rows.dtype)
    numbers = torch.where(torch.isnan(rows), -math.inf, rows)
    largest = torch.scatter_reduce(empty, 0, places, numbers, "amax", include_self=False)[:bags]
    first = torch.full((bags + 1,), count, dtype=torch.int64).scatter_reduce(0, bag, torch.arange(count), "amin")[:bags]
    begin = rows[first.clamp(max=count - 1)]
    return torch.where(torch.isnan(begin) & (first < count).unsqueeze(1), begin, largest)


@decomposition("embedding_renorm.default")
def embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Shorten the rows that are looked up and too long."""
    used = torch.zeros(weight.shape[0], dtype=torch.int32).index_fill(0, indices.reshape(-1), 1)
    length = torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True)
    return torch.where((used[:, None] != 0) & (length > max_norm), weight * (max_norm / (length + 1e-7)), weight)


#: Reductions of segments: the function, and what it gives of nothing.
_OF_SEGMENTS: dict[str, tuple[Callable[..., Tensor], float]] = {
    "sum": (torch.sum, 0.0),
    "mean": (torch.sum, 0.0),
    "prod": (torch.prod, 1.0),
    "max": (torch.amax, -math.inf),
    "min": (torch.amin, math.inf),
}


@decomposition("segment_reduce.default")
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Reduce stretches of a dimension, of which the lengths or the borders are given: each over a mask of all elements."""
    if indices is not None:
        raise NotImplementedError("segments by indices")
    axis %= data.dim()
    if lengths is not None:
        ends = lengths.cumsum(axis)
        starts = ends - lengths
    elif offsets is not None:
        starts, ends = (offsets.narrow(axis, k, offsets.shape[axis] - 1) for k in (0, 1))
    else:
        raise NotImplementedError("segments without lengths")
    inner = [1] * (data.dim() - axis - 1)
    starts, ends = (t.reshape(*t.shape, 1, *inner) for t in (starts, ends))
    positions = torch.arange(data.shape[axis]).reshape(-1, *inner)
    function, nothing = _OF_SEGMENTS[reduce]
    begin = nothing if initial is None else float(initial)
    masked = torch.where((positions >= starts) & (positions < ends), data.unsqueeze(axis), nothing)
    made = function(masked, axis + 1)
    first = torch.full((), begin, dtype=data.dtype)
    if reduce in ("sum", "mean"):
        made = made + first
    elif reduce == "prod":
        made = made * first
    else:
        made = torch.maximum(made, first) if reduce == "max" else torch.minimum(made, first)
    if reduce == "mean":
        count = (ends - starts).squeeze(axis + 1)
        empty = math.nan if initial is None else begin
        made = torch.where(count == 0, empty, made / count.clamp(min=1))
    return made


@decomposition("_is_all_true.default")
def is_all_true(x: Tensor) -> Tensor:
    return x.all()


@decomposition("_is_any_true.default")
def is_any_true(x: Tensor) -> Tensor:
    return x.any()
