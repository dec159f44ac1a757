# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Element-wise operators: arithmetic, comparisons, logic, activations, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from dycl_tvm.compile.ops import functions, semantics
from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, in_float32, is_float, is_kept_wide, of_one_dtype
from dycl_tvm.compile.ops.integers import integer_power

# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _arithmetic(relax_name: str) -> Callable[..., Any]:
    def convert(ctx: OpContext, a: Any, b: Any, alpha: Any = 1) -> Any:
        dtype = ctx.type.dtype
        if alpha != 1:
            b = ctx.binary("multiply", b, alpha, dtype) if not isinstance(b, (int, float)) else b * alpha
        return ctx.binary(relax_name, a, b, dtype)

    wide = of_one_dtype(convert)
    return lambda ctx, a, b, alpha=1: (wide if alpha != 1 and semantics.is_for_cpu() else convert)(ctx, a, b, alpha)


def _product(ctx: OpContext, a: Any, b: Any) -> Any:
    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        return ctx.binary("multiply", a, b, ctx.type.dtype)

    return (in_float32(convert) if is_kept_wide(ctx, a) or is_kept_wide(ctx, b) else convert)(ctx, a, b)


def _bool_arithmetic(plain: Callable[..., Any], logical: str) -> Callable[..., Any]:
    def convert(ctx: OpContext, a: Any, b: Any, alpha: Any = 1) -> Any:
        if ctx.type.dtype == "bool":
            if alpha not in (1, True):
                raise NotConvertible("alpha with bool tensors")
            return ctx.binary(logical, a, b, "bool")
        return plain(ctx, a, b, *(() if alpha == 1 else (alpha,)))

    return convert


converter("add.Tensor", "add.Scalar")(_bool_arithmetic(_arithmetic("add"), "logical_or"))
converter("mul.Tensor", "mul.Scalar")(_bool_arithmetic(_product, "logical_and"))
_subtract = _arithmetic("subtract")
converter("sub.Tensor", "sub.Scalar")(_subtract)
converter("atan2.default")(of_one_dtype(_arithmetic("atan2")))


@converter("rsub.Tensor", "rsub.Scalar")
def _rsub(ctx: OpContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _subtract(ctx, b, a, alpha)


@converter("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(ctx: OpContext, a: Any, b: Any) -> Any:
    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        return ctx.binary("divide", a, b, ctx.type.dtype)

    return (in_float32(convert) if is_kept_wide(ctx, b) else convert)(ctx, a, b)


def _kernel2(name: str, fn: Callable[[Any, Any], Any], halves: Callable[..., Any] = of_one_dtype) -> Callable[..., Any]:
    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        dtype = ctx.type.dtype
        return ctx.elementwise(fn, ctx.operand(a, dtype), ctx.operand(b, dtype), name=name)

    return halves(convert)


_floor_divide = _kernel2("floor_divide", semantics.floor_divide, in_float32)
_trunc_divide = _kernel2("trunc_divide", semantics.trunc_divide, in_float32)
converter("floor_divide.default", "floor_divide.Scalar")(_floor_divide)
converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")(_kernel2("remainder", semantics.remainder))
converter("fmod.Tensor", "fmod.Scalar")(_kernel2("fmod", semantics.fmod))
converter("maximum.default", "max.other")(_kernel2("maximum", semantics.maximum))
converter("minimum.default", "min.other")(_kernel2("minimum", semantics.minimum))


@converter("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(ctx: OpContext, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _div(ctx, a, b)
    return (_floor_divide if rounding_mode == "floor" else _trunc_divide)(ctx, a, b)


@converter("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(ctx: OpContext, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    if (
        isinstance(b, float) and abs(b) == 0.5 and dtype in ("float32", "float64")
    ):  # as PyTorch: another thing than a power at infinity and below 0
        return ctx.emit((relax.op.sqrt if b == 0.5 else relax.op.rsqrt)(ctx.operand(a, dtype)))
    return _power(ctx, a, b)


@of_one_dtype
def _power(ctx: OpContext, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    if isinstance(b, (int, float)) and float(b).is_integer() and 0 <= b <= 8:
        x = ctx.operand(a, dtype)
        if b == 0:
            return ctx.elementwise(lambda v: tirx.const(1, dtype), x, name="ones")
        result = x
        for _ in range(int(b) - 1):
            result = ctx.emit(relax.op.multiply(result, x))
        return result
    if not is_float(dtype):
        return integer_power(ctx, ctx.operand(a, dtype), ctx.operand(b, dtype))
    return ctx.elementwise(lambda x, y: tirx.power(x, y), ctx.operand(a, dtype), ctx.operand(b, dtype), name="power")


# ---- comparisons and logic -------------------------------------------------------------------------------------------


def _comparison(relax_name: str) -> Callable[..., Any]:
    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        dtype = ctx.common_dtype(a, b)
        if dtype == "bool":  # ordering of bools is that of 0 and 1
            return ctx.emit(getattr(relax.op, relax_name)(_as_int8(ctx, a), _as_int8(ctx, b)))
        return ctx.binary(relax_name, a, b, dtype)

    return convert


def _as_int8(ctx: OpContext, value: Any) -> Any:
    return ctx.operand(int(value) if isinstance(value, bool) else value, "int8")


for _name, _relax in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    converter(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_relax))


def _logical(relax_name: str) -> Callable[..., Any]:
    return lambda ctx, a, b: ctx.binary(relax_name, a, b, "bool")


for _name in ("logical_and", "logical_or", "logical_xor"):
    converter(f"{_name}.default")(_logical(_name))


@converter("logical_not.default")
def _logical_not(ctx: OpContext, x: Any) -> Any:
    return ctx.emit(relax.op.logical_not(ctx.cast(x, "bool")))


def _bitwise(name: str, logical: str) -> Callable[..., Any]:
    def convert(ctx: OpContext, a: Any, b: Any) -> Any:
        dtype = ctx.type.dtype
        return ctx.binary(logical if dtype == "bool" else name, a, b, dtype)

    return convert


for _name in ("and", "or", "xor"):
    _fn = _bitwise(f"bitwise_{_name}", f"logical_{_name}")
    _overloads = [f"bitwise_{_name}.{kinds}" for kinds in ("Tensor", "Scalar", "Scalar_Tensor")]
    converter(*_overloads, f"__{_name}__.Tensor", f"__{_name}__.Scalar")(_fn)


@converter("bitwise_not.default")
def _bitwise_not(ctx: OpContext, x: Any) -> Any:
    return ctx.emit(relax.op.logical_not(x) if ctx.type.dtype == "bool" else relax.op.bitwise_not(x))


@converter("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(ctx: OpContext, cond: Any, a: Any, b: Any) -> Any:
    dtype = ctx.type.dtype
    return ctx.emit(relax.op.where(ctx.cast(cond, "bool"), ctx.operand(a, dtype), ctx.operand(b, dtype)))


@converter("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(ctx: OpContext, x: Any, mask: Any, value: Any) -> Any:
    return ctx.emit(relax.op.where(ctx.cast(mask, "bool"), ctx.operand(value, ctx.type.dtype), x))


@converter("isnan.default")
def _isnan(ctx: OpContext, x: Any) -> Any:
    if not is_float(ctx.dtype(x)):
        return ctx.elementwise(lambda v: tirx.const(False, "bool"), x, name="isnan")
    if ctx.dtype(x) == "bfloat16":  # TVM's isnan does not know it
        x = ctx.cast(x, "float32")
    return ctx.elementwise(semantics.is_nan, x, name="isnan")


@converter("isinf.default")
def _isinf(ctx: OpContext, x: Any) -> Any:
    if not is_float(ctx.dtype(x)):
        return ctx.elementwise(lambda v: tirx.const(False, "bool"), x, name="isinf")
    inf = tirx.const(math.inf, ctx.dtype(x))
    return ctx.elementwise(lambda v: tirx.Or(v >= inf, v <= -inf), x, name="isinf")


@converter("isfinite.default")
def _isfinite(ctx: OpContext, x: Any) -> Any:
    if not is_float(ctx.dtype(x)):
        return ctx.elementwise(lambda v: tirx.const(True, "bool"), x, name="isfinite")
    inf = tirx.const(math.inf, ctx.dtype(x))
    return ctx.elementwise(lambda v: tirx.And(v < inf, v > -inf), x, name="isfinite")


# ---- unary -----------------------------------------------------------------------------------------------------------


def _unary(relax_name: str) -> Callable[..., Any]:
    return in_float32(lambda ctx, x: ctx.emit(getattr(relax.op, relax_name)(ctx.cast(x, ctx.type.dtype))))


for _name in (
    "exp", "log", "sin", "cos", "tan", "tanh", "sigmoid", "sqrt", "rsqrt", "erf",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
):  # fmt: skip
    converter(f"{_name}.default")(_unary(_name))


@converter("neg.default")
def _neg(ctx: OpContext, x: Any) -> Any:
    if ctx.type.dtype == "uint8":  # TVM negates by a product with -1, which is no uint8
        return ctx.binary("subtract", 0, x, ctx.type.dtype)
    return ctx.emit(relax.op.negative(x))


@converter("abs.default")
def _abs(ctx: OpContext, x: Any) -> Any:
    return x if ctx.type.dtype in ("bool", "uint8") else ctx.emit(relax.op.abs(x))


@converter("square.default")
@in_float32
def _square(ctx: OpContext, x: Any) -> Any:
    x = ctx.cast(x, ctx.type.dtype)
    return ctx.emit(relax.op.multiply(x, x))


@converter("reciprocal.default")
@in_float32
def _reciprocal(ctx: OpContext, x: Any) -> Any:
    return ctx.binary("divide", 1, x, ctx.type.dtype)


def _rounding(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    return in_float32(lambda ctx, x: ctx.elementwise(fn, x, name=name) if is_float(ctx.type.dtype) else x)


converter("floor.default")(_rounding("floor", tirx.floor))
converter("ceil.default")(_rounding("ceil", tirx.ceil))
converter("trunc.default")(_rounding("trunc", tirx.trunc))
converter("round.default")(_rounding("round", tirx.nearbyint))


def _float_kernel(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    return in_float32(lambda ctx, x: ctx.elementwise(fn, ctx.cast(x, ctx.type.dtype), name=name))


for _name in ("atanh", "erfc", "exp2", "expm1", "log10", "log1p", "log2"):
    converter(f"{_name}.default")(_float_kernel(_name, getattr(functions, _name)))


@converter("sign.default", "sgn.default")
def _sign(ctx: OpContext, x: Any) -> Any:
    dtype = ctx.type.dtype
    if dtype == "bool":
        return x
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    if dtype == "uint8":
        return ctx.elementwise(lambda v: tirx.Select(v > zero, one, zero), x, name="sign")
    # PyTorch gives 0 for NaN
    return ctx.elementwise(lambda v: tirx.Select(v > zero, one, tirx.Select(v < zero, -one, zero)), x, name="sign")


# ---- activations -----------------------------------------------------------------------------------------------------


@converter("relu.default")
def _relu(ctx: OpContext, x: Any) -> Any:
    return ctx.emit(relax.op.nn.relu(x))


@converter("silu.default")
@in_float32
def _silu(ctx: OpContext, x: Any) -> Any:
    return ctx.emit(relax.op.multiply(x, ctx.emit(relax.op.sigmoid(x))))


@converter("gelu.default")
@in_float32
def _gelu(ctx: OpContext, x: Any, approximate: str = "none") -> Any:
    return ctx.emit(relax.op.nn.gelu_tanh(x) if approximate == "tanh" else relax.op.nn.gelu(x))


@converter("leaky_relu.default")
@in_float32
def _leaky_relu(ctx: OpContext, x: Any, slope: float = 0.01) -> Any:
    dtype = ctx.type.dtype
    return ctx.elementwise(lambda v: tirx.Select(v > tirx.const(0, dtype), v, v * tirx.const(slope, dtype)), x, name="leaky_relu")


@converter("softshrink.default")
@in_float32
def _softshrink(ctx: OpContext, x: Any, width: float = 0.5) -> Any:
    dtype = ctx.type.dtype
    zero, bound = tirx.const(0, dtype), tirx.const(width, dtype)

    def softshrink(v: Any) -> Any:
        inside = tirx.Select(semantics.is_nan(v), v, zero)
        return tirx.Select(v > bound, v - bound, tirx.Select(v < -bound, v + bound, inside))

    return ctx.elementwise(softshrink, x, name="softshrink")


@converter("elu.default")
@in_float32
def _elu(ctx: OpContext, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    dtype = ctx.type.dtype

    def elu(v: Any) -> Any:
        negative = functions.expm1(v * tirx.const(input_scale, dtype)) * tirx.const(alpha * scale, dtype)
        return tirx.Select(v > tirx.const(0, dtype), v * tirx.const(scale, dtype), negative)

    return ctx.elementwise(elu, x, name="elu")


@converter("softplus.default")
@in_float32
def _softplus(ctx: OpContext, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    dtype = ctx.type.dtype

    def softplus(v: Any) -> Any:
        scaled = v * tirx.const(beta, dtype)
        # exp of a large argument would be inf in the branch that is not taken, which is harmless
        return tirx.Select(scaled > tirx.const(threshold, dtype), v, functions.log1p(tirx.exp(scaled)) / tirx.const(beta, dtype))

    return ctx.elementwise(softplus, x, name="softplus")


@converter("clamp.default", "hardtanh.default")
def _clamp(ctx: OpContext, x: Any, lo: float | None = None, hi: float | None = None) -> Any:
    x = ctx.cast(x, ctx.type.dtype)
    if lo is not None and hi is not None and lo > hi:
        lo = hi  # PyTorch: the upper bound wins
    if lo == 0 and hi is None and is_float(ctx.type.dtype):
        return ctx.emit(relax.op.nn.relu(x))
    return ctx.elementwise(lambda v: semantics.clip(v, lo, hi), x, name="clip")


@converter("clamp_min.default")
def _clamp_min(ctx: OpContext, x: Any, lo: float) -> Any:
    return _clamp(ctx, x, lo, None)


@converter("clamp_max.default")
def _clamp_max(ctx: OpContext, x: Any, hi: float) -> Any:
    return _clamp(ctx, x, None, hi)


@converter("relu6.default")
def _relu6(ctx: OpContext, x: Any) -> Any:
    return _clamp(ctx, x, 0, 6)


@converter("hardsigmoid.default")
@in_float32
def _hardsigmoid(ctx: OpContext, x: Any) -> Any:
    return ctx.elementwise(lambda v: semantics.clip(v + tirx.const(3, ctx.type.dtype), 0, 6) / 6, x, name="hardsigmoid")


@converter("hardswish.default")
@in_float32
def _hardswish(ctx: OpContext, x: Any) -> Any:
    return ctx.elementwise(lambda v: v * semantics.clip(v + tirx.const(3, ctx.type.dtype), 0, 6) / 6, x, name="hardswish")


# ---- conversions and copies ------------------------------------------------------------------------------------------


@converter("_to_copy.default", "to.dtype", "prims.convert_element_type.default")
def _to_copy(ctx: OpContext, x: Any, *_: Any) -> Any:
    source, dtype = ctx.dtype(x), ctx.type.dtype
    if is_float(source) and dtype != "bool" and not is_float(dtype):
        x = ctx.elementwise(tirx.trunc, x, name="trunc")
    return ctx.cast(x, dtype)


@converter(
    "clone.default", "detach.default", "alias.default", "contiguous.default", "lift_fresh_copy.default", "lift.default",
    "positive.default", "dropout.default",
)  # fmt: skip
def _same(ctx: OpContext, x: Any, *_: Any) -> Any:
    return x


@converter("copy.default")
def _copy(ctx: OpContext, x: Any, source: Any, non_blocking: bool = False) -> Any:
    source = _to_copy(ctx, source)
    return ctx.emit(relax.op.broadcast_to(source, ctx.type.shape)) if ctx.shape(source) != ctx.type.shape else source


def filled(ctx: OpContext, shape: tuple[int, ...], value: Any, dtype: str) -> Any:
    """Return a tensor all of whose elements are one number."""
    one = ctx.operand(value, dtype)
    if not shape:
        return one
    infinite = isinstance(value, float) and not math.isfinite(value)  # TVM's `full` fails for those
    return ctx.emit(relax.op.broadcast_to(one, shape) if infinite else relax.op.full(shape, one, dtype))


def _filled(ctx: OpContext, value: Any) -> Any:
    return filled(ctx, ctx.type.shape, value, ctx.type.dtype)


@converter("full.default", "full_like.default", "new_full.default", "fill.Scalar", "scalar_tensor.default")
def _full(ctx: OpContext, first: Any, *rest: Any) -> Any:
    value = first if isinstance(first, (bool, int, float)) else next(v for v in rest if isinstance(v, (bool, int, float)))
    return _filled(ctx, value)


@converter(
    "zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "empty.memory_format", "empty_like.default",
    "new_empty.default", "empty_strided.default", "new_empty_strided.default",
)  # fmt: skip
def _zeros(ctx: OpContext, *_: Any) -> Any:
    return _filled(ctx, 0)


@converter("ones.default", "ones_like.default", "new_ones.default")
def _ones(ctx: OpContext, *_: Any) -> Any:
    return _filled(ctx, 1)


@converter("arange.default", "arange.start", "arange.start_step")
def _arange(ctx: OpContext, *args: Any) -> Any:
    numbers = [a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    if ctx.op.endswith(".default"):
        start: int | float = 0
        step: int | float = 1
    else:
        start, step = numbers[0], numbers[2] if ctx.op.endswith("start_step") and len(numbers) > 2 else 1
    dtype = ctx.type.dtype
    return ctx.compute(lambda i: tirx.const(start, dtype) + i.astype(dtype) * tirx.const(step, dtype), name="arange")
