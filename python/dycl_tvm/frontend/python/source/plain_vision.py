# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operator of ``torchvision`` that decides one box after the other: like the user's own code, it runs rewritten."""

from __future__ import annotations

import torch

from dycl_tvm.frontend.trace.values.grown_shapes import as_long_as, buffer_and_count


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Stand for ``torchvision.ops.nms``: a box is kept unless one that was kept, of a higher score, covers too much of it."""
    if dets.dim() != 2 or dets.shape[1] != 4:
        raise RuntimeError(f"boxes should be a 2d tensor with 4 elements in dimension 1, got {list(dets.shape)}")
    if scores.dim() != 1 or scores.shape[0] != dets.shape[0]:
        raise RuntimeError(f"scores should be a 1d tensor with {dets.shape[0]} elements, got {list(scores.shape)}")
    order = torch.sort(scores, stable=True, dim=0, descending=True)[1]
    boxes, count = buffer_and_count(dets.index_select(0, order))
    size = boxes.shape[0]
    if not size:
        return order
    x1, y1, x2, y2 = boxes.unbind(1)
    areas, places = (x2 - x1) * (y2 - y1), torch.arange(size)
    kept = places < count
    i = torch.zeros((), dtype=torch.int64)
    while i < count:
        at = i.clamp(0, size - 1)
        if kept[at]:
            width = (torch.minimum(x2, x2[at]) - torch.maximum(x1, x1[at])).clamp(min=0)
            height = (torch.minimum(y2, y2[at]) - torch.maximum(y1, y1[at])).clamp(min=0)
            common = width * height
            covered = common / (areas[at] + areas - common)
            kept = kept & ~((covered.double() > iou_threshold) & (places > i))
        i = i + 1
    return order[as_long_as(order, kept)]
