# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Quantisation: integers of 8 bits computed in wider types."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import DTYPES, Node, op
from dycl_tvm.frontend.onnx.ops.convolution import convolve
from dycl_tvm.frontend.onnx.values import is_runtime
from dycl_tvm.hcfg.quantized import DECOMPOSED, NAMESPACE

Tensor = torch.Tensor

_torch_ops, _own_ops = getattr(torch.ops, DECOMPOSED), getattr(torch.ops, NAMESPACE)
#: Types that PyTorch's own operators dequantise as ONNX does; int32, of biases, too if there is no zero point.
_INTEGERS = (torch.int8, torch.uint8, torch.int16)


def _spread(node: Node, t: Tensor, x: Tensor, axis: int) -> Tensor:
    """Bring a scale or zero point to the shape of ``x``: one for all, one a slice, or one a block."""
    if t.numel() == 1 and t.dim() <= 1:
        return t.reshape(())
    if t.dim() == 1:
        shape = [1] * x.dim()
        shape[axis] = -1
        return t.reshape(shape)
    block = node.attr("block_size", 0)
    if not block:
        return t
    wide = t.unsqueeze(axis + 1).expand([*t.shape[: axis + 1], block, *t.shape[axis + 1 :]])
    wide = wide.reshape([*t.shape[:axis], t.shape[axis] * block, *t.shape[axis + 1 :]])
    return wide.narrow(axis, 0, x.shape[axis])


def _saturated(node: Node, x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        node.fail(f"the type {dtype} for a tensor known only at run time", "quantise to integers of 8 bits")
    info = torch.iinfo(dtype)
    return torch.clamp(x, info.min, info.max).to(dtype)


@op("QuantizeLinear")
def _quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis = node.attr("axis", 1)
    axis = axis % x.dim() if x.dim() else 0
    number = node.attr("output_dtype", 0)
    if number and number not in DTYPES:
        node.fail("an output type of fewer than 8 bits")
    dtype = zero.dtype if zero is not None else DTYPES[number] if number else torch.uint8
    if dtype in (torch.int8, torch.uint8) and x.dtype == scale.dtype == torch.float32 and scale.numel() == 1 and scale.dim() <= 1:
        point = torch.zeros(()) if zero is None else zero.reshape(()).to(torch.float32)
        info = torch.iinfo(dtype)
        return _own_ops.divided(x, scale.reshape(()), point, info.min, info.max, dtype)
    found = torch.round(x.to(torch.float32) / _spread(node, scale, x, axis).to(torch.float32))
    if zero is not None:
        found = found + _spread(node, zero, x, axis).to(torch.float32)
    return _saturated(node, found, dtype)


@op("DequantizeLinear")
def _dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis = node.attr("axis", 1)
    axis = axis % x.dim() if x.dim() else 0
    if x.dtype == torch.int32 and zero is not None and not is_runtime(zero) and not zero.any():
        zero = None
    known = x.dtype in _INTEGERS or (x.dtype == torch.int32 and zero is None)
    if known and scale.dtype == torch.float32:  # as PyTorch has it, which is what integer kernels are made of
        low, high = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
        if scale.numel() == 1 and scale.dim() <= 1:
            point = torch.zeros((), dtype=torch.int32) if zero is None else zero.reshape(()).to(torch.int32)
            return _torch_ops.dequantize_per_tensor.tensor(x, scale.reshape(()), point, low, high, x.dtype)
        if scale.dim() == 1:
            points = None if zero is None else zero.to(torch.int32)
            return _torch_ops.dequantize_per_channel(x, scale, points, axis, low, high, x.dtype)
    wide = x.to(torch.float32)
    if zero is not None:
        wide = wide - _spread(node, zero, x, axis).to(torch.float32)
    return (wide * _spread(node, scale, x, axis).to(torch.float32)).to(scale.dtype)


@op("DynamicQuantizeLinear")
def _dynamic(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    zero = torch.zeros((), dtype=x.dtype)
    low, high = torch.minimum(torch.amin(x), zero), torch.maximum(torch.amax(x), zero)
    # Where all are zero, ONNX Runtime takes one for the scale.
    scale = torch.where(high == low, torch.ones_like(zero), (high - low) / 255)
    point = torch.clamp(torch.round((0 - low) / scale), 0, 255)
    return torch.clamp(torch.round(x / scale) + point, 0, 255).to(torch.uint8), scale, point.to(torch.uint8)


def _centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Return integers without their zero point; one for each row or column lies on ``axis``."""
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    if zero.numel() > 1 and zero.dim() == 1:
        shape = [1] * x.dim()
        shape[axis] = -1
        zero = zero.reshape(shape)
    elif zero.numel() == 1:
        zero = zero.reshape(())
    return wide - zero


@op("MatMulInteger")
def _matmul_integer(node: Node, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None) -> Tensor:
    return torch.matmul(_centred(a, zero_a, max(a.dim() - 2, 0)), _centred(b, zero_b, b.dim() - 1))


@op("QLinearMatMul")
def _qlinear_matmul(
    node: Node, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    product = torch.matmul(_centred(a, zero_a, max(a.dim() - 2, 0)), _centred(b, zero_b, b.dim() - 1)).to(torch.float32)
    factor = scale_a.to(torch.float32).reshape(()) * scale_b.to(torch.float32).reshape(()) / scale.to(torch.float32).reshape(())
    return _saturated(node, torch.round(product * factor) + zero.to(torch.float32).reshape(()), zero.dtype)


@op("ConvInteger")
def _conv_integer(node: Node, x: Tensor, w: Tensor, zero_x: Tensor | None = None, zero_w: Tensor | None = None) -> Any:
    # In float64 the sums of products of 8-bit integers are exact.
    left, right = _centred(x, zero_x, 1).to(torch.float64), _centred(w, zero_w, 0).to(torch.float64)
    return convolve(node, left, right).to(torch.int32)


@op("QLinearConv")
def _qlinear_conv(
    node: Node, x: Tensor, scale_x: Tensor, zero_x: Tensor, w: Tensor, scale_w: Tensor, zero_w: Tensor, scale: Tensor, zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    left, right = _centred(x, zero_x, 1).to(torch.float64), _centred(w, zero_w, 0).to(torch.float64)
    product = convolve(node, left, right, None if bias is None else bias.to(torch.float64))
    channels = [1, -1] + [1] * (x.dim() - 2)
    each = scale_w.reshape(channels) if scale_w.numel() > 1 else scale_w.reshape(())
    factor = (scale_x.reshape(()) * each / scale.reshape(())).to(torch.float64)
    return _saturated(node, torch.round(product * factor) + zero.to(torch.float64).reshape(()), zero.dtype)
