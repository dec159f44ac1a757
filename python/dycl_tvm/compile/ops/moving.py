# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elements that are moved together and apart (:mod:`dycl_tvm.hcfg.moving`): kernels in C++ on CPUs, made of other operators elsewhere."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from dycl_tvm.compile.complex import COMPLEX, Pair
from dycl_tvm.compile.decompose import DECOMPOSITIONS
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import CONVERTERS, NotConvertible, OpContext
from dycl_tvm.compile.templates import symbol_of
from dycl_tvm.hcfg.moving import APART, TOGETHER, apart, together

_KIND = "moving"
_FUNCTIONS = {TOGETHER: "Together", APART: "Apart"}


def _symbol(function: str, dims: list[int], fills: bool) -> str:
    return symbol_of(_KIND, function, params=[sum(1 << d for d in dims), fills])


def _moved(ctx: OpContext, x: Any, lengths: list[Any], dims: list[int], shape: tuple[int, ...]) -> Any:
    if not semantics.is_for_cpu():
        raise NotConvertible("there is no kernel in C++")
    if not math.prod(shape) or not math.prod(ctx.shape(x)):
        raise NotConvertible("a tensor without elements")
    symbol = _symbol(_FUNCTIONS[ctx.op], dims, True)
    return ctx.emit(relax.call_dps_packed(symbol, relax.Tuple([x, *lengths]), relax.TensorType(shape, ctx.dtype(x))))


CONVERTERS[TOGETHER] = lambda ctx, x, lengths, dims: _moved(ctx, x, lengths, dims, (math.prod(ctx.shape(x)),))
CONVERTERS[APART] = lambda ctx, x, lengths, dims, shape: _moved(ctx, x, lengths, dims, tuple(shape))
DECOMPOSITIONS.update({TOGETHER: together, APART: apart})
COMPLEX[TOGETHER] = lambda x, *args: Pair(together(x.re, *args), together(x.im, *args))
COMPLEX[APART] = lambda x, *args: Pair(apart(x.re, *args), apart(x.im, *args))
