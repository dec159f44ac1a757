# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The lowering of scans and sorting over the middle axis of (lead, n, tail): loops of their own on a CPU, reductions on a GPU.

A GPU's schedules know reductions: a scan is a triangular one, and the place of an element in the order is the number of elements that
come before it. Both are quadratic in n, and parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx

from dycl_tvm.backends.tir_cpu.families import scan, sort
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import int64


def _cpu() -> Any:
    """Return the CPU that is compiled for, or None."""
    target = tvm.target.Target.current()
    return machine_of(target) if target is not None and str(target.kind) == "llvm" else None


def _shape(expr: Any) -> tuple[int, int, int]:
    lead, n, tail = (int(d) for d in expr.ty.shape)
    return lead, n, tail


def _call(bb: Any, name: str, kernel: Any, x: Any, type_: Any) -> Any:
    return relax.call_tir(bb.add_func(kernel, name), [x], list(type_.fields) if isinstance(type_, relax.TupleType) else type_)


def _scan(name: str, identity: int, combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def triangular(t: Any) -> Any:
        n, dtype = t.shape[1], str(t.dtype)
        k = te.reduce_axis((int64(0), n), name="k")
        reducer = te.comm_reducer(combine, lambda t: tirx.const(identity, t), name=name)
        first = tirx.const(identity, dtype)
        return te.compute(t.shape, lambda a, i, b: reducer(tirx.Select(k <= i, t(a, k, b), first), axis=k), name=name)

    def legalize(bb: Any, call: Any) -> Any:
        x, machine = call.args[0], _cpu()
        if machine is None:
            return bb.call_te(triangular, x, primfunc_name_hint=name)
        kernel = scan.kernel(*_shape(x), str(call.ty.dtype.dtype), identity, combine, machine)
        return _call(bb, name, kernel, x, call.ty)

    return legalize


def _topk(bb: Any, call: Any) -> Any:
    """The first k elements in order and where they are, stable, NaN the largest."""
    x, machine, attrs = call.args[0], _cpu(), call.attrs
    k, descending = int(attrs.k), bool(attrs.largest)
    values, indices = str(attrs.ret_type) != "indices", str(attrs.ret_type) != "values"
    if machine is None:
        return _by_ranks(bb, x, k, descending, values, indices)
    assert k == _shape(x)[1], "the first k are taken by a kernel in C++"
    kernel = sort.kernel(*_shape(x), str(x.ty.dtype.dtype), descending, values, indices, machine)
    return _call(bb, "sort", kernel, x, call.ty)


def _by_ranks(bb: Any, x: Any, k: int, descending: bool, values: bool, indices: bool) -> Any:
    lead, n, tail = (int64(d) for d in _shape(x))
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def before(a: Any, b: Any, ia: Any, ib: Any) -> Any:
        """Whether element a (at ia) comes before element b (at ib)."""
        less = a > b if descending else a < b
        same = a == b
        if "float" in semantics.dtype_of(a):
            na, nb = semantics.is_nan(a), semantics.is_nan(b)
            less = tirx.Or(less, tirx.And(na, tirx.Not(nb)) if descending else tirx.And(tirx.Not(na), nb))
            same = tirx.Or(same, tirx.And(na, nb))
        return tirx.Or(less, tirx.And(same, ia < ib))

    def ranks(t: Any) -> Any:
        j = te.reduce_axis((zero, n), name="k")
        return te.compute(
            (lead, n, tail), lambda a, i, b: te.sum(tirx.Select(before(t(a, j, b), t(a, i, b), j, i), one, zero), axis=j), name="rank"
        )

    def positions(r: Any) -> Any:
        j = te.reduce_axis((zero, n), name="k")
        return te.compute((lead, int64(k), tail), lambda a, i, b: te.sum(tirx.Select(r(a, j, b) == i, j, zero), axis=j), name="argsort")

    def taken(t: Any, j: Any) -> Any:
        return te.compute((lead, int64(k), tail), lambda a, i, b: t(a, j(a, i, b), b), name="sorted")

    rank = bb.emit(bb.call_te(ranks, x, primfunc_name_hint="rank"))
    index = bb.emit(bb.call_te(positions, rank, primfunc_name_hint="argsort"))
    if not values:
        return index
    value = bb.emit(bb.call_te(taken, x, index, primfunc_name_hint="sorted"))
    return relax.Tuple([value, index]) if indices else value


LEGALIZE: dict[str, Callable[..., Any]] = {
    "relax.cumsum": _scan("cumsum", 0, lambda a, b: a + b),
    "relax.cumprod": _scan("cumprod", 1, lambda a, b: a * b),
    "relax.topk": _topk,
}
