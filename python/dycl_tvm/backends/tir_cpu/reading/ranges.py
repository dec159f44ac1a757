# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Deciding integer expressions of loop variables over whole ranges, by evaluating them everywhere.

Conditions of padding and windows (``0 <= 2 * h + r - 1 < 9``) hold in most of an operator's output. Where they do is found out
here exactly, for any expression, instead of by symbolic proof: the ranges are those of spatial dimensions and windows, so small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Call, Var

#: Grid points beyond which an expression is left undecided.
_MAX_POINTS = 1 << 18

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod,
    tirx.Min: np.minimum, tirx.Max: np.maximum, tirx.LT: np.less, tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal,
    tirx.EQ: np.equal, tirx.NE: np.not_equal, tirx.And: np.logical_and, tirx.Or: np.logical_or,
}  # fmt: skip


class Decidable:
    """An integer or boolean expression of loop variables, ready for evaluation.

    Attributes
    ----------
    variables : list of Var
        What it depends on.
    """

    def __init__(self, expr: Any) -> None:
        self.expr = expr
        self.variables: list[Any] = []
        self._known: dict[tuple[Any, ...], Any] = {}
        self._evaluate = self._compiled(expr)

    def _compiled(self, expr: Any) -> Callable[[Sequence[Any]], Any] | None:
        if isinstance(expr, tirx.IntImm):
            number = int(expr)
            return lambda env: number
        if isinstance(expr, Var):
            place = next((k for k, v in enumerate(self.variables) if v.same_as(expr)), None)
            if place is None:
                place = len(self.variables)
                self.variables.append(expr)
            return lambda env: env[place]
        if type(expr) in _BINARY:
            fn, a, b = _BINARY[type(expr)], self._compiled(expr.a), self._compiled(expr.b)
            return None if a is None or b is None else lambda env: fn(a(env), b(env))
        if isinstance(expr, tirx.Not):
            operand = self._compiled(expr.a)
            return None if operand is None else lambda env: np.logical_not(operand(env))
        if isinstance(expr, tirx.Cast) and "int" in str(expr.ty.dtype) and "int" in str(expr.value.ty.dtype):
            return self._compiled(expr.value)
        if isinstance(expr, tirx.Select) or is_conditional(expr):
            c, t, f = [self._compiled(e) for e in branches(expr)]
            return None if c is None or t is None or f is None else lambda env: np.where(c(env), t(env), f(env))
        return None

    def value(self, box: Mapping[Any, tuple[int, ...]]) -> int | None:
        """Return the value if it is the same everywhere in ``box`` (values that each variable takes), else None."""
        if self._evaluate is None or any(v not in box for v in self.variables):
            return None
        ranges = tuple(box[v] for v in self.variables)
        if ranges not in self._known:
            self._known[ranges] = self._constant(ranges)
        return self._known[ranges]

    def _constant(self, ranges: tuple[tuple[int, ...], ...]) -> int | None:
        if np.prod([len(r) for r in ranges], dtype=float) > _MAX_POINTS:
            return None
        assert self._evaluate is not None
        values = np.asarray(self._evaluate(np.ix_(*ranges) if ranges else ()))
        first = values.flat[0]
        return int(first) if (values == first).all() else None


def is_conditional(expr: Any) -> bool:
    """Whether an expression is a call of ``if_then_else``."""
    return isinstance(expr, Call) and str(getattr(expr.op, "name", "")).endswith(".if_then_else")


def branches(expr: Any) -> tuple[Any, Any, Any]:
    """Return (condition, value if true, value if false) of a ``Select`` or ``if_then_else``."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    condition, true, false = expr.args
    return condition, true, false


def conjunction(expr: Any) -> list[Any]:
    """Return the conditions that are joined by ``and``."""
    if isinstance(expr, tirx.And):
        return conjunction(expr.a) + conjunction(expr.b)
    return [expr]


class Decider:
    """Decides expressions, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Decidable] = {}

    def __call__(self, expr: Any, box: Mapping[Any, tuple[int, ...]]) -> int | None:
        """Return the value of ``expr`` if it is one in all of ``box``."""
        return self.of(expr).value(box)

    def of(self, expr: Any) -> Decidable:
        """Return the compiled expression."""
        if expr not in self._compiled:
            self._compiled[expr] = Decidable(expr)
        return self._compiled[expr]

    def simplified(self, expr: Any, box: Mapping[Any, tuple[int, ...]]) -> Any:
        """Return ``expr`` for use in ``box`` only: decided conditions and numbers made of loop variables are replaced."""

        def conditional(node: Any) -> Any:
            if not is_conditional(node):
                return node
            condition, true, false = branches(node)
            rest = []
            for atom in conjunction(condition):
                known = self(atom, box)
                if known == 0:
                    return false
                if known is None:
                    rest.append(atom)
            if not rest:
                return true
            return node if len(rest) == len(conjunction(condition)) else tirx.if_then_else(tirx.all(*rest), true, false)

        def number(node: Any) -> Any:
            known = self(node.value, box) if "float" in str(node.ty.dtype) else None
            return node if known is None else tirx.const(float(known), str(node.ty.dtype))

        return tvm_ffi.structural_map(expr, [(Call, conditional), (tirx.Cast, number)])
