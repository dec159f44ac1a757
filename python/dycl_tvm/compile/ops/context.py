# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a converter works with: the block builder, the types of the results, and helpers to emit expressions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax, te, tirx

from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.registry import registers
from dycl_tvm.hcfg.types import TensorType

#: ATen overload name (``aten.add.Tensor``) to the function that converts it.
CONVERTERS: dict[str, Callable[..., Any]] = {}

TORCH_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
    "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip

DTYPE_NAMES = {v: k for k, v in TORCH_DTYPES.items()}


#: TVM's pattern of functions that are not fused (OpPatternKind::kOpaque).
OPAQUE = 8


class NotConvertible(Exception):
    """A converter cannot take this combination of arguments; the message says which."""


#: Registers a converter. It is called as ``fn(ctx, *args)`` with all arguments of the schema in order, defaults filled in, tensors as Relax
#: expressions. It returns one expression or a tuple of them.
converter = registers(CONVERTERS)


def in_float32(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Make a converter compute halves in float32, as PyTorch does; the importer rounds the result."""

    @functools.wraps(convert)
    def wide(ctx: OpContext, *args: Any) -> Any:
        if ctx.result_dtype not in _HALVES:
            return convert(ctx, *args)
        out = [None if o is None else TensorType(o.shape, "float32" if o.dtype in _HALVES else o.dtype) for o in ctx.out]
        return convert(OpContext(ctx.bb, out, ctx.op, ctx.unused), *(_widened(ctx, a) for a in args))

    return wide


def sums_in_float32(convert: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`in_float32` on CPUs; what GPUs do with factors in halves is left to their kernels."""
    wide = in_float32(convert)

    @functools.wraps(convert)
    def chosen(ctx: OpContext, *args: Any) -> Any:
        return (wide if semantics.is_for_cpu() else convert)(ctx, *args)

    return chosen


def of_one_dtype(convert: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`in_float32`, for operators that bring their operands to the dtype of the result first: a number is rounded to it."""
    wide = in_float32(convert)

    @functools.wraps(convert)
    def rounded(ctx: OpContext, *args: Any) -> Any:
        dtype = ctx.result_dtype
        return wide(ctx, *(_as_half(ctx, a, dtype) for a in args)) if dtype in _HALVES else convert(ctx, *args)

    return rounded


def is_kept_wide(ctx: OpContext, value: Any) -> bool:
    """Whether an operand of a product of halves, on CPUs, is a number with more digits than they have: PyTorch takes it as it is."""
    dtype = ctx.result_dtype
    if dtype not in _HALVES or not semantics.is_for_cpu():
        return False
    if isinstance(value, tvm.ir.Expr):
        return not ctx.shape(value) and ctx.dtype(value) in ("float32", "float64")
    return isinstance(value, float) and _rounded_to(value, dtype) != value


def _as_half(ctx: OpContext, arg: Any, dtype: str) -> Any:
    if isinstance(arg, float):
        return _rounded_to(arg, dtype)
    return ctx.cast(arg, dtype) if isinstance(arg, tvm.ir.Expr) else arg


def _rounded_to(value: float, dtype: str) -> float:
    return float(torch.tensor(value, dtype=TORCH_DTYPES[dtype]))


_HALVES = ("float16", "bfloat16")


def _widened(ctx: OpContext, arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return [_widened(ctx, a) for a in arg]
    return ctx.cast(arg, "float32") if isinstance(arg, tvm.ir.Expr) and ctx.dtype(arg) in _HALVES else arg


def number(value: bool | int | float, dtype: str) -> bool | int | float:
    """Return what a tensor holds if this number is stored in it: a bool is True for all but zero, TVM drops the fraction first."""
    if not is_float(dtype) and isinstance(value, float) and not math.isfinite(value):
        raise NotConvertible(f"the number {value} as {dtype}")
    return bool(value) if dtype == "bool" else value


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating point type."""
    return "float" in dtype


class OpContext:
    """State of the conversion of one operator.

    Attributes
    ----------
    bb : relax.BlockBuilder
    out : tuple of (TensorType or None)
        The types of the operator's results as PyTorch has them.
    op : str
        Overload name, for converters of several overloads.
    unused : set of int
        Numbers of results that nothing reads: they need not be computed.
    """

    def __init__(
        self, bb: relax.BlockBuilder, out: Sequence[TensorType | None], op: str = "", unused: frozenset[int] = frozenset()
    ) -> None:
        self.bb, self.out, self.op, self.unused = bb, tuple(out), op, unused

    # -- types ---------------------------------------------------------------------------------------------------------

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        first = self.out[0] if self.out else None
        if first is None:
            raise NotConvertible("the first result has no type")
        return first

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the first result that is read, for operators whose results all have one shape."""
        for out in self.out:
            if out is not None:
                return tuple(out.shape)
        raise NotConvertible("no result has a type")

    @property
    def result_dtype(self) -> str:
        """The dtype of the first result that is read, for operators whose results all have one."""
        for out in self.out:
            if out is not None:
                return str(out.dtype)
        raise NotConvertible("no result has a type")

    @staticmethod
    def shape(expr: Any) -> tuple[int, ...]:
        """Return the static shape of an expression."""
        return tuple(int(d) for d in expr.ty.shape)

    @staticmethod
    def dtype(expr: Any) -> str:
        """Return the dtype of an expression."""
        return str(expr.ty.dtype.dtype)

    # -- emitting ------------------------------------------------------------------------------------------------------

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable."""
        return self.bb.emit(expr)

    def const(self, value: Any, dtype: str) -> Any:
        """Return a rank-0 constant."""
        return relax.const(value, dtype)

    def cast(self, expr: Any, dtype: str) -> Any:
        """Convert to a dtype by PyTorch's rules (to bool means: is not zero)."""
        if self.dtype(expr) == dtype:
            return expr
        if dtype == "bool":
            zero = self.const(0, self.dtype(expr))
            return self.emit(relax.op.not_equal(expr, zero))
        if dtype == "float16" and self.dtype(expr) == "float64":
            expr = self.cast(expr, "float32")  # PyTorch rounds twice
        if dtype == "bfloat16" and self.dtype(expr) != "bool":
            # TVM computes such values in float32 and drops the conversion there and back
            expr = self.elementwise(semantics.bfloat16_of, self.cast(expr, "float32"), name="rounded")
        if dtype in ("int8", "uint8", "int16") and is_float(self.dtype(expr)):
            # PyTorch keeps the last bits of a number that does not fit; LLVM leaves it open, and saturates where it has vectors
            expr = self.emit(relax.op.astype(expr, "int32"))
        return self.emit(relax.op.astype(expr, dtype))

    def operand(self, value: Any, dtype: str) -> Any:
        """Return a tensor or number as an expression of ``dtype``."""
        if isinstance(value, (bool, int, float)):
            return self.const(number(value, dtype), dtype)
        return self.cast(value, dtype)

    def reshape(self, expr: Any, shape: Sequence[int]) -> Any:
        """Reshape to a static shape."""
        if self.shape(expr) == tuple(shape):
            return expr
        return self.emit(relax.op.reshape(expr, tuple(int(s) for s in shape)))

    def call_te(self, fn: Callable[..., Any], *args: Any, name: str, fusible: bool = True) -> Any:
        """Emit a tensor expression as a kernel; ``args`` are tensors. One that is not fusible stays a kernel of its own."""
        attrs = {} if fusible else {"primfunc_attrs": {"op_pattern": OPAQUE}}
        return self.bb.emit_te(fn, *args, primfunc_name_hint=name, **attrs)

    def compute(self, fn: Callable[..., Any], *args: Any, name: str, shape: Sequence[int] | None = None) -> Any:
        """Emit a kernel with ``out[i...] = fn(tensors..., i...)``.

        ``fn`` gets the TE tensors, then the output's indices.
        """
        extent = tuple(self.type.shape if shape is None else shape)

        def build(*tensors: Any) -> Any:
            return te.compute(_extents(extent), lambda *i: fn(*tensors, *i), name=name)

        return self.call_te(build, *args, name=name)

    def elementwise(self, fn: Callable[..., Any], *args: Any, name: str, fusible: bool = True) -> Any:
        """Emit a kernel that applies ``fn`` to the broadcast elements of ``args`` (expressions)."""
        shapes = [self.shape(a) for a in args]
        extents = broadcast_shape(shapes)

        def build(*tensors: Any) -> Any:
            def element(*i: Any) -> Any:
                return fn(*(t(*broadcast_index(s, i, extents)) for t, s in zip(tensors, shapes)))

            return te.compute(_extents(extents), element, name=name)

        return self.call_te(build, *args, name=name, fusible=fusible)

    def binary(self, name: str, a: Any, b: Any, dtype: str) -> Any:
        """Emit ``relax.op.<name>`` with both operands of ``dtype``."""
        a, b = self.operand(a, dtype), self.operand(b, dtype)
        return self.emit(getattr(relax.op, name)(a, b))

    def common_dtype(self, *values: Any) -> str:
        """Return the dtype in which PyTorch computes with these operands."""
        metas = [v if isinstance(v, (bool, int, float)) else _meta(self.shape(v), self.dtype(v)) for v in values]
        tensors = [m for m in metas if isinstance(m, torch.Tensor)]
        result = torch.result_type(metas[0], metas[1]) if len(metas) > 1 else tensors[0].dtype
        return DTYPE_NAMES[result]


def _meta(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    # only the rank matters for type promotion
    return torch.empty((1,) * len(shape), dtype=TORCH_DTYPES[dtype], device="meta")


def _extents(shape: Sequence[int]) -> tuple[Any, ...]:
    return tuple(tirx.IntImm("int64", int(s)) for s in shape)


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of broadcast operands."""
    return np.broadcast_shapes(*shapes)  # PyTorch's imports sympy


def broadcast_index(shape: tuple[int, ...], index: Sequence[Any], extents: Sequence[int] = ()) -> list[Any]:
    """Return the index into a tensor of ``shape`` for a broadcast index.

    With the ``extents`` of the result, a dimension of one element that is not repeated keeps its index: TVM sees so that each element of
    the result is of one element of the tensor, and fuses such operators behind products.
    """
    tail, own = (list(t)[len(t) - len(shape) :] for t in (index, extents or [0] * len(index)))
    return [tirx.IntImm("int64", 0) if s == 1 and e != 1 else i for s, i, e in zip(shape, tail, own)]


def int64(value: int) -> Any:
    """Return a 64-bit immediate, the type of all indices here."""
    return tirx.IntImm("int64", value)


def pair(value: Any, n: int = 2, default: Any = None) -> list[int]:
    """Spread a number or list of one over ``n`` dimensions."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        value = default
    if isinstance(value, int):
        return [value] * n
    values = [int(v) for v in value]
    return values * n if len(values) == 1 else values


def axis_of(dim: int, rank: int) -> int:
    """Return a dimension counted from 0; rank 0 counts as rank 1."""
    return dim % max(rank, 1)


def axes_of(dim: Any, rank: int) -> list[int]:
    """Return sorted dimensions; none or an empty list means all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted({axis_of(d, rank) for d in dims} if rank else set())
