# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Finds RMS normalisation, x / sqrt(mean(x x) + eps) w over the last axes, and makes one operator of it.

PyTorch decomposes its own ``rms_norm``, and models of the Llama kind write it out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

OPERATOR = "relax.nn.rms_norm"


def join(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with ``nn.rms_norm`` where its functions write it out; what nothing reads any more is left there."""
    joined = {
        gv: _weighted(_plain(fn)) if isinstance(fn, relax.Function) and not (fn.attrs and "Codegen" in fn.attrs) else fn
        for gv, fn in mod.functions_items()
    }
    return tvm.IRModule(joined, attrs=mod.attrs)


def _either(op: str, a: Any, b: Any) -> Any:
    return is_op(op)(a, b) | is_op(op)(b, a)


def _plain(fn: relax.Function) -> relax.Function:
    """Join all but the weight, which becomes ones."""
    x, eps = wildcard(), is_const()
    mean = is_op("relax.mean")(is_op("relax.multiply")(x, x))
    moved = _either("relax.add", mean, eps)
    inverse = is_op("relax.rsqrt")(moved)
    pattern = _either("relax.multiply", x, inverse) | is_op("relax.divide")(x, is_op("relax.sqrt")(moved))

    def replace(expr: Any, found: Any) -> Any:
        source, epsilon, mean_of = found[x], found[eps].value.numpy(), found[mean]
        shape = _shape(source)
        if shape is None or str(source.ty.dtype.dtype) != "float32" or epsilon.size != 1 or _shape(expr) != shape:
            return expr
        axes = sorted(int(a) % len(shape) for a in mean_of.attrs.axis) if mean_of.attrs.axis is not None else list(range(len(shape)))
        if not mean_of.attrs.keepdims or not axes or axes != list(range(len(shape) - len(axes), len(shape))):
            return expr
        ones = relax.const(np.ones(shape[axes[0] :], "float32"))
        return relax.op.nn.rms_norm(source, ones, axes, float(epsilon.item()))

    return rewrite_call(pattern, replace, fn)


def _weighted(fn: relax.Function) -> relax.Function:
    """Join the weight."""
    x, ones, weight = wildcard(), is_const(), wildcard()
    normalised = is_op(OPERATOR)(x, ones)
    pattern = _either("relax.multiply", normalised, weight)

    def replace(expr: Any, found: Any) -> Any:
        norm, table, shape = found[normalised], found[weight], _shape(found[ones])
        own = _shape(table)
        if shape is None or own is None or str(table.ty.dtype.dtype) != "float32" or _shape(expr) != _shape(norm):
            return expr
        if not is_ones(norm.args[1]) or math.prod(own) != math.prod(shape) or own[-len(shape) :] != shape:
            return expr
        table = table if own == shape else relax.op.reshape(table, shape)
        return relax.op.nn.rms_norm(norm.args[0], table, list(norm.attrs.axes), float(norm.attrs.epsilon))

    return rewrite_call(pattern, replace, fn)


def is_ones(weight: Any) -> bool:
    """Whether a weight is a constant that changes nothing."""
    return isinstance(weight, tvm.ir.GenericConst) and bool((weight.value.numpy() == 1).all())


def _shape(expr: Any) -> tuple[int, ...] | None:
    if not isinstance(expr.ty, relax.TensorType) or expr.ty.shape is None:
        return None
    return tuple(int(d) for d in expr.ty.shape)
