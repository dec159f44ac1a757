# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Draws of random numbers on a GPU (:mod:`dycl_tvm.hcfg.cuda_draws`): element-wise kernels, each element a function of the state.

Functions of floats are those that PyTorch's kernels call there, with its contractions. For a CPU, which only stands for a GPU where
a build is checked, they are the exact ones, rounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import CONVERTERS, DTYPE_NAMES, NotConvertible, OpContext
from dycl_tvm.hcfg.cuda_draws import TWO_WORDS, interval, way_of, way_of_dropout, way_of_integers
from dycl_tvm.hcfg.draws import CUDA_NAMESPACE
from dycl_tvm.hcfg.philox import ANGLE, BLOCK, CALL, DEVICE, EACH_ADVANCE, FACTORS, ROUNDS, SMALL, STATE_BYTES, STEPS, UNIT, Way

#: The functions of float32 that are approximations in PyTorch's kernels, and those that are not; both by their names in the C library.
_QUICK = {"log": "__logf", "tan": "__tanf", "exp": "__expf", "sin": "__sinf", "cos": "__cosf"}
_EXACT = {"log": "logf", "sqrt": "sqrtf", "ceil": "ceilf"}


class _Scope:
    """Names for what an expression uses several times."""

    def __init__(self) -> None:
        self._names: list[tuple[Any, Any]] = []

    def let(self, value: Any) -> Any:
        """Return a name for a value."""
        name = tirx.Var(f"v{len(self._names)}", semantics.dtype_of(value))
        self._names.append((name, value))
        return name

    def around(self, body: Any) -> Any:
        """Return an expression with the names that it uses."""
        for name, value in reversed(self._names):
            body = tirx.Let(name, value, body)
        return body


def _const(value: int | float, dtype: str) -> Any:
    return tirx.const(value, dtype)


def _seed_and_offset(scope: _Scope, state: Any) -> tuple[Any, Any]:
    def number(at: int) -> Any:
        parts = [state[at + k].astype("uint64") for k in range(8)]
        if at:  # an offset is below 2**63
            parts[7] = parts[7] & _const(0x7F, "uint64")
        return scope.let(functools.reduce(tirx.bitwise_or, (part << _const(8 * k, "uint64") for k, part in enumerate(parts))))

    return number(0), number(STATE_BYTES // 2)


def _stride(way: Way) -> Any:
    """Return how many threads draw; on a GPU the kernel knows it."""
    if semantics.is_for_cpu():
        return _const(way.stride(DEVICE.threads), "int64")
    return tirx.call_pure_extern("int64", "dycl_stride", _const(-(-way.numel // BLOCK), "int64"))


def _philox(scope: _Scope, seed: Any, counter: Any, thread: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four words of a call, as integers of 64 bits: nothing overflows, for TVM simplifies as if nothing ever did."""

    def low(x: Any) -> Any:
        return scope.let(x & _const(0xFFFFFFFF, "uint64"))

    def high(x: Any) -> Any:
        return scope.let(x >> _const(32, "uint64"))

    a, b, c, d = low(counter), high(counter), low(thread), high(thread)
    k, m = low(seed), high(seed)
    for n in range(ROUNDS):
        first, second = (scope.let(x * _const(f, "uint64")) for x, f in zip((a, c), FACTORS))
        key = [low(x + _const(n * step % (1 << 32), "uint64")) for x, step in zip((k, m), STEPS)]
        a, b, c, d = scope.let(high(second) ^ b ^ key[0]), low(second), scope.let(high(first) ^ d ^ key[1]), low(first)
    return a, b, c, d


class _Call:
    """The words of the call of one element, and which of its numbers the element gets; not ``bounded``: by as many threads as needed."""

    def __init__(self, state: Any, element: Any, way: Way, bounded: bool = True) -> None:
        self.scope = _Scope()
        seed, offset = _seed_and_offset(self.scope, state)
        let, zero = self.scope.let, _const(0, "int64")
        # indices have no names: where TVM copies a loop, it knows other bounds of a name in each copy, and stops
        group, inner = element.astype("int64"), zero
        if way.neighbours > 1:
            of = _const(way.neighbours, "int64")
            group, inner = tirx.floordiv(group, of), tirx.floormod(group, of)
        thread, turn = group, zero
        if bounded and way.numel > SMALL:
            stride = _stride(way)
            thread, turn = tirx.truncmod(group, stride), tirx.truncdiv(group, stride)
            if way.neighbours == 1:
                of = _const(way.per_call, "int64")
                turn, inner = tirx.truncdiv(turn, of), tirx.truncmod(turn, of)
        assert CALL == 4  # the shift
        counter = let((offset >> _const(2, "uint64")) + turn.astype("uint64"))
        self.words = _philox(self.scope, seed, counter, let(thread.astype("uint64")))
        self.component = inner.astype("int32")

    def chosen(self, *values: Any) -> Any:
        """Return one of as many values as a call gives."""
        found = values[0]
        for k, value in enumerate(values[1:], 1):
            found = tirx.Select(tirx.EQ(self.component, _const(k, "int32")), value, found)
        return self.scope.let(found)

    def uniform(self, double: bool) -> Any:
        """Return a number in (0, 1]."""
        if double:
            a, b, c, d = self.words
            return self._wide(self.chosen(a, c), self.chosen(b, d), 2.0**-53, 2.0**-54)
        return self._unit(self.chosen(*self.words))

    def normal(self, double: bool) -> Any:
        """Return a normally distributed number by the method of Box and Muller."""
        a, b, c, d = self.words
        dtype = "float64" if double else "float32"
        if double:
            one, angle = self._wide(a, b, 2.0**-53, 2.0**-54), self._wide(c, d, 2.0**-52, 2.0**-53)
            sine = tirx.EQ(self.component, _const(0, "int32"))
        else:
            first = self.component < _const(2, "int32")
            one = self._unit(self.scope.let(tirx.Select(first, a, c)))
            angle = _fused(self.scope.let(tirx.Select(first, b, d)).astype("float32"), ANGLE, ANGLE / 2)
            sine = tirx.EQ(self.component & _const(1, "int32"), _const(0, "int32"))
        angle = self.scope.let(angle)
        radius = self.scope.let(_function("sqrt", _const(-2.0, dtype) * _function("log", one)))
        if not double:
            waves = [_function(f, angle, quick=True) for f in ("sin", "cos")]
        elif semantics.is_for_cpu():
            waves = [tirx.call_pure_extern(dtype, f, angle * _const(math.pi, dtype)) for f in ("sin", "cos")]
        else:
            waves = [tirx.call_pure_extern(dtype, f, angle) for f in ("::sinpi", "::cospi")]
        return self.scope.let(tirx.Select(sine, *waves) * radius)

    def _unit(self, word: Any) -> Any:
        return self.scope.let(word.astype("float32") * _const(UNIT, "float32") + _const(UNIT / 2, "float32"))

    def _wide(self, low: Any, high: Any, unit: float, half: float) -> Any:
        both = low ^ (high << _const(21, "uint64"))
        return self.scope.let(both.astype("float64") * _const(unit, "float64") + _const(half, "float64"))


def _function(name: str, x: Any, quick: bool = False) -> Any:
    """Return a function of the C library of a float; ``quick``: PyTorch's kernels have an approximation of it in float32."""
    dtype = semantics.dtype_of(x)
    if dtype == "float64":
        return tirx.call_pure_extern(dtype, name if semantics.is_for_cpu() else f"::{name}", x)
    if semantics.is_for_cpu():
        return tirx.call_pure_extern("float64", name, x.astype("float64")).astype(dtype)
    return tirx.call_pure_extern(dtype, (_QUICK if quick else _EXACT)[name], x)


def _fused(a: Any, b: float, c: float) -> Any:
    """Return ``a * b + c`` rounded once."""
    dtype = semantics.dtype_of(a)
    return tirx.call_pure_extern(dtype, "fma" if dtype == "float64" else "fmaf", a, _const(b, dtype), _const(c, dtype))


def _flat(index: Sequence[Any], shape: Sequence[int]) -> Any:
    at = _const(0, "int64")
    for i, n in zip(index, shape):
        at = at * _const(int(n), "int64") + i
    return at


def _advanced(ctx: OpContext, state: Any, way: Way | None) -> Any:
    """Emit the next state."""

    def byte(old: Any, k: Any) -> Any:
        scope = _Scope()
        _, offset = _seed_and_offset(scope, old)
        by = _const(EACH_ADVANCE if way is None else CALL, "int64")
        if way is not None and way.numel > SMALL:
            turns = tirx.truncdiv(_const(way.numel - 1, "int64"), _stride(way) * _const(way.per_call, "int64")) + _const(1, "int64")
            by = turns * by
        place = (tirx.truncmod(k, _const(8, "int64")) * _const(8, "int64")).astype("uint64")
        moved = (((offset + by.astype("uint64")) >> place) & _const(0xFF, "uint64")).astype("uint8")
        return scope.around(tirx.Select(k < _const(8, "int64"), old[k], moved))

    return ctx.compute(byte, state, name="next_state", shape=(STATE_BYTES,))


def _drawn(ctx: OpContext, state: Any, size: Sequence[int], way: Way, number: Callable[[_Call], Any], dtype: str) -> Any:
    """Emit a draw, whose elements are ``number`` of their calls."""
    size = tuple(int(n) for n in size)

    def element(old: Any, *index: Any) -> Any:
        call = _Call(old, _flat(index, size), way)
        value = number(call)
        return call.scope.around(value if semantics.dtype_of(value) == dtype else value.astype(dtype))

    return ctx.compute(element, state, name="draw", shape=size)


def _of_floats(number: Callable[..., Callable[[_Call, str], Any]]) -> Callable[..., Any]:
    """Return the converter of a draw of floating-point numbers; ``number`` takes its parameters."""

    def convert(ctx: OpContext, state: Any, size: Any, *rest: Any) -> Any:
        dtype = next(x for x in rest if isinstance(x, torch.dtype))
        params = [float(x) for x in rest[: rest.index(dtype)]]
        wide = "float64" if dtype == torch.float64 else "float32"
        of = number(dtype, *params)
        way = way_of(size, dtype)
        return _drawn(ctx, state, size, way, lambda call: of(call, wide), DTYPE_NAMES[dtype]), _advanced(ctx, state, way)

    return convert


def _uniform(dtype: torch.dtype, low: float, high: float) -> Callable[[_Call, str], Any]:
    first, last, width = interval(low, high, dtype)
    name = DTYPE_NAMES[dtype]

    def number(call: _Call, wide: str) -> Any:
        value = call.scope.let(_fused(call.uniform(wide == "float64"), width, first).astype(name))
        return tirx.Select(tirx.EQ(value, _const(last, name)), _const(first, name), value)

    return number


def _normal(dtype: torch.dtype, mean: float, std: float) -> Callable[[_Call, str], Any]:
    return lambda call, wide: _fused(call.normal(wide == "float64"), std, mean)


def _log_normal(dtype: torch.dtype, mean: float, std: float) -> Callable[[_Call, str], Any]:
    return lambda call, wide: _function("exp", call.scope.let(_fused(call.normal(wide == "float64"), std, mean)), quick=True)


def _cauchy(dtype: torch.dtype, median: float, sigma: float) -> Callable[[_Call, str], Any]:
    def number(call: _Call, wide: str) -> Any:
        u = call.uniform(wide == "float64")
        if wide == "float32":
            for bound, beyond in ((1 - 2.0**-23, u > _const(1 - 2.0**-23, wide)), (2.0**-23, u < _const(2.0**-23, wide))):
                u = call.scope.let(tirx.Select(beyond, _const(bound, wide), u))
        angle = call.scope.let(_const(float(np.float32(math.pi)) if wide == "float32" else math.pi, wide) * (u - _const(0.5, wide)))
        return _fused(_function("tan", angle, quick=True), sigma, median)

    return number


def _exponential(dtype: torch.dtype, rate: float) -> Callable[[_Call, str], Any]:
    def number(call: _Call, wide: str) -> Any:
        u, half = call.uniform(wide == "float64"), 2.0**-53 if wide == "float64" else 2.0**-24
        log = tirx.Select(u >= _const(1 - half, wide), _const(-half, wide), _function("log", u, quick=True))
        factor = -1.0 / rate if wide == "float64" else float(np.float32(-1.0) / np.float32(rate))
        return _const(factor, wide) * call.scope.let(log)

    return number


def _geometric(dtype: torch.dtype, p: float) -> Callable[[_Call, str], Any]:
    def number(call: _Call, wide: str) -> Any:
        below = _const(math.log1p(-p), wide)
        if wide == "float32":  # PyTorch's kernel computes it, with its approximation
            below = call.scope.let(_function("log", _const(float(np.float32(1) + -np.float32(p)), wide), quick=True))
        return _function("ceil", _function("log", call.uniform(wide == "float64"), quick=True) / below)

    return number


def _below(dtype: torch.dtype, p: float) -> Callable[[_Call, str], Any]:
    return lambda call, wide: call.uniform(wide == "float64") < _const(float(np.float32(p)) if wide == "float32" else p, wide)


def _dropout(ctx: OpContext, state: Any, size: Any, keep: float, dtype: torch.dtype) -> Any:
    way, below = way_of_dropout(size), _below(dtype, keep)
    return _drawn(ctx, state, size, way, lambda call: below(call, "float32"), DTYPE_NAMES[dtype]), _advanced(ctx, state, way)


def _bernoulli_each(ctx: OpContext, state: Any, p: Any, dtype: torch.dtype) -> Any:
    wide = "float64" if dtype == torch.float64 else "float32"
    shape, name = tuple(int(n) for n in ctx.shape(p)), DTYPE_NAMES[dtype]

    def element(old: Any, chance: Any, *index: Any) -> Any:
        call = _Call(old, _flat(index, shape), Way(math.prod(shape), 4, 4), bounded=False)
        p = chance(*index).astype(wide)
        if not semantics.is_for_cpu():
            p = tirx.call_pure_extern(wide, "dycl_chance", p)
        return call.scope.around((call.uniform(False).astype(wide) <= p).astype(name))

    return ctx.compute(element, state, p, name="draw_each", shape=shape), _advanced(ctx, state, None)


def _integers(ctx: OpContext, state: Any, size: Any, low: int, high: int, dtype: torch.dtype) -> Any:
    width, name = high - low, DTYPE_NAMES[dtype]
    if width >= 1 << 63:
        raise NotConvertible("whole numbers of a range of 2**63 or more, on a GPU")

    def number(call: _Call) -> Any:
        a, b, c, d = call.words
        if width >= TWO_WORDS:
            word = (call.chosen(a, c) << _const(32, "uint64")) | call.chosen(b, d)
        else:
            word = call.chosen(a, b, c, d)
        value = tirx.truncmod(call.scope.let(word), _const(width, "uint64")).astype("int64") + _const(low, "int64")
        return tirx.NE(value, _const(0, "int64")) if name == "bool" else value

    way = way_of_integers(size, width)
    return _drawn(ctx, state, size, way, number, name), _advanced(ctx, state, way)


def _multinomial(ctx: OpContext, state: Any, weights: Any, count: int, replacement: bool, by_columns: bool) -> Any:
    """Emit the race of PyTorch: the largest of weights divided by exponentially distributed numbers."""
    dtype, shape = ctx.dtype(weights), tuple(int(n) for n in ctx.shape(weights))
    if dtype not in ("float32", "float64"):
        raise NotConvertible(f"multinomial() of {dtype}; cast the probabilities to float32")
    way = Way(math.prod(shape), 2 if dtype == "float64" else 4)
    time = _exponential(torch.float64 if dtype == "float64" else torch.float32, 1.0)

    def race(old: Any, chances: Any, *index: Any) -> Any:
        at = _flat(index[::-1], shape[::-1]) if by_columns else _flat(index, shape)
        call, weight = _Call(old, at, way), chances(*index)
        if not semantics.is_for_cpu():
            weight = tirx.call_pure_extern(dtype, "dycl_weight", weight)
        return call.scope.around(weight / call.scope.let(time(call, dtype)))

    won = ctx.compute(race, state, weights, name="race", shape=shape)
    first = CONVERTERS["aten.argmax.default"](ctx, won, -1, True)
    if not semantics.is_for_cpu():

        def valid(winner: Any, race: Any, *index: Any) -> Any:
            found = winner(*index)
            return tirx.call_pure_extern("int64", "dycl_winner", found, race(*index[:-1], found))

        first = ctx.compute(valid, first, won, name="winner", shape=(*shape[:-1], 1))
    return first, _advanced(ctx, state, way)


def _seeded(ctx: OpContext, seed: Any) -> Any:
    def byte(given: Any, k: Any) -> Any:
        number = given(*[_const(0, "int64")] * len(ctx.shape(seed))).astype("uint64")
        place = (tirx.truncmod(k, _const(8, "int64")) * _const(8, "int64")).astype("uint64")
        moved = ((number >> place) & _const(0xFF, "uint64")).astype("uint8")
        return tirx.Select(k < _const(8, "int64"), moved, _const(0, "uint8"))

    return ctx.compute(byte, seed, name="seeded", shape=(STATE_BYTES,))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "uniform": _of_floats(_uniform),
    "normal": _of_floats(_normal),
    "log_normal": _of_floats(_log_normal),
    "cauchy": _of_floats(_cauchy),
    "exponential": _of_floats(_exponential),
    "geometric": _of_floats(_geometric),
    "bernoulli": _of_floats(_below),
    "dropout": _dropout,
    "bernoulli_each": _bernoulli_each,
    "integers": _integers,
    "multinomial": _multinomial,
    "seeded": _seeded,
}
CONVERTERS.update({f"{CUDA_NAMESPACE}.{name}.default": convert for name, convert in _OPERATORS.items()})
