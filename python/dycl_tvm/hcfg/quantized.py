# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products of 8-bit integers, as operators of graphs: exact, in int32.

Importing the file makes them PyTorch operators of the namespace ``dycl_quantized``, and PyTorch's own ``quantized_decomposed`` ones known.
The left side is uint8, the right one int8; zero points and scales are not theirs: see docs/quantization.md. Here the sums are those
of float64, which are exact as far as int32 is, since a product needs 15 bits; this is the reference that compiled kernels equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.ao.quantization.fx._decomposed  # its operators become PyTorch's

#: What begins the names of these operators, and of PyTorch's that quantise and dequantise.
NAMESPACE, DECOMPOSED = "dycl_quantized", "quantized_decomposed"
#: The names of the operators in graphs.
CONV2D, MATMUL, SCALED = f"{NAMESPACE}.conv2d.default", f"{NAMESPACE}.matmul.default", f"{NAMESPACE}.scaled.default"
QUANTIZE, DEQUANTIZE, ADD = f"{NAMESPACE}.quantize.default", f"{NAMESPACE}.dequantize.default", f"{NAMESPACE}.add.default"
DIVIDED, WINDOW_SUMS = f"{NAMESPACE}.divided.default", f"{NAMESPACE}.window_sums.default"
BYTES, SIGNED, SHIFTED = f"{NAMESPACE}.bytes.default", f"{NAMESPACE}.signed.default", f"{NAMESPACE}.shifted.default"
#: Those that quantise: by the inverse of a scale, as PyTorch does, and by the scale, as ONNX does.
QUANTIZES = frozenset((QUANTIZE, DIVIDED))

_library = torch.library.Library(NAMESPACE, "DEF")


def _operator(schema: str) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    def register(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register


def is_dequantize(op: str) -> bool:
    """Whether an operation of a graph makes real numbers of quantised ones, by its name."""
    return op == DEQUANTIZE or op.startswith(f"{DECOMPOSED}.dequantize_per_")


@_operator("conv2d(Tensor x, Tensor w, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor")
def _conv2d(
    x: torch.Tensor, w: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> torch.Tensor:
    """A convolution whose border is filled with zeros."""
    _check(x, w)
    return torch.conv2d(x.double(), w.double(), None, stride, padding, dilation, groups).to(torch.int32)


@_operator("matmul(Tensor x, Tensor w) -> Tensor")
def _matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product (..., k) x (k, n)."""
    _check(x, w)
    return torch.matmul(x.double(), w.double()).to(torch.int32)


@_operator("quantize(Tensor x, Tensor inverse, Tensor zero, int low, int high, ScalarType dtype) -> Tensor")
def _quantize(x: torch.Tensor, inverse: torch.Tensor, zero: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """What PyTorch's ``quantize_per_tensor`` is, with what it computes of the scale in float32, and its zero point as a float32."""
    return torch.clamp(torch.round(x * inverse) + zero, low, high).to(dtype)


@_operator("divided(Tensor x, Tensor scale, Tensor zero, int low, int high, ScalarType dtype) -> Tensor")
def _divided(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """What ONNX's ``QuantizeLinear`` is: it divides, which may give another integer than the product with an inverse."""
    return torch.clamp(torch.round(x / scale) + zero, low, high).to(dtype)


@_operator("bytes(Tensor q) -> Tensor")
def _bytes(q: torch.Tensor) -> torch.Tensor:
    """int8 as uint8: 128 more."""
    return (q.to(torch.int16) + 128).to(torch.uint8)


@_operator("signed(Tensor q) -> Tensor")
def _signed(q: torch.Tensor) -> torch.Tensor:
    """uint8 as int8: 128 less."""
    return (q.to(torch.int16) - 128).to(torch.int8)


@_operator("window_sums(Tensor x, int[] kernel, int[] stride, int[] padding, bool ceil_mode) -> Tensor")
def _window_sums(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool) -> torch.Tensor:
    """The sums of the uint8 of windows, in int32; the border is filled with zeros."""
    if x.dtype != torch.uint8:
        raise TypeError(f"expected uint8, got {x.dtype}")
    how = ([*kernel], [*stride], [*padding], ceil_mode)
    return torch.nn.functional.avg_pool2d(x.double(), *how, divisor_override=1).to(torch.int32)


@_operator("dequantize(Tensor q, Tensor scale, Tensor zero) -> Tensor")
def _dequantize(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """What PyTorch's ``dequantize_per_tensor`` is, with scale and zero point as float32."""
    return (q.to(torch.float32) - zero) * scale


@_operator("add(Tensor x, Tensor q, Tensor scale, Tensor zero) -> Tensor")
def _add(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """A float32 tensor and a dequantised one of its shape: kernels read the integers."""
    return x + (q.to(torch.float32) - zero) * scale


@_operator("shifted(Tensor sums, Tensor a, Tensor b) -> Tensor")
def _shifted(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int32 sums plus a product of int32: of a zero point that is known at run time, or of sums of the other side."""
    return sums + a * b


@_operator("scaled(Tensor sums, Tensor factors) -> Tensor")
def _scaled(sums: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """int32 sums as float32, times factors: two roundings, whatever follows."""
    return sums.to(torch.float32) * factors


def _check(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype != torch.uint8 or w.dtype != torch.int8:
        raise TypeError(f"expected uint8 and int8, got {x.dtype} and {w.dtype}")
