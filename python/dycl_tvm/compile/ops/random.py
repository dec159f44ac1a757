# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Draws of random numbers (:mod:`dycl_tvm.hcfg.draws`): calls of kernels in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.compile.ops.context import CONVERTERS, DTYPE_NAMES, NotConvertible, OpContext
from dycl_tvm.compile.templates import symbol_of
from dycl_tvm.hcfg.draws import NAMESPACE, STATE


def _call(ctx: OpContext, symbol: str, operands: list[Any], shape: Sequence[int], dtype: str) -> Any:
    """Call a kernel that gives what is drawn, if anybody reads it or not, and the next state."""
    target = tvm.target.Target.current()
    if target is not None and str(target.kind) != "llvm":
        raise NotConvertible("random numbers are drawn on CPUs only; pass them in as an input")
    state = relax.TensorType(STATE.shape, STATE.dtype)
    made = ctx.emit(relax.call_dps_packed(symbol, relax.Tuple(operands), [relax.TensorType(tuple(shape), dtype), state]))
    return tuple(ctx.emit(relax.TupleGetItem(made, k)) for k in range(2))


def _simple(function: str, *kinds: type) -> Any:
    """Return the converter of a draw that takes a state, a size, numbers of some kinds and a dtype."""

    def convert(ctx: OpContext, state: Any, size: Any, *rest: Any) -> Any:
        params, dtype = [kind(x) for kind, x in zip(kinds, rest)], DTYPE_NAMES[rest[len(kinds)]]
        return _call(ctx, symbol_of("draw", function, [dtype], params), [state], size, dtype)

    return convert


def _normal(ctx: OpContext, state: Any, size: Any, mean: float, std: float, dtype: Any, one_by_one: bool) -> Any:
    function = "NormalOneByOne" if one_by_one else "Normal"
    return _call(ctx, symbol_of("draw", function, [DTYPE_NAMES[dtype]], [float(mean), float(std)]), [state], size, DTYPE_NAMES[dtype])


def _uniform_some(ctx: OpContext, state: Any, count: Any, size: int, low: float, high: float, dtype: Any) -> Any:
    symbol = symbol_of("draw", "SomeUniform", [DTYPE_NAMES[dtype]], [float(low), float(high)])
    return _call(ctx, symbol, [state, count], [size], DTYPE_NAMES[dtype])


def _normal_some(ctx: OpContext, state: Any, count: Any, one_by_one: Any, size: int, mean: float, std: float, dtype: Any) -> Any:
    symbol = symbol_of("draw", "SomeNormal", [DTYPE_NAMES[dtype]], [float(mean), float(std)])
    return _call(ctx, symbol, [state, count, one_by_one], [size], DTYPE_NAMES[dtype])


def _integers(ctx: OpContext, state: Any, size: Any, low: int, high: int, dtype: Any) -> Any:
    return _call(
        ctx, symbol_of("draw", "Integers", [DTYPE_NAMES[dtype]], [int(low), int(high) - int(low)]), [state], size, DTYPE_NAMES[dtype]
    )


def _permutation(ctx: OpContext, state: Any, n: int, dtype: Any) -> Any:
    if n >= (1 << 32) // 20:
        raise NotConvertible("a permutation of more than 2**32 / 20 numbers")
    return _call(ctx, symbol_of("draw", "Permutation", [DTYPE_NAMES[dtype]]), [state], [n], DTYPE_NAMES[dtype])


def _bernoulli_each(ctx: OpContext, state: Any, p: Any, dtype: Any) -> Any:
    return _call(ctx, symbol_of("draw", "BernoulliEach", [DTYPE_NAMES[dtype], ctx.dtype(p)]), [state, p], ctx.shape(p), DTYPE_NAMES[dtype])


def _normal_each(ctx: OpContext, state: Any, mean: Any, std: Any, one_by_one: bool) -> Any:
    symbol = symbol_of("draw", "NormalEach", [ctx.dtype(mean)], [bool(one_by_one)])
    return _call(ctx, symbol, [state, mean, std], ctx.shape(mean), ctx.dtype(mean))


def _of_each(function: str, *dtypes: str) -> Any:
    """Return the converter of a draw that takes a state and a tensor with a parameter for each number."""

    def convert(ctx: OpContext, state: Any, params: Any) -> Any:
        dtype = ctx.dtype(params)
        if dtype not in dtypes:
            raise NotConvertible(f"random numbers of {dtype}")
        return _call(ctx, symbol_of("draw", function, [dtype]), [state, params], ctx.shape(params), dtype)

    return convert


def _multinomial(ctx: OpContext, state: Any, weights: Any, count: int, replacement: bool, by_columns: bool) -> Any:
    dtype = ctx.dtype(weights)
    if dtype not in ("float32", "float64"):
        raise NotConvertible(f"multinomial() of {dtype}; cast the probabilities to float32")
    symbol = symbol_of("draw", "WithoutReplacement", [dtype], [bool(by_columns)])
    if replacement and count > 1:
        symbol = symbol_of("draw", "WithReplacement", [dtype])
    return _call(ctx, symbol, [state, weights], (*ctx.shape(weights)[:-1], count), "int64")


def _seeded(ctx: OpContext, seed: Any) -> Any:
    state = relax.TensorType(STATE.shape, STATE.dtype)
    return ctx.emit(relax.call_dps_packed(symbol_of("draw", "Seeded"), relax.Tuple([seed]), state))


CONVERTERS.update(
    {
        f"{NAMESPACE}.{name}.default": convert
        for name, convert in {
            "uniform": _simple("Uniform", float, float),
            "normal": _normal,
            "uniform_some": _uniform_some,
            "normal_some": _normal_some,
            "log_normal": _simple("LogNormal", float, float),
            "cauchy": _simple("Cauchy", float, float),
            "exponential": _simple("Exponential", float),
            "geometric": _simple("Geometric", float),
            "bernoulli": _simple("Bernoulli", float),
            "bernoulli_each": _bernoulli_each,
            "normal_each": _normal_each,
            "poisson": _of_each("Poisson", "float64", "float32", "float16", "bfloat16"),
            "gamma": _of_each("Gamma", "float64", "float32"),
            "integers": _integers,
            "permutation": _permutation,
            "multinomial": _multinomial,
            "seeded": _seeded,
        }.items()
    }
)
