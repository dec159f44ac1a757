# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Relax operators whose stock lowering does not have PyTorch's semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import broadcast_index, broadcast_shape, int64


def _unary(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    def legalize(bb: Any, call: Any) -> Any:
        return bb.call_te(lambda t: te.compute(t.shape, lambda *i: fn(t(*i)), name=name), call.args[0], primfunc_name_hint=name)

    return legalize


def _tanh(x: Any) -> Any:
    # the stock form 1 - exp(-2x) loses all digits near 0, and its rational approximation clips
    dtype = semantics.dtype_of(x)
    magnitude = tirx.Select(x < tirx.const(0, dtype), -x, x)
    square = x * x
    small = x + x * square * (
        tirx.const(-1 / 3, dtype)
        + square * (tirx.const(2 / 15, dtype) + square * (tirx.const(-17 / 315, dtype) + square * tirx.const(62 / 2835, dtype)))
    )
    decay = tirx.exp(tirx.const(-2, dtype) * magnitude)
    large = (tirx.const(1, dtype) - decay) / (tirx.const(1, dtype) + decay)
    signed = tirx.Select(x < tirx.const(0, dtype), -large, large)
    return tirx.Select(magnitude < tirx.const(0.15, dtype), small, signed)


def _sigmoid(x: Any) -> Any:
    one = tirx.const(1, semantics.dtype_of(x))
    return one / (one + tirx.exp(-x))


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
                total = te.compute(kept, lambda *i: te.sum(tirx.exp(t(*put(i, k1)) - peak(*i)), axis=[k1]), name=f"{name}_sum")
                return te.compute(t.shape, lambda *i: t(*i) - peak(*drop(i)) - tirx.log(total(*drop(i))), name=name)
            power = te.compute(t.shape, lambda *i: tirx.exp(t(*i) - peak(*drop(i))), name=f"{name}_exp")
            total = te.compute(kept, lambda *i: te.sum(power(*put(i, k1)), axis=[k1]), name=f"{name}_sum")
            return te.compute(t.shape, lambda *i: power(*i) / total(*drop(i)) + tirx.const(0, dtype), name=name)

        return bb.call_te(build, call.args[0], primfunc_name_hint=name)

    return legalize


def _comparison(name: str, fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def legalize(bb: Any, call: Any) -> Any:
        def build(a: Any, b: Any) -> Any:
            left, right = (tuple(int(d) for d in t.shape) for t in (a, b))
            return te.compute(
                [int64(s) for s in broadcast_shape([left, right])],
                lambda *i: fn(a(*broadcast_index(left, i)), b(*broadcast_index(right, i))),
                name=name,
            )

        return bb.call_te(build, *call.args, primfunc_name_hint=name)

    return legalize


LEGALIZE: dict[str, Callable[..., Any]] = {
    "relax.nn.relu": _unary("relu", semantics.relu),
    "relax.equal": _comparison("equal", semantics.equal),
    "relax.not_equal": _comparison("not_equal", semantics.not_equal),
    "relax.tanh": _unary("tanh", _tanh),
    "relax.sigmoid": _unary("sigmoid", _sigmoid),
    "relax.nn.softmax": _softmax(False),
    "relax.nn.log_softmax": _softmax(True),
}
