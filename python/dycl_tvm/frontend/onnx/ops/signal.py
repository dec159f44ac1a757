# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Signal processing: Fourier transforms as products with their matrices (artefacts have no complex tensors)."""

from __future__ import annotations

import math

import torch

from dycl_tvm.frontend.onnx.node import DTYPES, Node, op

Tensor = torch.Tensor


def _matrices(length: int, dtype: torch.dtype, inverse: bool, bins: int) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary part of the matrix [length, bins] of a transform."""
    phase = torch.arange(length).reshape(-1, 1) * torch.arange(bins) % length
    angle = phase.to(torch.float64) * (2 * math.pi / length)
    scale = 1 / length if inverse else 1.0
    sign = 1.0 if inverse else -1.0
    return (torch.cos(angle) * scale).to(dtype), (sign * torch.sin(angle) * scale).to(dtype)


def _transform(x: Tensor, inverse: bool, onesided: bool) -> Tensor:
    """Transform the axis before the last; the last holds the real and imaginary part, or the real part only."""
    length = x.shape[-2]
    if inverse and onesided:
        return x
    bins = length // 2 + 1 if onesided else length
    real, imaginary = _matrices(length, x.dtype, inverse, bins)
    x = x.transpose(-1, -2)
    re = x.select(-2, 0)
    a, b = torch.matmul(re, real), torch.matmul(re, imaginary)
    if x.shape[-2] == 2:
        im = x.select(-2, 1)
        a, b = a - torch.matmul(im, imaginary), b + torch.matmul(im, real)
    return torch.stack([a, b], -1)


@op("DFT")
def _dft(node: Node, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    default = 1 if node.opset < 20 else -2
    dim = node.attr("axis", default) if axis is None else node.int(axis, "its axis")
    dim = dim % x.dim()
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    extent = x.shape[dim]
    size = node.int(length, "its length") if length is not None else 2 * (extent - 1) if inverse and onesided else extent
    if inverse and onesided:
        # The other half are the conjugates.
        body = x.narrow(dim, 1, size - extent)
        mirrored = torch.flip(body, [dim]) * torch.tensor([1.0, -1.0], dtype=x.dtype)
        x = torch.cat([x, mirrored], dim)
    extent = x.shape[dim]
    if size > extent:
        shape = list(x.shape)
        shape[dim] = size - extent
        x = torch.cat([x, torch.zeros(shape, dtype=x.dtype)], dim)
    elif size < extent:
        x = x.narrow(dim, 0, size)
    x = x.movedim(dim, -2)
    found = _transform(x, inverse, onesided and not inverse)
    if inverse and onesided:
        found = found.narrow(-1, 0, 1)
    return found.movedim(-2, dim)


@op("STFT")
def _stft(node: Node, x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None) -> Tensor:
    hop = node.int(step, "its step")
    size = node.int(length, "the length of a frame") if length is not None else window.shape[0] if window is not None else 0
    x = x if x.dim() == 3 else x.unsqueeze(-1)
    frames = (x.shape[1] - size) // hop + 1
    at = torch.arange(frames).reshape(-1, 1) * hop + torch.arange(size)
    parts = x.index_select(1, at.reshape(-1)).reshape(x.shape[0], frames, size, x.shape[2])
    if window is not None:
        parts = parts * window.reshape(-1, 1)
    return _transform(parts, False, bool(node.attr("onesided", 1)))


@op("MelWeightMatrix")
def _mel(node: Node, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor) -> Tensor:
    count, size, hertz = node.int(bins, "the number of bins"), node.int(length, "the length"), node.int(rate, "the rate")
    lowest, highest = (float(node.static(t, "the edges").item()) for t in (low, high))
    spectrum = size // 2 + 1

    def mel(f: float) -> float:
        return 2595 * math.log10(1 + f / 700)

    step = (mel(highest) - mel(lowest)) / (count + 2)
    edges = [700 * (10 ** ((k * step + mel(lowest)) / 2595) - 1) for k in range(count + 2)]
    at = [int((size + 1) * f // hertz) for f in edges]
    found = torch.zeros((spectrum, count), dtype=torch.float64)
    for k in range(count):
        left, middle, right = at[k : k + 3]
        if middle == left:
            found[middle, k] = 1
        for j in range(left, middle + 1):
            if middle > left:
                found[j, k] = (j - left) / (middle - left)
        for j in range(middle, right):
            if right > middle:
                found[j, k] = (right - j) / (right - middle)
    return found.to(DTYPES[node.attr("output_datatype", 1)])
