# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of numbers that are known only at run time: which numbers each was computed of, so that equal ones are known to be equal."""

from __future__ import annotations

import math
from typing import Any

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.lengths import Length, root_of
from dycl_tvm.hcfg.nodes import Value

#: A number, and lengths: their product.
Factors = tuple[int, tuple[Length, ...]]


class _Products(OfOneRun):
    """The first product of the same factors, and what the factors of such a product are."""

    def __init__(self) -> None:
        self.first: dict[Any, Value] = {}
        self.factors: dict[Value, Factors] = {}


def factors_of(extent: Length | int) -> Factors:
    """Return what a length is the product of: itself, if nothing else is known."""
    if isinstance(extent, int):
        return extent, ()
    root, factor, constant = root_of(extent)
    found = None if constant else current().get(_Products).factors.get(root)
    if found is not None:
        return factor * found[0], found[1]
    by = math.gcd(extent.factor, extent.constant)
    return by, (Length(extent.counter, extent.factor // by, extent.constant // by),)


def _factors(x: Any) -> Factors | None:
    """Return the factors of a number of the run, or of a plain one; None if it is no length."""
    if type(x) is int:
        return x, ()
    if x.node.length is not None:
        return factors_of(x.node.length)
    root, offset = x.node.base
    return current().get(_Products).factors.get(root) if not offset else None


def note_product(made: Any, a: Any, b: Any) -> None:
    """Let a product of two numbers be known as one of the same factors that was computed before."""
    of_a, of_b = _factors(a), _factors(b)
    if of_a is None or of_b is None:
        return
    number, lengths = of_a[0] * of_b[0], (*of_a[1], *of_b[1])
    products = current().get(_Products)
    key = (number, tuple(sorted((id(root), factor, constant) for root, factor, constant in map(root_of, lengths))))
    first = products.first.setdefault(key, made.node.value)
    products.factors.setdefault(first, (number, lengths))
    made.node.base = (first, 0)


def without(factors: Factors, taken: Factors) -> tuple[Factors, Factors]:
    """Return what is left of two products of which the lengths that both have are taken away."""
    left, rest = [], list(taken[1])
    for n in factors[1]:
        same = next((m for m in rest if root_of(m) == root_of(n)), None)
        if same is None:
            left.append(n)
        else:
            rest.remove(same)
    return (factors[0], tuple(left)), (taken[0], tuple(rest))
