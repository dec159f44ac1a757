# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Conversions between element types."""

from __future__ import annotations

import onnx
import torch

from dycl_tvm.frontend.onnx.node import DTYPES, Node, op
from dycl_tvm.frontend.onnx.values import is_runtime

_LIMITS = {
    torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.float8_e4m3fnuz: 240.0, torch.float8_e5m2fnuz: 57344.0,
}  # fmt: skip


def dtype_of(node: Node, number: int) -> torch.dtype:
    """Return the element type of that number.

    Raises
    ------
    UnsupportedError
        If tensors cannot have it.
    """
    found = DTYPES.get(number)
    if found is None:
        node.fail(f"the type {onnx.TensorProto.DataType.Name(number).lower()}", "use one of the numeric types of 8 bits or more")
    return found


def convert(node: Node, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert by ONNX's rules."""
    if dtype in _LIMITS:
        if is_runtime(x):
            node.fail(f"the type {dtype} for a tensor known only at run time")
        if node.attr("saturate", 1):
            limit = _LIMITS[dtype]
            wide = x.to(torch.float32)
            x = torch.where(torch.isnan(wide), wide, wide.clamp(-limit, limit))
        return x.to(dtype)
    if x.dtype in _LIMITS:
        return x.to(torch.float32).to(dtype)
    if dtype == torch.bool:
        return x != 0
    return x.to(dtype)


@op("Cast")
def _cast(node: Node, x: torch.Tensor) -> tuple[torch.Tensor]:
    return (convert(node, x, dtype_of(node, node.attr("to"))),)


@op("CastLike")
def _cast_like(node: Node, x: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor]:
    return (convert(node, x, like.dtype),)


@op("BitCast")
def _bit_cast(node: Node, x: torch.Tensor) -> tuple[torch.Tensor]:
    dtype = dtype_of(node, node.attr("to"))
    if is_runtime(x) and dtype != x.dtype:
        node.fail("of a tensor known only at run time", "use Cast, or make the tensor constant")
    return (x.view(dtype),)
