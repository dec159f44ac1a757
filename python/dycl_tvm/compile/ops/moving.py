# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elements that are moved together and apart (:mod:`dycl_tvm.hcfg.moving`): kernels in C++ on CPUs, made of other operators elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax

from dycl_tvm.compile.decompose import DECOMPOSITIONS
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.ops.context import CONVERTERS, NotConvertible, OpContext
from dycl_tvm.compile.templates import called_by, symbol_of
from dycl_tvm.hcfg.moving import APART, TOGETHER, apart, together

_KIND = "moving"
_FUNCTIONS = {TOGETHER: "Together", APART: "Apart"}


@dataclass(frozen=True)
class Moving:
    """A kernel that moves elements.

    Attributes
    ----------
    together : bool
        Else it moves them apart.
    dims : tuple of int
        The dimensions of the buffer that have a length: each length is an operand, behind the elements.
    fills : bool
        Whether there are zeros where nothing was moved to; else nothing is written there.
    """

    together: bool
    dims: tuple[int, ...]
    fills: bool = True

    @property
    def symbol(self) -> str:
        """The symbol of the kernel."""
        function = _FUNCTIONS[TOGETHER if self.together else APART]
        return symbol_of(_KIND, function, params=[sum(1 << d for d in self.dims), self.fills])


def moving_of(symbol: str) -> Moving | None:
    """Return how a kernel moves elements, by its symbol; None for any other."""
    found = called_by(symbol)
    if found is None or found[0] != _KIND:
        return None
    bits, fills = (int(n) for n in found[2])
    return Moving(found[1] == _FUNCTIONS[TOGETHER], tuple(d for d in range(bits.bit_length()) if bits >> d & 1), bool(fills))


def _moved(ctx: OpContext, x: Any, lengths: list[Any], dims: list[int], shape: tuple[int, ...]) -> Any:
    if not semantics.is_for_cpu():
        raise NotConvertible("there is no kernel in C++")
    if not math.prod(shape) or not math.prod(ctx.shape(x)):
        raise NotConvertible("a tensor without elements")
    symbol = Moving(ctx.op == TOGETHER, tuple(dims)).symbol
    return ctx.emit(relax.call_dps_packed(symbol, relax.Tuple([x, *lengths]), relax.TensorType(shape, ctx.dtype(x))))


CONVERTERS[TOGETHER] = lambda ctx, x, lengths, dims: _moved(ctx, x, lengths, dims, (math.prod(ctx.shape(x)),))
CONVERTERS[APART] = lambda ctx, x, lengths, dims, shape: _moved(ctx, x, lengths, dims, tuple(shape))
DECOMPOSITIONS.update({TOGETHER: together, APART: apart})
