# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that work element by element: arithmetic, comparisons, activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.onnx.node import CONVERTERS, Node, op

Tensor = torch.Tensor


def _unary(**functions: Callable[[Tensor], Any]) -> None:
    for name, fn in functions.items():
        CONVERTERS[name] = lambda node, x, fn=fn: fn(x)


_unary(
    Abs=torch.abs, Acos=torch.acos, Acosh=torch.acosh, Asin=torch.asin, Asinh=torch.asinh, Atan=torch.atan, Atanh=torch.atanh,
    Ceil=torch.ceil, Cos=torch.cos, Cosh=torch.cosh, Erf=torch.erf, Exp=torch.exp, Floor=torch.floor, IsNaN=torch.isnan,
    Identity=lambda x: (x,),
    Log=torch.log, Neg=torch.neg, Not=torch.logical_not, Reciprocal=torch.reciprocal, Relu=torch.relu, Round=torch.round,
    Sigmoid=torch.sigmoid, Sign=torch.sign, Sin=torch.sin, Sinh=torch.sinh, Softsign=F.softsign, Sqrt=torch.sqrt, Tan=torch.tan,
    Tanh=torch.tanh, BitwiseNot=torch.bitwise_not, Mish=F.mish, HardSwish=lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
)  # fmt: skip


def _binary(**functions: Callable[[Tensor, Tensor], Tensor]) -> None:
    for name, fn in functions.items():
        CONVERTERS[name] = lambda node, a, b, fn=fn: fn(*aligned(node, a, b))


_binary(
    Add=torch.add, Sub=torch.sub, Mul=torch.mul, And=torch.logical_and, Or=torch.logical_or, Xor=torch.logical_xor, Equal=torch.eq,
    Greater=torch.gt, Less=torch.lt, GreaterOrEqual=torch.ge, LessOrEqual=torch.le, BitwiseAnd=torch.bitwise_and,
    BitwiseOr=torch.bitwise_or, BitwiseXor=torch.bitwise_xor,
)  # fmt: skip


def aligned(node: Node, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Bring operands to each other: operator sets before 7 broadcast from an axis on."""
    if node.opset < 7 and node.attr("broadcast") and node.attr("axis") is not None:
        b = b.reshape(tuple(b.shape) + (1,) * (a.dim() - node.attr("axis") - b.dim()))
    return a, b


@op("Div")
def _div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    a, b = aligned(node, a, b)
    return torch.div(a, b) if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc")


@op("Mod")
def _mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if node.attr("fmod", 0) else torch.remainder(a, b)


@op("Pow")
def _pow(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == b.dtype:
        return torch.pow(a, b)
    if a.dtype.is_floating_point:
        return torch.pow(a, b.to(a.dtype))
    return torch.pow(a.to(torch.float64), b.to(torch.float64)).to(a.dtype)


@op("BitShift")
def _shift(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_left_shift(a, b) if node.attr("direction") == "LEFT" else torch.bitwise_right_shift(a, b)


def _variadic(**functions: Callable[[Tensor, Tensor], Tensor]) -> None:
    for name, fn in functions.items():
        CONVERTERS[name] = lambda node, *xs, fn=fn: functools.reduce(fn, xs) if len(xs) > 1 else (xs[0],)


_variadic(Sum=torch.add, Max=torch.maximum, Min=torch.minimum)


@op("Mean")
def _mean(node: Node, *xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs) / len(xs)


@op("Where")
def _where(node: Node, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(cond, a, b)


@op("Clip")
def _clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    if node.opset < 11:
        lowest, highest = node.attr("min"), node.attr("max")
        return torch.clamp(x, lowest, highest) if (lowest, highest) != (None, None) else (x,)
    if low is not None:
        x = torch.maximum(x, low)
    return torch.minimum(x, high) if high is not None else (x,)


@op("IsInf")
def _isinf(node: Node, x: Tensor) -> Tensor:
    up, down = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    if up and down:
        return torch.isinf(x)
    if not up and not down:
        return torch.zeros_like(x, dtype=torch.bool)
    return x == (math.inf if up else -math.inf)


@op("Celu")
def _celu(node: Node, x: Tensor) -> Tensor:
    alpha = node.attr("alpha", 1.0)
    return torch.clamp_min(x, 0) + torch.clamp_max(alpha * (torch.exp(x / alpha) - 1), 0)


@op("Elu")
def _elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.attr("alpha", 1.0))


@op("Selu")
def _selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = node.attr("alpha", 1.6732632423543772), node.attr("gamma", 1.0507009873554805)
    return torch.where(x > 0, gamma * x, gamma * alpha * (torch.exp(x) - 1))


@op("LeakyRelu")
def _leaky(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.attr("alpha", 0.01))


@op("ThresholdedRelu")
def _thresholded(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > node.attr("alpha", 1.0), x, torch.zeros((), dtype=x.dtype))


@op("PRelu")
def _prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, slope * x, x)


@op("HardSigmoid")
def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(node.attr("alpha", 0.2) * x + node.attr("beta", 0.5), 0, 1)


@op("Softplus")
def _softplus(node: Node, x: Tensor) -> Tensor:
    return torch.clamp_min(x, 0) + torch.log1p(torch.exp(-torch.abs(x)))


@op("Shrink")
def _shrink(node: Node, x: Tensor) -> Tensor:
    bias, edge = node.attr("bias", 0.0), node.attr("lambd", 0.5)
    outer = torch.where(x > edge, x - bias, torch.zeros((), dtype=x.dtype)).to(x.dtype)
    return torch.where(x < -edge, x + bias, outer).to(x.dtype)


@op("Gelu")
def _gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node.attr("approximate", "none"))


@op("Swish")
def _swish(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.attr("alpha", 1.0) * x)


@op("Dropout")
def _dropout(node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    trains = training is not None and bool(node.static(training, "whether it trains").item())
    rate = 0.5 if ratio is None else float(node.static(ratio, "its ratio").item()) if trains else 0.0
    if trains and rate > 0:
        node.fail("in training mode it gives another result at every call", "export the model for inference")
    return (x, torch.ones(tuple(x.shape), dtype=torch.bool if node.opset >= 10 else x.dtype))[: max(node.outputs, 1)]
