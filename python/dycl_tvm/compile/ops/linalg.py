# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Factorisations of matrices: kernels in C++ (``src/runtime/matrices.h``), of real and of complex numbers.

ATen has them under no name, or with signs that it leaves open; what is made of them stands in :mod:`dycl_tvm.compile.composed.linalg`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm import relax

from dycl_tvm.compile.complex.pair import COMPLEX, Pair
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import CONVERTERS, NotConvertible, OpContext
from dycl_tvm.compile.templates import symbol_of

_OWN = torch.library.Library("dycl_tvm", "DEF")
#: What a result holds: numbers of the matrix's type, their sizes, or integers.
_SAME, _REAL, _INT = "same", "real", "int"

#: The shapes of the operands to those of the results, and what these hold.
_Results = Callable[..., list[tuple[tuple[int, ...], str]]]


def _factorisation(name: str, schema: str, results: _Results) -> None:
    """Define an operator of the namespace ``dycl_tvm``, which calls the template of its name; ``.pairs`` has complex numbers as pairs."""

    def meta(pairs: bool, *args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        shapes = results(*(t.shape[:-1] if pairs else t.shape for t in tensors))
        plain = tensors[0].dtype.to_real() if tensors[0].is_complex() else tensors[0].dtype
        types = {_SAME: tensors[0].dtype, _REAL: plain, _INT: torch.int32}
        ends = {_SAME: (2,) if pairs else (), _REAL: (), _INT: ()}
        made = tuple(torch.empty((*shape, *ends[kind]), dtype=types[kind], device="meta") for shape, kind in shapes)
        return made if len(made) > 1 else made[0]

    def convert(pairs: bool, ctx: OpContext, *args: Any) -> Any:
        if not semantics.is_for_cpu():
            raise NotConvertible("a factorisation of matrices on a GPU")
        tensors = [a for a in args if isinstance(a, tvm.ir.Expr)]
        dtype = ctx.dtype(tensors[0])
        if dtype not in ("float32", "float64"):
            raise NotConvertible(f"a factorisation of matrices of {dtype}")
        numbers = {"float32": "complex64", "float64": "complex128"}[dtype] if pairs else dtype
        template = "".join(word.capitalize() for word in name.split("_"))
        symbol = symbol_of("matrix", template, [numbers], [a for a in args if isinstance(a, bool)])
        shapes = results(*(ctx.shape(t)[:-1] if pairs else ctx.shape(t) for t in tensors))
        types = [
            relax.TensorType((*shape, 2) if pairs and kind == _SAME else shape, "int32" if kind == _INT else dtype)
            for shape, kind in shapes
        ]
        made = ctx.emit(relax.call_dps_packed(symbol, relax.Tuple(tensors), types if len(types) > 1 else types[0]))
        return tuple(ctx.emit(relax.TupleGetItem(made, k)) for k in range(len(types))) if len(types) > 1 else made

    def of_pairs(*args: Any) -> Any:
        joined = [torch.stack([a.re, a.im], -1) if isinstance(a, Pair) else a for a in args]
        made = getattr(torch.ops.dycl_tvm, name).pairs(*joined)
        kinds = [kind for _, kind in results(*(a.re.shape for a in args if isinstance(a, Pair)))]
        parted = [Pair(t[..., 0], t[..., 1]) if k == _SAME else t for t, k in zip(made if len(kinds) > 1 else [made], kinds)]
        return tuple(parted) if len(kinds) > 1 else parted[0]

    for overload, pairs in (("", False), (".pairs", True)):
        _OWN.define(f"{name}{overload}{schema}")
        _OWN.impl(f"{name}{overload}", lambda *args, p=pairs: meta(p, *args), "Meta")
        CONVERTERS[f"dycl_tvm.{name}{overload or '.default'}"] = lambda ctx, *args, p=pairs: convert(p, ctx, *args)
    COMPLEX[f"dycl_tvm.{name}.default"] = of_pairs


Shape = tuple[int, ...]


def _least(a: Shape) -> Shape:
    return (*a[:-2], min(a[-2:]))


_factorisation("lu", "(Tensor a) -> (Tensor, Tensor, Tensor)", lambda a: [(a, _SAME), (_least(a), _INT), (a[:-2], _INT)])
_factorisation("triangular", "(Tensor a, Tensor b, bool upper, bool unit) -> Tensor", lambda a, b: [(b, _SAME)])
_factorisation("cholesky", "(Tensor a) -> (Tensor, Tensor)", lambda a: [(a, _SAME), (a[:-2], _INT)])
_factorisation("reflections", "(Tensor a) -> (Tensor, Tensor)", lambda a: [(a, _SAME), (_least(a), _SAME)])
_factorisation("orthogonal", "(Tensor a, Tensor tau) -> Tensor", lambda a, tau: [(a, _SAME)])
_factorisation("eigh", "(Tensor a) -> (Tensor, Tensor)", lambda a: [(a[:-1], _REAL), (a, _SAME)])
for _name, _full in (("svd", False), ("svd_complete", True)):
    _factorisation(
        _name,
        "(Tensor a) -> (Tensor, Tensor, Tensor)",
        lambda a, full=_full: [
            ((*a[:-1], a[-2] if full else a[-1]), _SAME),
            ((*a[:-2], a[-1]), _REAL),
            ((*a[:-2], a[-1], a[-1]), _SAME),
        ],
    )
