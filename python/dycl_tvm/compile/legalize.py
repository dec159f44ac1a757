# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Relax operators whose stock lowering does not have PyTorch's semantics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from dycl_tvm.compile import ordering
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import broadcast_index, broadcast_shape, int64
from dycl_tvm.compile.ops.functions import erf, exp, has_vectors, sigmoid, tanh
from dycl_tvm.compile.ops.norm import normalised


def _unary(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    def legalize(bb: Any, call: Any) -> Any:
        return bb.call_te(lambda t: te.compute(t.shape, lambda *i: fn(t(*i)), name=name), call.args[0], primfunc_name_hint=name)

    return legalize


def _fast(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """Lower an operator by ``fn`` where there are vector functions, by TVM's own lowering elsewhere."""
    stock = tvm.ir.Op.get(f"relax.{name}").get_attr("FLegalize")
    own = _unary(name.removeprefix("nn."), fn)
    return lambda bb, call: (own if has_vectors(str(call.ty.dtype.dtype)) else stock)(bb, call)


def _gelu(x: Any) -> Any:
    dtype = semantics.dtype_of(x)
    return x * tirx.const(0.5, dtype) * (tirx.const(1, dtype) + erf(x * tirx.const(math.sqrt(0.5), dtype)))


def _gelu_tanh(x: Any) -> Any:
    dtype = semantics.dtype_of(x)
    inner = tirx.const(math.sqrt(2 / math.pi), dtype) * (x + tirx.const(0.044715, dtype) * (x * x * x))
    return tirx.const(0.5, dtype) * x * (tirx.const(1, dtype) + tanh(inner))


def _lowered(bb: Any, expr: Any) -> Any:
    """Emit an operator as it is lowered where it stands alone."""
    call = bb.normalize(expr)
    return bb.emit((LEGALIZE.get(call.op.name) or call.op.get_attr("FLegalize"))(bb, call))


def _norm(groups: bool) -> Callable[..., Any]:
    """Layer or group norm of simple operators: TVM's own takes the variance as a difference that cancels."""

    def legalize(bb: Any, call: Any) -> Any:
        x, weight, bias = call.args
        shape = [int(d) for d in x.ty.shape]
        attrs = call.attrs

        def emit(expr: Any) -> Any:
            return _lowered(bb, expr)

        if groups:
            count = int(attrs.num_groups)
            rows = emit(relax.op.reshape(x, (shape[0], count, math.prod(shape[1:]) // count)))
            y = emit(relax.op.reshape(normalised(emit, rows, [2], float(attrs.epsilon))[0], tuple(shape)))
            affine: tuple[int, ...] = (1, shape[1], *([1] * (len(shape) - 2)))
        else:
            y = normalised(emit, x, [int(a) % len(shape) for a in attrs.axes], float(attrs.epsilon))[0]
            affine = tuple(int(d) for d in weight.ty.shape)
        if attrs.scale:
            y = emit(relax.op.multiply(y, _shaped(emit, weight, affine)))
        return emit(relax.op.add(y, _shaped(emit, bias, affine))) if attrs.center else y

    return legalize


def _shaped(emit: Callable[[Any], Any], x: Any, shape: tuple[int, ...]) -> Any:
    return x if tuple(int(d) for d in x.ty.shape) == shape else emit(relax.op.reshape(x, shape))


def _softmax(log: bool) -> Callable[..., Any]:
    """Softmax over any axis; the maximum spreads NaN, and a row of -inf gives NaN, as PyTorch."""
    name = "log_softmax" if log else "softmax"

    def legalize(bb: Any, call: Any) -> Any:
        rank = len(call.args[0].ty.shape)
        axis = int(call.attrs.axis) % rank

        def build(t: Any) -> Any:
            n = t.shape[axis]
            kept = [s for k, s in enumerate(t.shape) if k != axis]
            k0, k1 = te.reduce_axis((int64(0), n), name="k0"), te.reduce_axis((int64(0), n), name="k1")
            dtype = str(t.dtype)

            def drop(i: Any) -> list[Any]:
                return [v for k, v in enumerate(i) if k != axis]

            def put(i: Any, v: Any) -> list[Any]:
                return [*i[:axis], v, *i[axis:]]

            peak = te.compute(kept, lambda *i: semantics.max_reducer(t(*put(i, k0)), axis=[k0]), name=f"{name}_max")
            if log:
                total = te.compute(kept, lambda *i: te.sum(exp(t(*put(i, k1)) - peak(*i)), axis=[k1]), name=f"{name}_sum")
                return te.compute(t.shape, lambda *i: t(*i) - peak(*drop(i)) - tirx.log(total(*drop(i))), name=name)
            power = te.compute(t.shape, lambda *i: exp(t(*i) - peak(*drop(i))), name=f"{name}_exp")
            total = te.compute(kept, lambda *i: te.sum(power(*put(i, k1)), axis=[k1]), name=f"{name}_sum")
            return te.compute(t.shape, lambda *i: power(*i) / total(*drop(i)) + tirx.const(0, dtype), name=name)

        return bb.call_te(build, call.args[0], primfunc_name_hint=name)

    return legalize


def _binary(name: str, fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def legalize(bb: Any, call: Any) -> Any:
        def build(a: Any, b: Any) -> Any:
            left, right = (tuple(int(d) for d in t.shape) for t in (a, b))
            extents = broadcast_shape([left, right])
            return te.compute(
                [int64(s) for s in extents],
                lambda *i: fn(a(*broadcast_index(left, i, extents)), b(*broadcast_index(right, i, extents))),
                name=name,
            )

        return bb.call_te(build, *call.args, primfunc_name_hint=name)

    return legalize


def _arithmetic(name: str) -> Callable[..., Any]:
    """Arithmetic that TVM does not simplify: it takes ``x * 0`` for 0 and ``(x + y) - y`` for x, whatever x is, and integers never wrap."""
    stock = tvm.ir.Op.get(f"relax.{name}").get_attr("FLegalize")
    fn = {"add": semantics.add, "subtract": semantics.subtract, "multiply": semantics.multiply, "divide": semantics.divide}[name]

    def legalize(bb: Any, call: Any) -> Any:
        numbers = [_number(a) for a in call.args]
        dtype = str(call.ty.dtype.dtype)
        # sums of terms cancel wherever a difference is; products only with a zero that is known
        own = (name == "subtract" or 0 in numbers) if "float" in dtype else semantics.is_whole(dtype) and name != "divide"
        if not own:
            return stock(bb, call)
        tensors = [a for a, number in zip(call.args, numbers) if number is None]

        def build(*given: Any) -> Any:
            shapes = [tuple(int(d) for d in t.shape) for t in given]
            extents = broadcast_shape(shapes)

            def element(*i: Any) -> Any:
                loads = iter(t(*broadcast_index(s, i, extents)) for t, s in zip(given, shapes))
                return fn(*(next(loads) if number is None else tirx.const(number, dtype) for number in numbers))

            return te.compute([int64(s) for s in extents], element, name=name)

        return bb.call_te(build, *tensors, primfunc_name_hint=name)

    return legalize


def _of_whole(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """Lower an operator of integers by ``fn``, of others by TVM's own lowering."""
    stock = tvm.ir.Op.get(f"relax.{name}").get_attr("FLegalize")
    own = _unary(name, fn)
    return lambda bb, call: (own if semantics.is_whole(str(call.ty.dtype.dtype)) else stock)(bb, call)


def _astype(bb: Any, call: Any) -> Any:
    """Convert between integers so that TVM does not take it that they fit."""
    given, made = (str(t.dtype.dtype) for t in (call.args[0].ty, call.ty))
    if semantics.is_whole(given) and semantics.is_whole(made) and not np.can_cast(given, made):
        return _unary("astype", lambda x: semantics.narrowed(x, made))(bb, call)
    return _STOCK_ASTYPE(bb, call)


_STOCK_ASTYPE = tvm.ir.Op.get("relax.astype").get_attr("FLegalize")


def _number(expr: Any) -> float | None:
    """Return the value of a constant of rank 0."""
    if isinstance(expr, tvm.ir.GenericConst) and not expr.ty.shape:
        number: float = expr.value.numpy().item()
        return number
    return None


LEGALIZE: dict[str, Callable[..., Any]] = {
    **{f"relax.{name}": _arithmetic(name) for name in ("add", "subtract", "multiply", "divide")},
    "relax.negative": _of_whole("negative", semantics.negative),
    "relax.abs": _of_whole("abs", semantics.absolute),
    "relax.astype": _astype,
    "relax.nn.relu": _unary("relu", semantics.relu),
    "relax.equal": _binary("equal", semantics.equal),
    "relax.not_equal": _binary("not_equal", semantics.not_equal),
    "relax.logical_not": _unary("logical_not", semantics.logical_not),
    "relax.logical_xor": _binary("logical_xor", semantics.logical_xor),
    "relax.tanh": _unary("tanh", tanh),
    "relax.sigmoid": _unary("sigmoid", sigmoid),
    "relax.exp": _fast("exp", exp),
    "relax.erf": _fast("erf", erf),
    "relax.nn.gelu": _fast("nn.gelu", _gelu),
    "relax.nn.gelu_tanh": _fast("nn.gelu_tanh", _gelu_tanh),
    "relax.nn.layer_norm": _norm(False),
    "relax.nn.group_norm": _norm(True),
    "relax.nn.softmax": _softmax(False),
    "relax.nn.log_softmax": _softmax(True),
    **ordering.LEGALIZE,
}
