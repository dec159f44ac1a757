# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that move elements: shapes, joins, slices, padding. Those that ask for a shape give a constant where it is one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.onnx.ops.cast import dtype_of
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.numbers import bounds_of, is_symbolic, select

Tensor = torch.Tensor


@op("Shape")
def _shape(node: Node, x: Tensor) -> Tensor:
    sizes = list(x.shape)
    return torch.tensor(sizes[node.attr("start", 0) : node.attr("end")], dtype=torch.int64)


@op("Size")
def _size(node: Node, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


@op("Constant")
def _constant(node: Node) -> Any:
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        if name in node.attributes:
            value = node.attributes[name]
            if isinstance(value, Tensor):
                return (value,)
            made = torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)
            node.attributes = {"value": made}
            return (made,)
    return node.fail("a constant that is no tensor of numbers", "strings and sparse tensors are not supported")


@op("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Tensor) -> Tensor:
    value = node.attr("value", torch.zeros(1))
    return torch.full(node.ints(shape, "the shape") or [], value.reshape(-1)[0].item(), dtype=value.dtype)


@op("Reshape")
def _reshape(node: Node, x: Tensor, shape: Tensor | None = None) -> Tensor:
    sizes = node.input_or_attr(shape, "shape") or []
    if not node.attr("allowzero", 0):
        sizes = [x.shape[k] if k < x.dim() and s == 0 else s for k, s in enumerate(sizes)]
    return x.reshape(sizes)


@op("Flatten")
def _flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.attr("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze")
def _squeeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Any:
    found = node.input_or_attr(axes, "axes")
    dims = [k for k, s in enumerate(x.shape) if s == 1] if found is None else sorted(a % x.dim() for a in found)
    if any(x.shape[d] != 1 for d in dims):
        node.fail(f"the axes {found} of shape {list(x.shape)} are not all 1")
    return (x.reshape([s for k, s in enumerate(x.shape) if k not in dims]),)


@op("Unsqueeze")
def _unsqueeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    found = node.input_or_attr(axes, "axes") or []
    rank = x.dim() + len(found)
    dims = {a % rank for a in found}
    sizes = iter(x.shape)
    return x.reshape([1 if k in dims else next(sizes) for k in range(rank)])


@op("Transpose")
def _transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(node.attr("perm") or list(range(x.dim()))[::-1])


@op("Concat")
def _concat(node: Node, *xs: Tensor) -> Any:
    axis = node.attr("axis", 1)
    # Pieces without elements add nothing; a run-time path must not carry them.
    full = [x for x in xs if x.shape[axis] != 0] or [xs[0]]
    return torch.cat(full, axis) if len(full) > 1 else (full[0],)


@op("Split")
def _split(node: Node, x: Tensor, split: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = node.attr("axis", 0)
    sizes = node.input_or_attr(split, "split")
    if sizes is None:
        extent, count = x.shape[axis], node.attr("num_outputs", node.outputs)
        step = -(-extent // count)
        sizes = [max(0, min(step, extent - k * step)) for k in range(count)]
    parts, start = [], 0
    for size in sizes:
        parts.append(x.narrow(axis, start, size))
        start += size
    return tuple(parts)


@op("Slice")
def _slice(node: Node, x: Tensor, *given: Tensor | None) -> Any:
    if node.opset < 10:
        starts, ends, axes, steps = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    else:
        starts, ends, axes, steps = [
            node.ints(t, w) for t, w in zip([*given, *[None] * (4 - len(given))], ("the start", "the end", "the axes", "the steps"))
        ]
    assert starts is not None and ends is not None
    axes = axes if axes is not None else list(range(len(starts)))
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts)):
        axis, extent = axis % x.dim(), x.shape[axis]
        if any(type(n) is not int for n in (start, end, extent)):
            x = _slice_at_run_time(node, x, axis, start, end, step)
            continue
        taken = range(extent)[_python_slice(start, end, step, extent)]
        if step > 0:
            if len(taken) != extent:
                x = torch.ops.aten.slice.Tensor(x, axis, taken.start, taken.stop if len(taken) else taken.start, step)
            continue
        # PyTorch has no negative steps: the positive slice of the same elements, reversed.
        if not len(taken):
            x = x.narrow(axis, 0, 0)
        else:
            x = torch.flip(torch.ops.aten.slice.Tensor(x, axis, taken[-1], taken[0] + 1, -step), [axis])
    return (x,)


def _slice_at_run_time(node: Node, x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    """Return a slice one of whose ends, or the size of whose dimension, is a number of the run."""
    if step < 0:
        extent = x.shape[axis]
        if step == -1 and type(start) is type(end) is int and (start == -1 or start >= _NO_END) and end <= -_NO_END:
            return torch.flip(x, [axis])
        first = extremum([_from_front(start, extent), extent - 1], largest=False)
        last = extremum([-1 if type(end) is int and end <= -_NO_END else _from_front(end, extent), -1], largest=True)
        count = extremum([(first - last - step - 1) // -step, 0], largest=True)
        return x.index_select(axis, first + torch.arange(count) * step)
    end = None if type(end) is int and end >= _NO_END else end
    where = (*[slice(None)] * axis, slice(start, end, step))
    found: Tensor = x[where]
    return found


#: Models write numbers of this kind for "to the end".
_NO_END = 2**31 - 1


def _from_front(place: Any, extent: Any) -> Any:
    """Return a place counted from the front: one below zero counts from the end."""
    if is_symbolic(place):
        return select(place < 0, place + extent, place)
    return place + extent if place < 0 else extent if place >= _NO_END else place


def _python_slice(start: int, end: int, step: int, extent: int) -> slice:
    if step > 0:
        return slice(start, end, step)
    # ONNX clamps; Python's -1 would count from the end again.
    start = min(start + extent if start < 0 else start, extent - 1)
    end = end + extent if end < 0 else end
    return slice(start if start >= 0 else -extent - 1, None if end < 0 else end, step)


@op("Expand")
def _expand(node: Node, x: Tensor, shape: Tensor) -> Tensor:
    sizes = node.ints(shape, "the shape") or []
    extents = [*[1] * (len(sizes) - x.dim()), *x.shape]
    sizes = [*[1] * (x.dim() - len(sizes)), *sizes]
    return x.expand([a if type(b) is int and b == 1 else b for a, b in zip(extents, sizes)])


@op("Tile")
def _tile(node: Node, x: Tensor, repeats: Tensor, axis: Tensor | None = None) -> Tensor:
    counts = node.ints(repeats, "the repeats") or []
    return x.repeat(counts)


_PAD = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@op("Pad")
def _pad(node: Node, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None) -> Any:
    sizes = node.attr("pads", node.attr("paddings")) if node.opset < 11 else node.ints(pads, "the padding")
    assert sizes is not None
    dims = node.ints(axes, "the axes") or list(range(x.dim()))
    fill = node.attr("value", 0.0) if node.opset < 11 else 0 if value is None else node.static(value, "the value of the padding").item()
    mode = node.attr("mode", "constant")
    for k, dim in enumerate(dims):
        before, after = sizes[k], sizes[k + len(dims)]
        if before < 0 or after < 0:
            extent = x.shape[dim]
            x = x.narrow(dim, max(-before, 0), extent + min(before, 0) + min(after, 0))
            before, after = max(before, 0), max(after, 0)
        if before or after:
            x = pad_axis(x, dim % x.dim(), before, after, mode, fill)
    return (x,)


def _bounds(n: Any) -> tuple[int, int]:
    found = bounds_of(n)
    if found is None or found[1] >= 2**31:
        raise NotImplementedError("padding by a number that is known only at run time, and that nothing bounds")
    return found


def pad_axis(x: Tensor, dim: int, before: int, after: int, mode: str, fill: Any) -> Tensor:
    """Pad one axis."""
    if mode == "constant" and (is_symbolic(before) or is_symbolic(after)):
        # As much as it can be at most, of which that is taken that is asked for.
        (_, low), (_, high) = (_bounds(n) for n in (before, after))
        return pad_axis(x, dim, low, high, mode, fill).narrow(dim, low - before, before + x.shape[dim] + after)
    if mode == "constant":
        sizes = [0, 0] * (x.dim() - 1 - dim) + [before, after]
        return F.pad(x, sizes, value=bool(fill) if x.dtype == torch.bool else fill)
    extent = x.shape[dim]
    at = torch.arange(-before, extent + after)
    if mode == "edge":
        at = at.clamp(0, extent - 1)
    elif mode == "wrap":
        at = at % extent
    else:
        period = max(2 * (extent - 1), 1)
        at = at % period
        at = torch.where(at >= extent, period - at, at)
    return x.index_select(dim, at)


@op("CenterCropPad")
def _center(node: Node, x: Tensor, shape: Tensor) -> Any:
    sizes = node.ints(shape, "the shape") or []
    for size, dim in zip(sizes, node.attr("axes") or range(x.dim())):
        extent = x.shape[dim]
        if extent > size:
            x = x.narrow(dim, (extent - size) // 2, size)
        elif extent < size:
            before = (size - extent) // 2
            x = pad_axis(x, dim % x.dim(), before, size - extent - before, "constant", 0)
    return (x,)


@op("DepthToSpace")
def _depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.attr("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


@op("SpaceToDepth")
def _space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.attr("blocksize")
    x = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 1, 3, 5, 2, 4) if node.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return x.permute(*order).reshape(n, c * b * b, h // b, w // b)


@op("Range")
def _range(node: Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    low, high, step = (node.static(t, w).item() for t, w in zip((start, limit, delta), ("the start", "the limit", "the step")))
    if not all(type(n) in (int, float) for n in (low, high, step)):
        return torch.arange(low, high, step, dtype=start.dtype)
    count = max(-(-(high - low) // step), 0)
    return (torch.arange(int(count)).to(start.dtype) * step + low).to(start.dtype)


@op("EyeLike")
def _eye(node: Node, x: Tensor) -> Tensor:
    dtype = dtype_of(node, node.attr("dtype")) if node.attr("dtype") else x.dtype
    rows, columns = x.shape[0], x.shape[1]
    return (torch.arange(columns) - torch.arange(rows).reshape(-1, 1) == node.attr("k", 0)).to(dtype)


@op("ReverseSequence")
def _reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    extent = x.shape[time]
    steps = torch.arange(extent)
    ends = lengths.reshape(-1, 1)
    at = torch.where(steps < ends, ends - 1 - steps, steps)  # [batch, time]
    at = at if batch == 0 else at.t()
    at = at.reshape(tuple(at.shape) + (1,) * (x.dim() - 2)).expand(tuple(x.shape))
    return torch.gather(x, time, at)
