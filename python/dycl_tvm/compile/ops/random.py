# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Draws of random numbers (:mod:`dycl_tvm.hcfg.draws`): calls of kernels in C++."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from dycl_tvm.compile.draws import symbol_of
from dycl_tvm.compile.ops.context import CONVERTERS, DTYPE_NAMES, NotConvertible, OpContext
from dycl_tvm.hcfg.draws import NAMESPACE, STATE


def _call(ctx: OpContext, symbol: str, operands: list[Any]) -> Any:
    """Call a kernel that gives what is drawn and the next state."""
    target = tvm.target.Target.current()
    if target is not None and str(target.kind) != "llvm":
        raise NotConvertible("random numbers are drawn on CPUs only; pass them in as an input")
    drawn = ctx.type
    state = relax.TensorType(STATE.shape, STATE.dtype)
    made = ctx.emit(relax.call_dps_packed(symbol, relax.Tuple(operands), [relax.TensorType(drawn.shape, drawn.dtype), state]))
    return tuple(ctx.emit(relax.TupleGetItem(made, k)) for k in range(2))


def _simple(function: str, *kinds: type) -> Any:
    """Return the converter of a draw that takes a state, a size, numbers of some kinds and a dtype."""

    def convert(ctx: OpContext, state: Any, _size: Any, *rest: Any) -> Any:
        params = [kind(x) for kind, x in zip(kinds, rest)]
        return _call(ctx, symbol_of(function, [DTYPE_NAMES[rest[len(kinds)]]], params), [state])

    return convert


def _normal(ctx: OpContext, state: Any, _size: Any, mean: float, std: float, dtype: Any, one_by_one: bool) -> Any:
    function = "NormalOneByOne" if one_by_one else "Normal"
    return _call(ctx, symbol_of(function, [DTYPE_NAMES[dtype]], [float(mean), float(std)]), [state])


def _integers(ctx: OpContext, state: Any, _size: Any, low: int, high: int, dtype: Any) -> Any:
    return _call(ctx, symbol_of("Integers", [DTYPE_NAMES[dtype]], [int(low), int(high) - int(low)]), [state])


def _permutation(ctx: OpContext, state: Any, n: int, dtype: Any) -> Any:
    if n >= (1 << 32) // 20:
        raise NotConvertible("a permutation of more than 2**32 / 20 numbers")
    return _call(ctx, symbol_of("Permutation", [DTYPE_NAMES[dtype]]), [state])


def _bernoulli_each(ctx: OpContext, state: Any, p: Any, dtype: Any) -> Any:
    return _call(ctx, symbol_of("BernoulliEach", [DTYPE_NAMES[dtype], ctx.dtype(p)]), [state, p])


def _multinomial(ctx: OpContext, state: Any, weights: Any, count: int, replacement: bool, by_columns: bool) -> Any:
    dtype = ctx.dtype(weights)
    if dtype not in ("float32", "float64"):
        raise NotConvertible(f"multinomial() of {dtype}; cast the probabilities to float32")
    if replacement and count > 1:
        return _call(ctx, symbol_of("WithReplacement", [dtype]), [state, weights])
    return _call(ctx, symbol_of("WithoutReplacement", [dtype], [bool(by_columns)]), [state, weights])


def _seeded(ctx: OpContext, seed: Any) -> Any:
    state = relax.TensorType(STATE.shape, STATE.dtype)
    return ctx.emit(relax.call_dps_packed(symbol_of("Seeded"), relax.Tuple([seed]), state))


CONVERTERS.update(
    {
        f"{NAMESPACE}.{name}.default": convert
        for name, convert in {
            "uniform": _simple("Uniform", float, float),
            "normal": _normal,
            "log_normal": _simple("LogNormal", float, float),
            "cauchy": _simple("Cauchy", float, float),
            "exponential": _simple("Exponential", float),
            "geometric": _simple("Geometric", float),
            "bernoulli": _simple("Bernoulli", float),
            "bernoulli_each": _bernoulli_each,
            "integers": _integers,
            "permutation": _permutation,
            "multinomial": _multinomial,
            "seeded": _seeded,
        }.items()
    }
)
