# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Factorisations of matrices; what is made of them stands in :mod:`dycl_tvm.compile.composed.linalg`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import tvm
from tvm import relax

from dycl_tvm.backends.tir_cpu.machine import machine_of
from dycl_tvm.backends.tir_cpu.matrices import Matrices
from dycl_tvm.compile.ops.context import CONVERTERS, NotConvertible, OpContext, converter, is_for_cpu

#: Factorisations that ATen has under no name, or only with signs that it leaves open: for what is made of them.
_OWN = torch.library.Library("dycl_tvm", "DEF")
_OWN.define("substituted(Tensor a, Tensor b, bool upper, bool unit) -> Tensor")
_OWN.define("cholesky(Tensor a) -> (Tensor, Tensor)")
_OWN.define("reflections(Tensor a) -> (Tensor, Tensor)")
_OWN.define("rotations(Tensor a) -> (Tensor, Tensor)")


def _reflections_of(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(a), a.new_empty((*a.shape[:-2], min(a.shape[-2:])))


def _rotations_of(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = a.to(torch.float64)
    return torch.empty_like(wide), wide.new_empty((*a.shape[:-2], a.shape[-1], a.shape[-1]))


_OWN.impl("substituted", lambda a, b, upper, unit: torch.empty_like(b), "Meta")
_OWN.impl("cholesky", lambda a: (torch.empty_like(a), a.new_empty(a.shape[:-2], dtype=torch.int32)), "Meta")
_OWN.impl("reflections", _reflections_of, "Meta")
_OWN.impl("rotations", _rotations_of, "Meta")


def _matrices(ctx: OpContext, a: Any) -> tuple[Matrices, Any]:
    """Return the kernels for an operand, and the operand as a batch of one dimension."""
    *batch, m, n = ctx.shape(a)
    dtype, target = ctx.dtype(a), tvm.target.Target.current()
    if dtype not in ("float32", "float64"):
        raise NotConvertible(f"a factorisation of matrices of {dtype}")
    if not is_for_cpu():
        raise NotConvertible("a factorisation of matrices on a GPU")
    count = math.prod(batch)
    return Matrices(count, m, n, dtype, machine_of(target or tvm.target.Target("llvm"))), ctx.reshape(a, (count, m, n))


def _call(ctx: OpContext, name: str, kernel: Any, operands: list[Any], results: Sequence[tuple[tuple[int, ...], str]]) -> list[Any]:
    """Emit a kernel; its results have the shapes that are given, without batches of several dimensions."""
    types = [relax.TensorType(shape, dtype) for shape, dtype in results]
    made = ctx.emit(relax.call_tir(ctx.bb.add_func(kernel, name), operands, types if len(types) > 1 else types[0]))
    return [ctx.emit(relax.TupleGetItem(made, k)) for k in range(len(types))] if len(types) > 1 else [made]


def _shaped(ctx: OpContext, results: list[Any]) -> tuple[Any, ...]:
    return tuple(r if t is None else ctx.reshape(r, t.shape) for r, t in zip(results, ctx.out))


@converter("linalg_lu_factor_ex.default")
def _lu_factor(ctx: OpContext, a: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    if not pivot:
        raise NotConvertible("a factorisation without pivots")
    of, flat = _matrices(ctx, a)
    shape = (of.count, of.m, of.n)
    results = [(shape, of.dtype), ((of.count, min(of.m, of.n)), "int32"), ((of.count,), "int32")]
    return _shaped(ctx, _call(ctx, "lu", of.lu(), [flat], results))


def _cholesky(ctx: OpContext, a: Any) -> Any:
    of, flat = _matrices(ctx, a)
    return _shaped(ctx, _call(ctx, "cholesky", of.cholesky(), [flat], [((of.count, of.n, of.n), of.dtype), ((of.count,), "int32")]))


def _substituted(ctx: OpContext, a: Any, b: Any, upper: bool, unit: bool) -> Any:
    of, flat = _matrices(ctx, a)
    shape = (of.count, of.n, ctx.shape(b)[-1])
    kernel = of.triangular(shape[-1], upper, unit)
    return _shaped(ctx, _call(ctx, "substituted", kernel, [flat, ctx.reshape(b, shape)], [(shape, of.dtype)]))


@converter("linalg_householder_product.default")
def _householder_product(ctx: OpContext, a: Any, tau: Any) -> Any:
    of, flat = _matrices(ctx, a)
    count = ctx.shape(tau)[-1]
    kernel = of.orthogonal(count)
    return _shaped(ctx, _call(ctx, "orthogonal", kernel, [flat, ctx.reshape(tau, (of.count, count))], [((of.count, of.m, of.n), of.dtype)]))


def _reflections(ctx: OpContext, a: Any) -> Any:
    of, flat = _matrices(ctx, a)
    results = [((of.count, of.m, of.n), of.dtype), ((of.count, min(of.m, of.n)), of.dtype)]
    return _shaped(ctx, _call(ctx, "reflections", of.reflections(), [flat], results))


def _rotations(ctx: OpContext, a: Any) -> Any:
    of, flat = _matrices(ctx, a)
    results = [((of.count, of.m, of.n), "float64"), ((of.count, of.n, of.n), "float64")]
    return _shaped(ctx, _call(ctx, "rotations", of.rotations(), [flat], results))


CONVERTERS["dycl_tvm.substituted.default"] = _substituted
CONVERTERS["dycl_tvm.cholesky.default"] = _cholesky
CONVERTERS["dycl_tvm.reflections.default"] = _reflections
CONVERTERS["dycl_tvm.rotations.default"] = _rotations
