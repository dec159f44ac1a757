# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Resize and Upsample: each axis by itself, as a weighted sum of its elements at positions that follow from the sizes.

Positions are computed in float64, of sizes that are known now as constants.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.numbers import bounds_of, is_symbolic

Tensor = torch.Tensor


def _scaled(extent: Any, factor: float) -> Any:
    """Return the size that an axis has after it: rounded down, of the exact product."""
    over, under = factor.as_integer_ratio()
    return extent * over // under


@op("Upsample")
def _upsample(node: Node, x: Tensor, scales: Tensor | None = None) -> Tensor:
    factors = node.attr("scales") if scales is None else [float(v) for v in node.static(scales, "the scales").tolist()]
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}[node.attr("mode", "nearest")]
    for axis, factor in enumerate(factors):
        x = _axis(node, x, axis, _scaled(x.shape[axis], factor), factor, None, mode, "asymmetric", "floor")
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
        factors = [1.0 if _same(w, e) else _ratio(w, e) for w, e in zip(wanted, extents)]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            if not all(isinstance(f, float) for f in factors):
                node.fail("with a keep_aspect_ratio_policy, of an image whose sizes are known only at run time")
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            wanted = [math.floor(factor * e + 0.5) for e in extents]
    elif scales is not None and scales.numel():
        factors = [float(v) for v in node.static(scales, "the scales").tolist()]
        wanted = [_scaled(e, f) for e, f in zip(extents, factors)]
    else:
        node.fail("it has neither scales nor sizes")
    bounds = None
    if where == "tf_crop_and_resize" and roi is not None:
        numbers = [float(v) for v in node.static(roi, "the region").tolist()]
        bounds = list(zip(numbers[: len(axes)], numbers[len(axes) :]))
    for k, (axis, size, factor) in enumerate(zip(axes, wanted, factors)):
        x = _axis(node, x, axis, size, factor, bounds[k] if bounds else None, mode, where, rounding)
    return (x,)


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are surely one; nothing is decided that only a call knows."""
    found = a == b
    return isinstance(found, bool) and found


def _float(n: Any) -> Tensor:
    return torch.tensor(n, dtype=torch.int64).to(torch.float64)


def _ratio(size: Any, extent: Any) -> Any:
    """Return by what factor an axis grows: a number, or a tensor where a call decides it."""
    return _float(size) / _float(extent) if is_symbolic(size) or is_symbolic(extent) else size / extent


def _axis(node: Node, x: Tensor, axis: int, size: Any, factor: Any, bounds: Any, mode: str, where: str, rounding: str) -> Tensor:
    extent = x.shape[axis]
    if isinstance(factor, float) and factor == 1.0 and bounds is None and _same(size, extent):
        return x
    with nullcontext() if is_symbolic(size) or is_symbolic(extent) else plainly():
        positions = _positions(torch.arange(size).to(torch.float64), _float(extent), _float(size), factor, where, bounds)
        outside = (positions < 0) | (positions > _float(extent) - 1) if where == "tf_crop_and_resize" else None
        taps: list[tuple[Tensor, Tensor | None]]
        if mode == "nearest":
            taps = [(_within(_ROUND[rounding](positions), extent), None)]
        else:
            least = factor if isinstance(factor, float) else _least(size, extent)
            taps = _taps(node, positions, extent, factor, least, mode)
    shape = [1] * x.dim()
    shape[axis] = size
    total: Tensor | None = None
    dtype = x.dtype if x.dtype.is_floating_point or mode == "nearest" else torch.float32
    for at, weights in taps:
        part = x.index_select(axis, at)
        part = part if weights is None else part.to(dtype) * weights.to(dtype).reshape(shape)
        total = part if total is None else total + part
    assert total is not None
    found = total if total.dtype == x.dtype else torch.round(total).to(x.dtype)
    if outside is None:
        return found
    return torch.where(outside.reshape(shape), torch.full((), node.attr("extrapolation_value", 0.0), dtype=x.dtype), found)


def _within(at: Tensor, extent: Any) -> Tensor:
    return torch.minimum(at.to(torch.int64).clamp(min=0), torch.tensor(extent, dtype=torch.int64) - 1)


_ROUND: dict[str, Any] = {
    "round_prefer_floor": lambda p: torch.ceil(p - 0.5),
    "round_prefer_ceil": lambda p: torch.floor(p + 0.5),
    "floor": torch.floor,
    "ceil": torch.ceil,
}


def _positions(out: Tensor, extent: Tensor, size: Tensor, factor: Any, where: str, bounds: Any) -> Tensor:
    """Return where in the input each output element lies."""
    several = size > 1
    if where == "align_corners":
        # ONNX takes the size before it is rounded down.
        return torch.where(several, out * (extent - 1) / (factor * extent - 1), torch.zeros_like(out))
    if where == "asymmetric":
        return out / factor
    if where == "tf_half_pixel_for_nn":
        return (out + 0.5) / factor
    if where == "pytorch_half_pixel":
        return torch.where(several, (out + 0.5) / factor - 0.5, torch.zeros_like(out))
    if where == "half_pixel_symmetric":
        # The cut-off part of a size that is not whole is taken from both sides.
        adjustment = size / (factor * extent)
        return extent / 2 * (1 - adjustment) + (out + 0.5) / factor - 0.5
    if where == "tf_crop_and_resize" and bounds is not None:
        low, high = bounds
        alone = 0.5 * (low + high) * (extent - 1)
        return torch.where(several, low * (extent - 1) + out * (high - low) * (extent - 1) / (size - 1), alone)
    return (out + 0.5) / factor - 0.5


def _least(size: Any, extent: Any) -> float | None:
    """Return the least factor that there may be between two sizes; None if that is not known."""
    ends = bounds_of(size), bounds_of(extent)
    return None if ends[0] is None or ends[1] is None else ends[0][0] / max(ends[1][1], 1) or None


def _taps(node: Node, positions: Tensor, extent: Any, factor: Any, least: float | None, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return which elements are summed, and with which weights."""
    shrink, smallest = 1.0, 1.0
    if node.attr("antialias", 0):
        if least is None:
            node.fail("with antialias, by a factor that is known only at run time, and that nothing bounds")
        shrink, smallest = min(factor, 1.0) if isinstance(factor, float) else factor.clamp(max=1.0), min(least, 1.0)
    around = 1 if mode == "linear" else 2
    first = torch.floor(positions - around / shrink) + 1
    taps = math.ceil(2 * around / smallest) + (1 if smallest < 1.0 else 0)
    places = [first + k for k in range(taps)]
    weights = [_weight(torch.abs(positions - at) * shrink, mode, node.attr("cubic_coeff_a", -0.75)) for at in places]
    if node.attr("exclude_outside", 0):
        weights = [torch.where((at >= 0) & (at < _float(extent)), w, torch.zeros_like(w)) for at, w in zip(places, weights)]
    whole = weights[0]
    for w in weights[1:]:
        whole = whole + w
    return [(_within(at, extent), w / whole) for at, w in zip(places, weights)]


def _weight(distance: Tensor, mode: str, a: float) -> Tensor:
    if mode == "linear":
        return (1 - distance).clamp(min=0)
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(distance)))
