# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whole numbers that are known only at run time, as sums of multiples of a few others: so it is known which ones are one number.

What a division leaves over is such a sum too, ``n % k = n - k * (n // k)``, and each quotient is one number wherever it is computed. So
``n + -n % k`` is ``k`` times a quotient, a multiple of ``k`` that is no less than ``n``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dycl_tvm.frontend.trace.session import OfOneRun, current


@dataclass(frozen=True)
class Form:
    """A sum of multiples of other numbers (of which only the identity counts), and a constant.

    Attributes
    ----------
    terms : dict
        The factor of each number; none is zero.
    constant : int
    """

    terms: dict[Any, int]
    constant: int = 0

    def plus(self, other: Form, times: int = 1) -> Form:
        """Return the sum with so many times another."""
        terms = dict(self.terms)
        for root, factor in other.terms.items():
            terms[root] = terms.get(root, 0) + times * factor
        return Form({root: factor for root, factor in terms.items() if factor}, self.constant + times * other.constant)

    def over(self, k: int) -> Form:
        """Return the quotient by a positive number, rounded down."""
        whole = Form({root: f // k for root, f in self.terms.items() if f % k == 0}, self.constant // k)
        rest = {root: f for root, f in self.terms.items() if f % k}
        return whole.plus(*_quotient(rest, self.constant % k, k)) if rest else whole

    def bounds(self) -> tuple[int, int] | None:
        """Return between which numbers it is, if that follows from what its quotients are the quotients of."""
        terms = {root: Fraction(factor) for root, factor in self.terms.items()}
        low = high = Fraction(self.constant)
        while (root := next((r for r in terms if isinstance(r, _Quotient)), None)) is not None:
            times = terms.pop(root) / root.by  # a quotient is (dividend - rest) / by
            ends = [times * (root.dividend.constant - rest) for rest in (0, root.by - 1)]
            low, high = low + min(ends), high + max(ends)
            for other, factor in root.dividend.terms.items():
                terms[other] = terms.get(other, Fraction(0)) + times * factor
            terms = {other: factor for other, factor in terms.items() if factor}
        return None if terms else (math.ceil(low), math.floor(high))

    def of_one(self) -> tuple[Any, int, int]:
        """Return one number, a factor and a constant; of several terms it stands for their sum, without what all are multiples of."""
        if len(self.terms) == 1:
            root, factor = next(iter(self.terms.items()))
            return root, factor, self.constant
        by = math.gcd(*self.terms.values())
        terms = {root: f // by for root, f in self.terms.items()}
        key = frozenset((id(root), f) for root, f in terms.items())
        return current().get(_Known).sums.setdefault(key, _Sum(Form(terms))), by, self.constant

    @staticmethod
    def of(root: Any, factor: int, constant: int) -> Form:
        """Return a multiple of one number and a constant."""
        return Form({}, constant).plus(root.form, factor) if isinstance(root, _Sum) else Form({root: factor}, constant)


@dataclass(eq=False)
class _Sum:
    """A sum of several terms."""

    form: Form


@dataclass(eq=False)
class _Quotient:
    """A quotient that is no multiple of what it is computed of."""

    dividend: Form
    by: int


class _Known(OfOneRun):
    """The quotients and sums there are, and in which order numbers were met. Ids are those of numbers that the values keep alive."""

    def __init__(self) -> None:
        self.quotients: dict[Any, _Quotient] = {}
        self.sums: dict[Any, _Sum] = {}
        self.order: dict[Any, int] = {}


def _quotient(terms: dict[Any, int], constant: int, k: int) -> tuple[Form, int]:
    """Return a quotient rounded down, of which nothing can be taken out, and how often it counts: it is one or minus one time."""
    known = current().get(_Known)
    by = math.gcd(k, *terms.values())
    terms, constant, k = {root: f // by for root, f in terms.items()}, constant // by, k // by
    ordered = sorted(terms, key=lambda root: known.order.setdefault(root, len(known.order)))
    sign = 1
    if terms[ordered[0]] < 0:  # -(n // k) rounds up
        sign, terms, constant = -1, {root: -f for root, f in terms.items()}, k - 1 - constant
    if len(ordered) == 1 and isinstance(inner := ordered[0], _Quotient) and terms[inner] == 1:  # of a quotient
        made = inner.dividend.plus(Form({}, constant * inner.by)).over(inner.by * k)
        return made, sign
    key = (tuple((id(root), terms[root]) for root in ordered), constant, k)
    root = known.quotients.setdefault(key, _Quotient(Form({root: terms[root] for root in ordered}, constant), k))
    return Form({root: 1}), sign
