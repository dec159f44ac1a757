# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known of numbers that were computed of others: sums and quotients (:mod:`.forms`), and products, of which factors are known.

So numbers that are equal in every run are known to be.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.forms import Form
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.hcfg.nodes import Value

#: A number, and lengths: their product.
Factors = tuple[int, tuple[Length, ...]]


class _Products(OfOneRun):
    """The first product of the same factors, and what the factors of such a product are."""

    def __init__(self) -> None:
        self.first: dict[Any, Value] = {}
        self.factors: dict[Value, Factors] = {}


def _root(length: Length) -> tuple[Any, int, int]:
    """Return a length by the first of the numbers that are known to be so far apart: equal ones are equal."""
    root, offset = length.counter.base or (length.counter.value, 0)
    return root, length.factor, length.constant + length.factor * offset


def form_of(x: Any) -> Form | None:
    """Return a whole number as a sum of others; None if it is not known to be small enough for one."""
    if type(x) is int:
        return Form({}, x)
    if not isinstance(x, torch.SymInt) or x.node.bounds is None:
        return None
    if x.node.length is not None:
        return Form.of(*_root(x.node.length))
    root, offset = x.node.base
    return x.node.form or Form.of(root, 1, offset)


def form_after(op: str, a: Any, b: Any) -> Form | None:
    """Return what an operation makes of two numbers, as a sum; None if it is none, or not known to be one."""
    of_a, of_b = form_of(a), form_of(b)
    if of_a is None or of_b is None:
        return None
    if op in ("add", "sub"):
        return of_a.plus(of_b, 1 if op == "add" else -1)
    if op == "mul" and not (of_a.terms and of_b.terms):
        sum_, times = (of_a, of_b.constant) if of_a.terms else (of_b, of_a.constant)
        return Form({}).plus(sum_, times)
    if op in ("floordiv", "mod") and not of_b.terms and of_b.constant > 0:
        least, most = [n // of_b.constant for n in ((a, a) if type(a) is int else a.node.bounds)]
        quotient = Form({}, least) if least == most else of_a.over(of_b.constant)
        return quotient if op == "floordiv" else of_a.plus(quotient, -of_b.constant)
    return None


def note_sum(made: Any, op: str, a: Any, b: Any) -> int | None:
    """Let what was computed of two numbers be known as a sum of others, and what follows from that; return it if it is a plain number."""
    form = form_after(op, a, b) if made.node.bounds is not None else None
    if form is None:
        return None
    ends = form.bounds()
    if ends is not None and ends[0] == ends[1]:
        return ends[0]
    made.node.form = form
    root, factor, constant = form.of_one()
    if factor == 1:
        made.node.base = (root, constant)
    if ends is not None:
        made.node.bounds = (max(ends[0], made.node.bounds[0]), min(ends[1], made.node.bounds[1]))
    return None


def difference_of(a: Any, b: Any) -> tuple[int, int] | None:
    """Return the least and the most by which one number may be larger than another; None if that is not known."""
    form = form_after("sub", a, b)
    return None if form is None else form.bounds()


def factors_of(extent: Length | int) -> Factors:
    """Return what a length is the product of: itself, if nothing else is known."""
    if isinstance(extent, int):
        return extent, ()
    root, factor, constant = _root(extent)
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
    factors = of_a[0] * of_b[0], (*of_a[1], *of_b[1])
    products = current().get(_Products)
    first = products.first.setdefault(_key(factors), made.node.value)
    products.factors.setdefault(first, factors)
    made.node.base = (first, 0)


def note_quotient(made: Any, a: Any, b: Any) -> None:
    """Let a quotient of products, of which one has all factors of the other, be known as the product of those that are left."""
    of_a, of_b = _factors(a), _factors(b)
    if of_a is None or of_b is None:
        return
    (n, lengths), (by, more) = without(of_a, of_b)
    if more or by < 1 or n < 1 or n % by or not lengths:
        return
    left = n // by, lengths
    root, factor, constant = _root(lengths[0])
    if left[0] == factor == len(lengths) == 1:
        made.node.base = (root, constant)
    elif (first := current().get(_Products).first.get(_key(left))) is not None:
        made.node.base = (first, 0)
    ends = [left[0] * math.prod(length.bounds[k] for length in lengths) for k in (0, 1)]
    if all(length.bounds[0] >= 0 for length in lengths):
        known = made.node.bounds or ends
        made.node.bounds = max(known[0], ends[0]), min(known[1], ends[1])


def _key(factors: Factors) -> Any:
    """Return what is equal for products of the same factors."""
    return factors[0], tuple(sorted((id(root), factor, constant) for root, factor, constant in map(_root, factors[1])))


def without(factors: Factors, taken: Factors) -> tuple[Factors, Factors]:
    """Return what is left of two products of which the lengths that both have are taken away."""
    left, rest = [], list(taken[1])
    for n in factors[1]:
        same = next((m for m in rest if _root(m) == _root(n)), None)
        if same is None:
            left.append(n)
        else:
            rest.remove(same)
    return (factors[0], tuple(left)), (taken[0], tuple(rest))
