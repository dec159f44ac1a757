# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of complex matrices: four products of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.compile.complex.pair import COMPLEX, Pair, complex_operator, pair_of


def product(fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Pair:
    """Return a product that is linear in both factors; one of them may be real."""
    if not isinstance(a, Pair):
        return b.map(lambda part: fn(a, part))
    if not isinstance(b, Pair):
        return a.map(lambda part: fn(part, b))
    return Pair(fn(a.re, b.re) - fn(a.im, b.im), fn(a.re, b.im) + fn(a.im, b.re))


def _of(name: str, fn: Callable[[Any, Any], Any]) -> None:
    COMPLEX[f"aten.{name}.default"] = lambda a, b: product(fn, a, b)


for _name in ("mm", "bmm", "mv", "dot", "matmul"):
    _of(_name, getattr(torch, _name))


@complex_operator("vdot.default")
def _vdot(a: Pair, b: Pair) -> Pair:
    return product(torch.dot, a.conj(), b)


def _plus(names: str, fn: Callable[[Any, Any], Any]) -> None:
    def add(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Pair:
        made = product(fn, a, b)
        made = made if alpha == 1 else made * pair_of(alpha)
        if beta == 0:
            return made
        return made + (pair_of(x) if beta == 1 else pair_of(x) * pair_of(beta))

    COMPLEX[f"aten.{names}.default"] = add


for _name, _fn in (("addmm", torch.mm), ("baddbmm", torch.bmm), ("addmv", torch.mv), ("addr", torch.outer)):
    _plus(_name, _fn)


@complex_operator("linear.default")
def _linear(x: Any, weight: Any, bias: Any = None) -> Pair:
    made = product(torch.nn.functional.linear, x, weight)
    return made if bias is None else made + pair_of(bias)


@complex_operator("convolution.default")
def _convolution(x: Any, weight: Any, bias: Any, *rest: Any) -> Pair:
    made = product(lambda a, b: torch.ops.aten.convolution(a, b, None, *rest), x, weight)
    if bias is None:
        return made
    shape = [1, -1] + [1] * (made.re.dim() - 2)
    return made + pair_of(bias).map(lambda t: t.reshape(shape))
