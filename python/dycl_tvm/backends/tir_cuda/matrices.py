# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of products of two factors as products of matrices.

Whatever adds up products of two factors is a product of matrices once its axes are sorted: axes of both factors are the *batch*, those
of one its *rows*, those of the other its *columns*, what is added up are the *terms*. A convolution's rows are its filters, its columns the
pixels of all images, its terms channels and taps; the matrix of patches is never stored, its elements are computed where they are
copied to shared memory (padding and other work on the image with them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from dycl_tvm.backends.tir_cpu.reading.stages import Stage, inlined, loads_of, read_stages, uses


@dataclass(frozen=True)
class Axes:
    """Axes that count as one, the last one fastest."""

    variables: tuple[Any, ...]
    extents: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values they have together."""
        return math.prod(self.extents)

    def at(self, number: Any) -> list[Any]:
        """Return the value of each axis where they are at ``number`` together."""
        values = []
        for k, extent in enumerate(self.extents):
            inner = math.prod(self.extents[k + 1 :])
            value = number if inner == 1 else tirx.floordiv(number, whole(inner))
            leads = math.prod(self.extents[:k]) == 1
            values.append(whole(0) if extent == 1 else value if leads else tirx.floormod(value, whole(extent)))
        return values


@dataclass(frozen=True)
class Factor:
    """A factor of a product, as an expression of a narrow type; ``terms_last``: neighbouring terms are neighbours in memory."""

    value: Any
    terms_last: bool


@dataclass(frozen=True)
class Product:
    """``left[batch, row, term] * right[batch, column, term]`` added up over the terms, then ``finish`` (a stage) if there is one."""

    batch: Axes
    rows: Axes
    columns: Axes
    terms: Axes
    left: Factor
    right: Factor
    total: Stage
    finish: Stage | None


def read_product(fn: Any, sums: str, narrow: Callable[[Any], Any]) -> Product | None:
    """Return the product that a function computes, or None.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled.
    sums : str
        The type in which is added up.
    narrow : callable
        Returns a factor, of that type, as an expression of the type in which it is multiplied; None where it cannot be one.
    """
    stages = read_stages(fn)
    stages = None if stages is None else inlined(stages)
    if stages is None or not 1 <= len(stages) <= 2 or not stages[0].reduced or (len(stages) == 2 and stages[1].reduced):
        return None
    total, finish = stages[0], stages[1] if len(stages) == 2 else None
    if not (finish or total).out.same_as(fn.params[-1]) or (finish is not None and places_of(total, finish) is None):
        return None
    factors = _factors(total, sums, narrow)
    if factors is None:
        return None
    used = [[uses(f, [v]) for v in total.axes] for f in factors]
    kinds = [(a, b) if extent > 1 else (True, True) for a, b, extent in zip(*used, total.extents)]
    if (False, False) in kinds:
        return None

    def axes(kind: tuple[bool, bool]) -> Axes:
        chosen = [k for k, found in enumerate(kinds) if found == kind]
        return Axes(tuple(total.axes[k] for k in chosen), tuple(total.extents[k] for k in chosen))

    # the columns are neighbours in memory: they have the last axis of the result
    last = next((kind for kind in reversed(kinds) if kind != (True, True)), None)
    if last is None:
        return None
    order = (1, 0) if last == (True, False) else (0, 1)
    rows, columns = axes((last[1], last[0])), axes(last)
    left, right = (Factor(factors[k], _terms_last(factors[k], own.variables)) for k, own in zip(order, (rows, columns)))
    return Product(axes((True, True)), rows, columns, Axes(total.reduced, total.windows), left, right, total, finish)


def inner_last(product: Product, unit: int) -> Product:
    """Return a product with its terms in an order in which ``unit`` neighbours are of one axis, the last one, where there is such an order.

    A convolution's last axis are its channels: the places in the image are computed once for so many of them.
    """
    terms = product.terms
    fits = [k for k, extent in enumerate(terms.extents) if extent % unit == 0]
    if not fits:
        return product
    last = max(fits, key=lambda k: (terms.extents[k], k))
    order = [*(k for k in range(len(terms.extents)) if k != last), last]
    return replace(product, terms=Axes(tuple(terms.variables[k] for k in order), tuple(terms.extents[k] for k in order)))


def lie_together(factor: Factor, terms: Axes) -> bool:
    """Whether the terms of a factor are neighbours in memory, in their order, from a multiple of their number on."""
    if not hasattr(factor.value, "source") or len(factor.value.indices) < len(terms.variables):
        return False
    count = len(terms.variables)
    lead, inner = factor.value.indices[:-count], factor.value.indices[-count:]
    shape = [int(size) for size in factor.value.source.shape[-count:]]
    same = all(
        i.same_as(v) or (extent == 1 and not uses(i, terms.variables)) for i, v, extent in zip(inner, terms.variables, terms.extents)
    )
    return same and shape == list(terms.extents) and not any(uses(i, terms.variables) for i in lead)


def _factors(total: Stage, sums: str, narrow: Callable[[Any], Any]) -> list[Any] | None:
    """Return the two factors as they are multiplied; None where others were added up, or in another type, or not products."""
    value = total.value
    if str(total.out.dtype) != sums or not isinstance(value, tirx.Add) or not isinstance(total.init, (tirx.FloatImm, tirx.IntImm)):
        return None
    for before, product in ((value.a, value.b), (value.b, value.a)):
        if isinstance(product, tirx.Mul) and getattr(before, "source", None) is not None and before.source.same_as(total.out):
            found = [narrow(f) for f in (product.a, product.b)]
            return None if total.init.value != 0 or any(f is None or _reads(f, total.out) for f in found) else found
    return None


def _reads(expr: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in loads_of(expr))


def _terms_last(factor: Any, own: Sequence[Any]) -> bool:
    """Whether the last index of what is loaded that is an index at all does not move with the factor's own axes."""
    for load in loads_of(factor):
        indices = [i for i, size in zip(load.indices, load.source.shape) if int(size) > 1]
        if indices:
            return not uses(indices[-1], own)
    return False


def places_of(total: Stage, finish: Stage) -> list[Any] | None:
    """Return, for each axis of a stage that follows a product element by element, the product's axis; None where it does not."""
    found: list[Any] = [None] * len(finish.axes)
    for load in loads_of(finish.value):
        if not load.source.same_as(total.out):
            continue
        here: list[Any] = [None] * len(finish.axes)
        for k, index in enumerate(load.indices):
            place = next((n for n, axis in enumerate(finish.axes) if index.same_as(axis)), None)
            if place is None:
                if not (isinstance(index, tirx.IntImm) and int(index) == 0 and total.extents[k] == 1):
                    return None
            elif here[place] is not None or finish.extents[place] != total.extents[k]:
                return None
            else:
                here[place] = k
        if found != here and any(f is not None for f in found):
            return None
        found = here
    return found if all(k is not None or extent == 1 for k, extent in zip(found, finish.extents)) else None


def whole(value: int) -> Any:
    """Return a number as TVM has indices."""
    return tirx.IntImm("int64", value)
