# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Chains of operators that are one primitive of oneDNN: a convolution or product, then bias, residual and activation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

RELU = ("dnnl_eltwise_relu", 0.0, 0.0)
#: Activations by Relax operator: oneDNN's name, alpha, beta.
ELTWISE = {
    "relax.nn.relu": RELU,
    "relax.nn.gelu": ("dnnl_eltwise_gelu_erf", 0.0, 0.0),
    "relax.nn.gelu_tanh": ("dnnl_eltwise_gelu_tanh", 0.0, 0.0),
    "relax.sigmoid": ("dnnl_eltwise_logistic", 0.0, 0.0),
    "relax.tanh": ("dnnl_eltwise_tanh", 0.0, 0.0),
}
#: x * sigmoid(x), which is two operators.
SILU = ("dnnl_eltwise_swish", 1.0, 0.0)


@dataclass
class Step:
    """One primitive. Tensors are Relax expressions.

    Attributes
    ----------
    call : relax.Call
        The convolution or product.
    x, w : relax.Expr
    bias, residual : relax.Expr or None
        The bias has one element for each channel or column, the residual the shape of the output.
    activation : tuple or None
        oneDNN's name, alpha, beta.
    """

    call: Any
    x: Any
    w: Any
    bias: Any = None
    residual: Any = None
    activation: tuple[str, float, float] | None = None
    out_shape: tuple[int, ...] = field(default=())

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution, not a product."""
        return bool(self.call.op.name == "relax.nn.conv2d")


def parse(final: Any, bindings: Mapping[Any, Any]) -> Step | None:
    """Return the step that computes ``final``, or None if the operators are none.

    Parameters
    ----------
    final : relax.Expr
        The last value of the chain.
    bindings : mapping
        The chain's variables to their values; all other variables are its inputs.
    """
    value = _value(final, bindings)
    activation = None
    if _op(value) in ELTWISE:
        activation, value = ELTWISE[_op(value)], _value(value.args[0], bindings)
    elif _op(value) == "relax.multiply":
        gate = _value(value.args[1], bindings)
        if _op(gate) != "relax.sigmoid" or not _same(gate.args[0], value.args[0]):
            return None
        activation, value = SILU, _value(value.args[0], bindings)
    added = []
    while _op(value) == "relax.add":
        left, right = value.args
        inner, other = (left, right) if left in bindings else (right, left)
        if inner not in bindings or other in bindings:  # x + x: the other operand is no input
            return None
        added.append(other)
        value = _value(inner, bindings)
    if _op(value) not in ("relax.nn.conv2d", "relax.matmul"):
        return None
    if any(a in bindings for a in value.args):
        return None
    step = Step(value, value.args[0], value.args[1], activation=activation, out_shape=shape_of(value))
    for operand in reversed(added):  # the bias comes first
        if step.bias is None and step.residual is None and _is_bias(operand, step):
            step.bias = operand
        elif step.residual is None and shape_of(operand) == step.out_shape:
            step.residual = operand
        else:
            return None
    return step if _supported(step) else None


def shape_of(expr: Any) -> tuple[int, ...]:
    """Return the static shape of an expression."""
    return tuple(int(d) for d in expr.ty.shape)


def _value(expr: Any, bindings: Mapping[Any, Any]) -> Any:
    while isinstance(expr, relax.Var) and expr in bindings:
        expr = bindings[expr]
    return expr


def _same(a: Any, b: Any) -> bool:
    return bool(a.same_as(b))


def _op(value: Any) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""


def _is_bias(operand: Any, step: Step) -> bool:
    shape, out = shape_of(operand), step.out_shape
    channel = 1 if step.is_convolution else len(out) - 1
    full = (1,) * (len(out) - len(shape)) + shape
    return all(d == (out[k] if k == channel else 1) for k, d in enumerate(full)) and math.prod(shape) == out[channel]


def _supported(step: Step) -> bool:
    tensors = [t for t in (step.x, step.w, step.bias, step.residual, step.call) if t is not None]
    if any(str(t.ty.dtype.dtype) != "float32" for t in tensors) or any(d == 0 for t in tensors for d in shape_of(t)):
        return False
    x, w, attrs = shape_of(step.x), shape_of(step.w), step.call.attrs
    if not step.is_convolution:
        return len(w) == 2 and 2 <= len(x) <= 5
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout or attrs.data_layout))
    return len(x) == 4 and layouts == ("NCHW", "OIHW", "NCHW")
