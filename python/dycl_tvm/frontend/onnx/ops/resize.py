# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Resize and Upsample: each axis by itself, as a weighted sum of its elements at positions known now."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from dycl_tvm.frontend.onnx.node import Node, op

Tensor = torch.Tensor


@op("Upsample")
def _upsample(node: Node, x: Tensor, scales: Tensor | None = None) -> Tensor:
    factors = node.attr("scales") if scales is None else [float(v) for v in node.static(scales, "the scales").tolist()]
    for axis, factor in enumerate(factors):
        size = x.shape[axis] if factor == 1.0 else math.floor(x.shape[axis] * factor)
        x = _axis(
            node,
            x,
            axis,
            size,
            factor,
            None,
            {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}[node.attr("mode", "nearest")],
            "asymmetric",
            "floor",
        )
    return x


@op("Resize")
def _resize(node: Node, x: Tensor, *given: Tensor | None) -> Any:
    roi, scales, sizes = [*([None] if node.opset < 11 else []), *given, None, None, None][:3]
    axes = [a % x.dim() for a in node.attr("axes") or range(x.dim())]
    extents = [x.shape[a] for a in axes]
    mode = node.attr("mode", "nearest")
    where = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    rounding = node.attr("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    wanted = node.ints(sizes, "the sizes") or []
    if wanted:
        factors = [1.0 if w == e else w / e for w, e in zip(wanted, extents)]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            wanted = [math.floor(factor * e + 0.5) for e in extents]
    elif scales is not None and scales.numel():
        factors = [float(v) for v in node.static(scales, "the scales").tolist()]
        wanted = [e if f == 1.0 else math.floor(e * f) for e, f in zip(extents, factors)]
    else:
        node.fail("it has neither scales nor sizes")
    bounds = None
    if where == "tf_crop_and_resize" and roi is not None:
        numbers = [float(v) for v in node.static(roi, "the region").tolist()]
        bounds = list(zip(numbers[: len(axes)], numbers[len(axes) :]))
    for k, (axis, size, factor) in enumerate(zip(axes, wanted, factors)):
        x = _axis(node, x, axis, size, factor, bounds[k] if bounds else None, mode, where, rounding)
    return (x,)


def _axis(node: Node, x: Tensor, axis: int, size: int, factor: float, bounds: Any, mode: str, where: str, rounding: str) -> Tensor:
    extent = x.shape[axis]
    if factor == 1.0 and bounds is None and size == extent:
        return x
    positions = _positions(np.arange(size, dtype=np.float64), extent, size, factor, where, bounds)
    outside = (positions < 0) | (positions > extent - 1) if where == "tf_crop_and_resize" else None
    if mode == "nearest":
        at = np.clip(_ROUND[rounding](positions), 0, extent - 1).astype(np.int64)
        found = x.index_select(axis, torch.from_numpy(at))
    else:
        found = _weighted(node, x, axis, positions, extent, factor, mode)
    if outside is not None and outside.any():
        shape = [1] * x.dim()
        shape[axis] = size
        fill = torch.full((), node.attr("extrapolation_value", 0.0), dtype=x.dtype)
        found = torch.where(torch.from_numpy(outside).reshape(shape), fill, found)
    return found


_ROUND: dict[str, Any] = {
    "round_prefer_floor": lambda p: np.ceil(p - 0.5),
    "round_prefer_ceil": lambda p: np.floor(p + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _positions(out: Any, extent: int, size: int, factor: float, where: str, bounds: Any) -> Any:
    """Return where in the input each output element lies."""
    if where == "align_corners":
        # ONNX takes the size before it is rounded down.
        return out * (extent - 1) / (factor * extent - 1) if size > 1 else np.zeros(size)
    if where == "asymmetric":
        return out / factor
    if where == "tf_half_pixel_for_nn":
        return (out + 0.5) / factor
    if where == "pytorch_half_pixel":
        return (out + 0.5) / factor - 0.5 if size > 1 else np.zeros(size)
    if where == "half_pixel_symmetric":
        # The cut-off part of a size that is not whole is taken from both sides.
        adjustment = size / (factor * extent)
        return extent / 2 * (1 - adjustment) + (out + 0.5) / factor - 0.5
    if where == "tf_crop_and_resize" and bounds is not None:
        low, high = bounds
        if size > 1:
            return low * (extent - 1) + out * (high - low) * (extent - 1) / (size - 1)
        return np.full(size, 0.5 * (low + high) * (extent - 1))
    return (out + 0.5) / factor - 0.5


def _weighted(node: Node, x: Tensor, axis: int, positions: Any, extent: int, factor: float, mode: str) -> Tensor:
    shrink = min(factor, 1.0) if node.attr("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    first = np.floor(positions - reach).astype(np.int64) + 1
    taps = math.ceil(2 * reach)
    taps += 1 if shrink < 1.0 else 0
    at = first[:, None] + np.arange(taps)[None, :]
    distance = np.abs(positions[:, None] - at) * shrink
    if mode == "linear":
        weights = np.clip(1 - distance, 0, None)
    else:
        a = node.attr("cubic_coeff_a", -0.75)
        near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    inside = (at >= 0) & (at < extent)
    if node.attr("exclude_outside", 0):
        weights = np.where(inside, weights, 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    at = np.clip(at, 0, extent - 1)
    shape = [1] * x.dim()
    shape[axis] = len(positions)
    total: Tensor | None = None
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    for k in range(taps):
        if not weights[:, k].any():
            continue
        part = x.index_select(axis, torch.from_numpy(at[:, k].copy())).to(dtype) * torch.from_numpy(weights[:, k].copy()).to(dtype).reshape(
            shape
        )
        total = part if total is None else total + part
    assert total is not None
    return total if x.dtype.is_floating_point else torch.round(total).to(x.dtype)
