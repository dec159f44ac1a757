# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``NonMaxSuppression`` of boxes known only at run time: a loop on values, so its text is a part of the model's program."""

from __future__ import annotations

import torch


def non_max_suppression(
    boxes: torch.Tensor, scores: torch.Tensor, most: int, overlap: torch.Tensor, least: torch.Tensor | None, center: bool
) -> torch.Tensor:
    """Return batch, class and box of those that are kept, by falling score.

    A box is kept unless one of a higher score that is kept covers too much of it, in each batch and class by itself.
    """
    if center:
        x, y, w, h = boxes.unbind(2)
        boxes = torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 2)
    order = torch.argsort(scores, dim=2, descending=True, stable=True)
    corners = torch.cat([torch.minimum(boxes[:, :, :2], boxes[:, :, 2:]), torch.maximum(boxes[:, :, :2], boxes[:, :, 2:])], 2)
    y1, x1, y2, x2 = [corners[:, :, k].unsqueeze(1).expand(-1, scores.shape[1], -1).gather(2, order) for k in range(4)]
    areas, count = (y2 - y1) * (x2 - x1), scores.shape[2]
    places = torch.arange(count)
    kept = torch.ones_like(order, dtype=torch.bool) if least is None else scores.gather(2, order) > least.reshape(())
    i = torch.zeros((), dtype=torch.int64)
    while (kept & (places >= i)).any():  # so long as there is a box that may suppress others
        at = i.clamp(0, count - 1).reshape(1)
        height = (torch.minimum(y2, y2.index_select(2, at)) - torch.maximum(y1, y1.index_select(2, at))).clamp(min=0)
        width = (torch.minimum(x2, x2.index_select(2, at)) - torch.maximum(x1, x1.index_select(2, at))).clamp(min=0)
        both = height * width
        total = areas + areas.index_select(2, at) - both
        covered = (total > 0) & (both / total > overlap.reshape(()))
        kept = kept & ~(covered & (places > i) & kept.index_select(2, at))
        i = i + 1
    kept = kept & (kept.to(torch.int64).cumsum(2) <= most)
    batch, kind, place = kept.nonzero().unbind(1)
    return torch.stack([batch, kind, order[batch, kind, place]], 1)
