# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of single elements."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition


@decomposition("fmax.default")
def fmax(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.maximum(a, b)))


@decomposition("_neg_view.default")
def neg_view(x: Tensor) -> Tensor:
    return torch.neg(x)


@decomposition("fmin.default")
def fmin(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, torch.minimum(a, b)))


@decomposition("copysign.Tensor")
def copysign(a: Tensor, b: Tensor) -> Tensor:
    size = a.abs() if a.is_floating_point() else a.to(torch.get_default_dtype() if not b.is_floating_point() else b.dtype).abs()
    return torch.where(torch.signbit(b), -size, size)


@decomposition("copysign.Scalar")
def copysign_scalar(a: Tensor, b: float) -> Tensor:
    size = (a if a.is_floating_point() else a.to(torch.get_default_dtype())).abs()
    return -size if math.copysign(1, b) < 0 else size


@decomposition("angle.default")
def angle(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return torch.where(x < 0, torch.tensor(math.pi, dtype=torch.get_default_dtype()), 0.0)
    return torch.where(torch.isnan(x), x, torch.where(x < 0, torch.tensor(math.pi, dtype=x.dtype), 0.0))


@decomposition("round.decimals")
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    if not x.is_floating_point() or decimals == 0:
        return torch.round(x)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    factor = float(10 ** abs(decimals))
    rounded = torch.round(wide * factor) / factor if decimals > 0 else torch.round(wide / factor) * factor
    return rounded.to(x.dtype)


def _fake_quantized(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    whole = torch.round(wide * (1.0 / scale)) + zero_point
    inside = (whole >= low) & (whole <= high)
    bounded = torch.fmin(torch.fmax(whole, whole.new_tensor(low)), whole.new_tensor(high))  # what is not a number becomes the lowest
    return ((bounded - zero_point) * scale).to(x.dtype), inside


@decomposition("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    numbers = torch.tensor(scale, dtype=torch.float32), torch.tensor(zero_point, dtype=torch.float32)
    return _fake_quantized(x, *numbers, quant_min, quant_max)


@decomposition("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    made, inside = _fake_quantized(x, scale, zero_point, quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return torch.where(enabled, made, x), inside | ~enabled


@decomposition("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    return _fake_quantized(x, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


@decomposition("lcm.default")
def lcm(a: Tensor, b: Tensor) -> Tensor:
    divisor = torch.gcd(a, b)
    one = torch.ones_like(divisor)
    made = torch.div(a, torch.where(divisor == 0, one, divisor), rounding_mode="trunc") * b
    return torch.where(divisor == 0, 0, made.abs())


@decomposition("frexp.Tensor")
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Take the exponent from a logarithm, which is off by one near powers of two, and mend it."""
    wide = x.to(torch.float64)
    plain = wide.isfinite() & (wide != 0)
    size = torch.where(plain, wide.abs(), 1.0)
    exponent = torch.floor(torch.log2(size)) + 1
    half = torch.trunc(exponent * 0.5)
    part = size * torch.exp2(-half) * torch.exp2(half - exponent)  # one factor alone could overflow
    large, small = part >= 1, part < 0.5
    part = torch.where(large, part * 0.5, torch.where(small, part * 2, part))
    exponent = exponent + large.to(torch.float64) - small.to(torch.float64)
    mantissa = torch.where(plain, torch.where(wide < 0, -part, part), wide)
    return mantissa.to(x.dtype), torch.where(plain, exponent, 0.0).to(torch.int32)


@decomposition("xlogy.Scalar_Self")
def xlogy_of_number(a: float, x: Tensor) -> Tensor:
    return torch.xlogy(torch.full((), a), x)


@decomposition("xlogy.Scalar_Other")
def xlogy_with_number(x: Tensor, a: float) -> Tensor:
    return torch.xlogy(x, torch.full((), a))


@decomposition("special_xlog1py.other_scalar")
def xlog1py_with_number(x: Tensor, a: float) -> Tensor:
    return torch.special.xlog1py(x, torch.full((), a))


@decomposition("special_xlog1py.self_scalar")
def xlog1py_of_number(a: float, x: Tensor) -> Tensor:
    return torch.special.xlog1py(torch.full((), a), x)
