# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of numbers that are known only at run time: which numbers each was computed of, so that equal ones are known to be equal."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.lengths import root_of
from dycl_tvm.hcfg.nodes import Value

#: A number, and how often others are added to it.
Terms = tuple[int, dict[Value, int]]


class _Sums(OfOneRun):
    """The first sum of the same terms, with the number in it, and what the terms of such a sum are."""

    def __init__(self) -> None:
        self.first: dict[frozenset[tuple[Value, int]], tuple[Value, int]] = {}
        self.terms: dict[Value, Terms] = {}


def _terms(x: Any) -> Terms:
    """Return the terms of a number of the run, or of a plain one."""
    if type(x) is int:
        return x, {}
    root, factor, constant = (x.node.base[0], 1, x.node.base[1]) if x.node.length is None else root_of(x.node.length)
    own, others = current().get(_Sums).terms.get(root, (0, {root: 1}))
    return constant + factor * own, {value: factor * often for value, often in others.items()}


def sum_of(op: str, a: Any, b: Any) -> Terms | None:
    """Return the terms of a sum (``add``), or of a difference (``sub``), of two ints; None for anything else."""
    if op not in ("add", "sub") or not all(type(x) is int or (isinstance(x, torch.SymInt) and x.node.mixed is None) for x in (a, b)):
        return None
    sign = 1 if op == "add" else -1
    (constant, terms), (more, others) = _terms(a), _terms(b)
    for value, often in others.items():
        terms[value] = terms.get(value, 0) + sign * often
    return constant + sign * more, {value: often for value, often in terms.items() if often}


def note_sum(made: Any, terms: Terms | None) -> None:
    """Let a number be known as a sum of the same terms that was computed before, or as one of them."""
    constant, values = terms or (0, {})
    if list(values.values()) == [1]:
        made.node.base = (next(iter(values)), constant)
    elif values:
        sums = current().get(_Sums)
        first, own = sums.first.setdefault(frozenset(values.items()), (made.node.value, constant))
        sums.terms.setdefault(first, (own, values))
        made.node.base = (first, constant - own)
