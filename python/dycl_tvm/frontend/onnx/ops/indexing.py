# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Gather, scatter, and operators whose shape follows from values (these must be constant)."""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import Node, op

Tensor = torch.Tensor


def _wrapped(indices: Tensor, extent: int) -> Tensor:
    """Return indices counted from 0; ONNX's may count from the end."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + extent, indices)


def _parts(indices: Tensor) -> list[Tensor]:
    """Return the indices of each dimension: PyTorch's count from the end too, and one out of range must not be counted twice."""
    return [indices.select(-1, k).to(torch.int64) for k in range(indices.shape[-1])]


@op("Gather")
def _gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = node.attr("axis", 0) % x.dim()
    found = torch.index_select(x, axis, _wrapped(indices, x.shape[axis]).reshape(-1))
    return found.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@op("GatherElements")
def _gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = node.attr("axis", 0) % x.dim()
    return torch.gather(x, axis, _wrapped(indices, x.shape[axis]))


@op("GatherND")
def _gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    batch = node.attr("batch_dims", 0)
    parts = _parts(indices)
    rank = indices.dim() - 1
    leading = [torch.arange(x.shape[b]).reshape([-1 if k == b else 1 for k in range(rank)]) for b in range(batch)]
    return torch.ops.aten.index.Tensor(x, [*leading, *parts])


@op("ScatterND")
def _scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    parts = _parts(indices)
    reduction = node.attr("reduction", "none")
    if reduction in ("none", "add"):
        return torch.ops.aten.index_put.default(x, parts, updates, reduction == "add")
    # The others by rows of the flattened tensor.
    rows, width = math.prod(x.shape[: len(parts)]), math.prod(x.shape[len(parts) :])
    numbers = torch.arange(rows).reshape(x.shape[: len(parts)])
    at = torch.ops.aten.index.Tensor(numbers, parts).reshape(-1, 1).expand(-1, width)
    mode = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return torch.scatter_reduce(x.reshape(rows, width), 0, at, updates.reshape(-1, width), mode, include_self=True).reshape(tuple(x.shape))


@op("ScatterElements", "Scatter")
def _scatter(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = node.attr("axis", 0) % x.dim()
    at = _wrapped(indices, x.shape[axis])
    reduction = node.attr("reduction", "none")
    if reduction == "none":
        return torch.scatter(x, axis, at, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, at, updates)
    mode = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return torch.scatter_reduce(x, axis, at, updates, mode, include_self=True)


@op("TensorScatter")
def _tensor_scatter(node: Node, past: Tensor, update: Tensor, start: Tensor | None = None) -> Tensor:
    axis = node.attr("axis", -2) % past.dim()
    batch, length, extent = past.shape[0], update.shape[axis], past.shape[axis]
    first = torch.zeros(batch, dtype=torch.int64) if start is None else start
    at = first.reshape(-1, 1) + torch.arange(length)
    if node.attr("mode", "linear") == "circular":
        at = at % extent
    shape = [1] * past.dim()
    shape[0], shape[axis] = batch, length
    return torch.scatter(past, axis, at.reshape(shape).expand(tuple(update.shape)), update)


@op("OneHot")
def _one_hot(node: Node, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    count = node.int(depth, "the depth")
    axis = node.attr("axis", -1) % (indices.dim() + 1)
    wrapped = indices.to(torch.int64)
    wrapped = torch.where(wrapped < 0, wrapped + count, wrapped).unsqueeze(axis)
    shape = [1] * (indices.dim() + 1)
    shape[axis] = count
    return torch.where(torch.arange(count).reshape(shape) == wrapped, values.select(0, 1), values.select(0, 0))


@op("NonZero")
def _nonzero(node: Node, x: Tensor) -> Tensor:
    return torch.nonzero(node.static(x, "its input, from whose values the shape of its result follows,")).t()


@op("Compress")
def _compress(node: Node, x: Tensor, cond: Tensor) -> Tensor:
    axis = node.attr("axis")
    keep = torch.nonzero(node.static(cond, "its condition, from which the shape of its result follows,").reshape(-1)).reshape(-1)
    return x.reshape(-1).index_select(0, keep) if axis is None else x.index_select(axis, keep)


@op("Unique")
def _unique(node: Node, x: Tensor) -> Any:
    x = node.static(x, "its input, from whose values the shape of its result follows,")
    axis = node.attr("axis")
    if node.at_run_time:
        if not node.attr("sorted", 1) or node.wants(1):
            node.fail("in the order of first occurrence, or with the places of these, of values known only at run time")
        x = x.reshape(-1) if axis is None else x
        values, inverse, times = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
        return values, None, inverse.reshape(-1), times
    rows = x.reshape(-1, 1) if axis is None else x.movedim(axis, 0).reshape(x.shape[axis], -1)
    keys = [tuple(row) for row in rows.tolist()]
    first: dict[Any, int] = {}
    counts: dict[Any, int] = {}
    for k, key in enumerate(keys):
        first.setdefault(key, k)
        counts[key] = counts.get(key, 0) + 1
    order = sorted(first) if node.attr("sorted", 1) else list(first)
    at = torch.tensor([first[key] for key in order], dtype=torch.int64)
    number = {key: k for k, key in enumerate(order)}
    values = x.reshape(-1)[at] if axis is None else x.index_select(axis, at)
    return values, at, torch.tensor([number[key] for key in keys]), torch.tensor([counts[key] for key in order])


@op("NonMaxSuppression")
def _nms(
    node: Node, boxes: Tensor, scores: Tensor, most: Tensor | None = None, overlap: Tensor | None = None, least: Tensor | None = None
) -> Tensor:
    what = "its boxes and scores, from which the number of results follows,"
    boxes, scores = node.static(boxes, what), node.static(scores, what)
    limit = 0 if most is None else node.int(most, "the number of boxes")
    threshold = 0.0 if overlap is None else float(node.static(overlap, "the threshold").item())
    floor = None if least is None else float(node.static(least, "the threshold of the scores").item())
    found = []
    for b in range(boxes.shape[0]):
        corners = _corners(boxes[b], node.attr("center_point_box", 0))
        for c in range(scores.shape[1]):
            kept: list[int] = []
            for k in torch.argsort(scores[b, c], descending=True, stable=True).tolist():
                if len(kept) >= limit or (floor is not None and float(scores[b, c, k]) <= floor):
                    break
                if all(_overlap(corners[k], corners[j]) <= threshold for j in kept):
                    kept.append(k)
            found += [[b, c, k] for k in kept]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Tensor, center: int) -> list[list[float]]:
    if center:
        x, y, w, h = boxes.unbind(-1)
        boxes = torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[:, :2], boxes[:, 2:]
    corners: list[list[float]] = torch.cat([torch.minimum(a, b), torch.maximum(a, b)], -1).tolist()
    return corners


def _overlap(a: list[float], b: list[float]) -> float:
    height = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    width = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = height * width
    total = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / total if total > 0 else 0.0


@op("ai.onnx.ml:ArrayFeatureExtractor")
def _features(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).index_select(1, indices.reshape(-1))


@op("ai.onnx.ml:Binarizer")
def _binarizer(node: Node, x: Tensor) -> Tensor:
    return (x > node.attr("threshold", 0.0)).to(x.dtype)
