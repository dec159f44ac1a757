# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that quantise and dequantise, with tensors whose lengths are known only at run time: PyTorch's, and ours of ONNX models.

Each element follows from the one at its place, and from a scale and a zero point: of all of the tensor, of a slice, or of a row.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.grown_math import Handler, check_not_empty, elementwise, filled, refuse_call
from dycl_tvm.hcfg.quantized import DECOMPOSED, NAMESPACE

_own, _torch = getattr(torch.ops, NAMESPACE), getattr(torch.ops, DECOMPOSED)


def _by_slice(func: Any, t: Grown, scales: torch.Tensor, zeros: torch.Tensor | None, axis: int, *args: Any, **kwargs: Any) -> Any:
    """Quantise or dequantise with a scale for each place along a dimension."""
    if axis % t.dim_() in t.lengths or isinstance(scales, Grown) or isinstance(zeros, Grown):
        return refuse_call(func, t)
    return cut(func(t.padded(), scales, zeros, axis, *args, **kwargs), t.lengths)


def _chosen(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    """Choose scale and zero point of all elements: those of zero, which is always within the range, change nothing."""
    for along in t.lengths:
        check_not_empty(torch.aminmax, t, along=along)
    return func(filled(t, 0), *args, **kwargs)


def _chosen_by_row(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    """Choose a scale and a zero point for each row."""
    if t.dim_() - 1 in t.lengths:
        return refuse_call(func, t)
    return tuple(cut(made, t.lengths) for made in func(t.padded(), *args, **kwargs))


_HANDLERS: list[tuple[Handler, tuple[Any, ...]]] = [
    (elementwise, (_own.quantize, _own.divided, _own.dequantize, _torch.quantize_per_tensor, _torch.dequantize_per_tensor)),
    (elementwise, (_torch.quantize_per_token, _torch.dequantize_per_token, _torch.convert_element_type)),
    (_by_slice, (_torch.quantize_per_channel, _torch.dequantize_per_channel)),
    (_chosen, (_torch.choose_qparams, _torch.choose_qparams_symmetric)),
    (_chosen_by_row, (_torch.choose_qparams_per_token, _torch.choose_qparams_per_token_asymmetric)),
]
HANDLERS: dict[Any, Handler] = {
    func: handler
    for handler, packets in _HANDLERS
    for packet in packets
    for func in (packet, *(getattr(packet, name) for name in packet.overloads()))
} | {torch.fake_quantize_per_tensor_affine: elementwise, torch.fake_quantize_per_channel_affine: _by_slice}
