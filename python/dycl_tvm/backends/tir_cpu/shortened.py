# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops that end where nothing more of what they write is wanted.

A test of a trip compares an index with a size. Where the index grows with the trips, all trips behind the first that fails fail too, so the
loop has an extent that follows from the size, and no trip asks.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import Var

from dycl_tvm.backends.front import found, mentions, replaced

#: Loops of so few trips are written out by LLVM as long as these are always as many.
_FEW_TRIPS = 4
_INT64 = "int64"


class Shortener:
    """Shortens loops of one function.

    Parameters
    ----------
    body : tirx.Stmt
        That of the function, whose loops tell the ranges of their variables.
    """

    def __init__(self, body: Any) -> None:
        self._analyzer = tvm.sym.Analyzer()
        for loop in found(body, tirx.For):
            self._bind(loop.loop_var, loop.min, loop.extent)

    def shortened(self, loop: Any, test: Any) -> tuple[Any, bool]:
        """Return a loop of the trips for which a test holds, and whether its trips ask, as they do where it cannot end at the last one."""
        counts = isinstance(loop.min, tirx.IntImm) and not int(loop.min) and loop.step is None
        few = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= _FEW_TRIPS
        if few or not counts or int(loop.kind) != tirx.ForKind.SERIAL:
            return _loop(loop, loop.loop_var, loop.extent, tirx.IfThenElse(test, loop.body, None)), True
        number = Var(loop.loop_var.name, _INT64)  # indices are computed in 32 bits, sizes in 64
        self._bind(number, tirx.const(0, _INT64), loop.extent.astype(_INT64))
        terms = [self._simplified(_widened(term, loop.loop_var, number)) for term in _terms(test)]
        period = _period(number, loop.extent, terms)
        return self._ended(loop, number, terms) if period is None else self._in_periods(loop, number, terms, period)

    def _ended(self, loop: Any, number: Any, terms: list[Any]) -> tuple[Any, bool]:
        extent, left, before = loop.extent, [], []
        for term in terms:
            if not (mentions(term, number) or mentions(term, loop.loop_var)):
                before.append(term)
            elif (wanted := self._wanted_trips(term, number)) is not None:
                extent = tirx.min(extent, tirx.max(wanted, tirx.const(0, _INT64)).astype(extent.ty.dtype))
            else:
                left.append(replaced(term, {number: loop.loop_var.astype(_INT64)}))
        body = tirx.IfThenElse(_all(left), loop.body, None) if left else loop.body
        made = _loop(loop, loop.loop_var, extent, body)
        return tirx.IfThenElse(_all(before), made, None) if before else made, bool(left)

    def _wanted_trips(self, test: Any, number: Any) -> Any:
        """Return in how many trips an index that grows by as much in each is within a limit; None for another test."""
        if not isinstance(test, tirx.LT) or mentions(test.b, number) or str(test.a.ty.dtype) != _INT64:
            return None
        parts = tvm.sym.detect_linear_equation(test.a, [number])
        step = parts[0] if len(parts) == 2 else None
        if not isinstance(step, tirx.IntImm) or int(step) <= 0 or mentions(parts[1], number):
            return None
        room = self._analyzer.simplify(test.b - parts[1])
        return room if int(step) == 1 else tirx.floordiv(room + (int(step) - 1), tirx.const(int(step), _INT64))

    def _in_periods(self, loop: Any, number: Any, terms: list[Any], period: int) -> tuple[Any, bool]:
        """Return a loop as one over periods and one over the trips of each, which ask what each changes."""
        dtype = loop.loop_var.ty.dtype
        around, within = (Var(f"{loop.loop_var.name}_{k}", dtype) for k in range(2))
        extents = {around: int(loop.extent) // period, within: period}
        for variable, extent in extents.items():
            self._bind(variable, tirx.const(0, dtype), tirx.const(extent, dtype))
        places = {loop.loop_var: around * period + within, number: around.astype(_INT64) * period + within.astype(_INT64)}
        body = replaced(loop.body, places)
        tests = [self._simplified(replaced(term, places)) for term in terms]
        asks = False
        for variable in (within, around):
            own = [t for t in tests if mentions(t, within) == variable.same_as(within)]
            body = _loop(loop, variable, tirx.const(extents[variable], dtype), body)
            if own:
                body, ask = self.shortened(body, _all(own))
                asks = asks or ask
        return body, asks

    def _simplified(self, test: Any) -> Any:
        """Return a test with simpler sides: as a whole it would be another one, of quotients, from which no end of a loop is seen."""
        if isinstance(test, _COMPARISONS):
            return type(test)(self._analyzer.simplify(test.a), self._analyzer.simplify(test.b))
        return self._analyzer.simplify(test)

    def _bind(self, variable: Any, first: Any, extent: Any) -> None:
        self._analyzer.bind(variable, tvm.ir.Range(first, first + extent))


def _loop(like: Any, variable: Any, extent: Any, body: Any) -> Any:
    return tirx.For(variable, like.min, extent, like.kind, body, like.thread_binding, like.annotations, like.step)


def _all(tests: list[Any]) -> Any:
    return tirx.all(*tests) if len(tests) > 1 else tests[0]


def _terms(test: Any) -> list[Any]:
    """Return what must hold together for a test to hold."""
    return [*_terms(test.a), *_terms(test.b)] if isinstance(test, tirx.And) else [test]


def _period(number: Any, trips: Any, terms: list[Any]) -> int | None:
    """Return after how many trips an index that counts through several dimensions is at the next place of an outer one."""
    periods = [0]
    for rest in (r for term in terms for r in found(term, tirx.FloorMod)):
        parts = tvm.sym.detect_linear_equation(rest.a, [number])
        numbers = [int(n) for n in (*parts, rest.b, trips) if isinstance(n, tirx.IntImm)]
        if len(parts) == 2 and len(numbers) == 4:
            step, start, size, count = numbers
            if not start and step > 0 and not size % step and not count % (size // step) and _FEW_TRIPS < size // step < count:
                periods.append(size // step)
    return max(periods) or None


_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def _widened(expr: Any, variable: Any, number: Any) -> Any:
    """Return an expression that computes in 64 bits from the variables on: no index leaves 32. ``number`` takes a variable's place."""

    def wide(e: Any) -> Any:
        if isinstance(e, _BINARY):
            return type(e)(wide(e.a), wide(e.b))
        if isinstance(e, tirx.IntImm):
            return tirx.const(int(e), _INT64)
        return number if e.same_as(variable) else e.astype(_INT64)

    def compared(e: Any) -> Any:
        return type(e)(wide(e.a), wide(e.b)) if str(e.a.ty.dtype) == "int32" else e

    return tvm_ffi.structural_map(
        expr,
        [
            *((kind, compared) for kind in _COMPARISONS),
            (tirx.Cast, lambda c: wide(c.value) if str(c.ty.dtype) == _INT64 and "int" in str(c.value.ty.dtype) else c),
            (Var, lambda v: number if v.same_as(variable) and str(v.ty.dtype) == _INT64 else v),
        ],
    )
