# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Ranges of host ints and bools, on graphs built by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest

from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.hostops import ARITHMETIC, COMPARISONS, evaluate
from dycl_tvm.hcfg.nodes import Edge
from dycl_tvm.hcfg.ranges import ALL, INT64, Range, Ranges, _widest, apply
from dycl_tvm.hcfg.types import BOOL, INT
from dycl_tvm.hcfg.verify import verify

BORDERS = [-7, -1, 0, 1, 2, 5]


@pytest.mark.parametrize("op", sorted(ARITHMETIC | COMPARISONS | {"neg", "abs", "to_int", "to_bool"}))
def test_operations_stay_in_their_range(op: str) -> None:
    """Every result of numbers from two ranges lies in the range of the results; and both its borders are met where it is exact."""
    binary = op in ARITHMETIC | COMPARISONS
    result = BOOL if op in COMPARISONS or op == "to_bool" else INT
    spans = [Range(a, b) for a in BORDERS for b in BORDERS if a <= b]
    for a, b in product(spans, spans if binary else [Range(0, 0)]):
        known = apply(op, [a, b] if binary else [a], _widest(result))
        found = []
        for x, y in product(range(int(a.low), int(a.high) + 1), range(int(b.low), int(b.high) + 1)):
            if not (op in ("floordiv", "mod") and y == 0):
                found.append(evaluate(op, [x, y] if binary else [x], result))
        assert all(int(v) in known for v in found), (op, a, b, known)
        if op not in ("mod", "floordiv") and not (op in ("eq", "ne") and len(found) > 1):
            assert (min(found), max(found)) == known, (op, a, b)


def test_infinite_borders_and_large_numbers() -> None:
    half = Range(3, math.inf)
    assert apply("add", [half, ALL], ALL) == ALL
    assert apply("mul", [half, Range(0, 2)], ALL) == (0, math.inf)
    assert apply("floordiv", [Range(-5, 5), half], ALL) == (-2, 1)
    assert apply("floordiv", [ALL, half], ALL) == ALL
    assert apply("mod", [ALL, half], ALL) == (0, math.inf)
    assert apply("sub", [Range(0, 0), half], ALL) == (-math.inf, -3)
    huge = Range(2**63, 2**63)
    squared = apply("mul", [huge, huge], ALL)
    assert squared.high == math.inf and 2**63 < squared.low <= 2**126
    assert apply("neg", [squared], ALL).high < -(2**63)


def test_an_overflow_is_not_taken_for_impossible() -> None:
    # Nobody may conclude from `n + 1` that n is not the largest int: the operation goes where it is not read.
    g = GraphBuilder("overflow", {"n": INT})
    more = g.host(g.entry, "add", g.params[0], 1)
    g.leave(g.entry, more)
    assert Ranges(g.graph).of(more) == (INT64.low + 1, INT64.high + 1)


def test_counting_loop() -> None:
    # i = 0; while i < 10: i += 1, by two ways; then i is 10 or 11.
    g = GraphBuilder("loop", {"c": BOOL})
    head, body, other, end = g.block("head", INT), g.block("body"), g.block("other"), g.block("end")
    g.jump(g.entry, head, 0)
    g.branch(head, g.host(head, "lt", head.params[0], 10), body, end)
    one = g.host(body, "add", head.params[0], 1)
    g.branch(body, g.params[0], Edge(head, [one]), other)
    two = g.host(other, "add", one, 1)
    g.jump(other, head, two)
    g.leave(end, head.params[0])
    verify(g.graph)
    ranges = Ranges(g.graph)
    assert ranges.of(head.params[0]) == (0, 11)
    assert ranges.of(head.params[0], end) == (10, 11)
    assert (ranges.of(one), ranges.of(two)) == ((1, 10), (2, 11))


def test_a_condition_of_two_parts_bounds_by_the_second() -> None:
    # `if c and n < 10: ... else: ...`, whose value is a parameter; the other way brings False.
    g = GraphBuilder("and", {"c": BOOL, "n": INT})
    second, both, inside, end = g.block("second"), g.block("both", BOOL), g.block("inside"), g.block("end")
    g.branch(g.entry, g.params[0], second, Edge(both, [False]))
    g.jump(second, both, g.host(second, "lt", g.params[1], 10))
    g.branch(both, both.params[0], inside, end)
    g.leave(inside, g.params[1])
    g.leave(end, g.params[1])
    ranges = Ranges(g.graph)
    assert ranges.of(g.params[1], inside) == (INT64.low, 9)
    assert ranges.of(g.params[1], end) == INT64


def test_a_condition_of_the_trip_before_says_nothing_of_this_trip() -> None:
    # more, i = False, 0; while True: was, i, more = more, f(i), i < 10; if was: return i
    g = GraphBuilder("before", {"n": INT})
    head, last, again = g.block("head", BOOL), g.block("last"), g.block("again")
    g.jump(g.entry, head, False)
    i = g.host(head, "sub", g.params[0], 7)
    g.branch(head, head.params[0], last, again)
    g.jump(again, head, g.host(again, "lt", i, 10))
    g.leave(last, i)
    ranges = Ranges(g.graph)
    assert ranges.of(i, last).high > 10  # type: ignore[union-attr]  # it is reached


@pytest.mark.parametrize("step", [1, 2])
def test_what_is_in_lockstep_is_bounded_by_one_comparison(step: int) -> None:
    # i, k, m = 0, 5, 0; while i < 10: i += 1; k += 1, or 2; m is k without 5, by another way.
    g = GraphBuilder("lockstep", {"c": BOOL})
    head, body, other, end = g.block("head", INT, INT, INT), g.block("body"), g.block("other"), g.block("end")
    i, k, m = head.params
    g.jump(g.entry, head, 0, 5, 0)
    g.branch(head, g.host(head, "lt", i, 10), body, end)
    more = [g.host(body, "add", i, 1), g.host(body, "add", k, step), g.host(body, "sub", g.host(body, "add", m, step + 2), 2)]
    g.branch(body, g.params[0], Edge(head, more), other)
    g.jump(other, head, *(g.host(other, "add", x, n) for x, n in zip(more, (1, step, step))))
    inside = g.host(body, "add", m, 0)
    g.leave(end, k)
    verify(g.graph)
    ranges = Ranges(g.graph)
    assert ranges.of(i, body) == (0, 9)
    assert ranges.of(k) == (5, 16 if step == 1 else math.inf)
    assert ranges.of(inside, body).high == (11 if step == 1 else math.inf)


def test_sums_are_bounded_by_what_bounds_their_parts() -> None:
    g = GraphBuilder("sum", {"n": INT})
    n, yes, no = g.params[0], g.block("yes"), g.block("no")
    more = g.host(g.entry, "add", g.host(g.entry, "sub", n, 1), 4)
    g.branch(g.entry, g.host(g.entry, "lt", n, 10), yes, no)
    g.leave(yes, more)
    g.leave(no, more)
    ranges = Ranges(g.graph)
    assert ranges.of(more, yes) == (INT64.low + 3, 12)
    assert ranges.of(more, no) == (13, INT64.high + 3)


def test_a_loop_that_nothing_bounds() -> None:
    g = GraphBuilder("endless", {"c": BOOL})
    head, body, end = g.block("head", INT, INT), g.block("body"), g.block("end")
    g.jump(g.entry, head, 1, 0)
    g.branch(head, g.params[0], body, end)
    g.jump(body, head, g.host(body, "mul", head.params[0], 3), g.host(body, "sub", head.params[1], 1))
    g.leave(end, *head.params)
    ranges = Ranges(g.graph)
    assert ranges.of(head.params[0]) == (1, math.inf)
    assert ranges.of(head.params[1]) == (-math.inf, 0)


def test_index_that_wraps_round() -> None:
    # Python's rule: -n <= i < n, then `i + n if i < 0 else i`.
    g = GraphBuilder("index", {"i": INT})
    i = g.params[0]
    inside, outside = g.block("inside"), g.block("outside")
    g.branch(g.entry, g.host(g.entry, "and", g.host(g.entry, "ge", i, -4), g.host(g.entry, "lt", i, 4)), inside, outside)
    wrapped = g.host(inside, "select", g.host(inside, "lt", i, 0), g.host(inside, "add", i, 4), i)
    g.leave(inside, wrapped)
    g.fail(outside, "IndexError", "no")
    ranges = Ranges(g.graph)
    assert ranges.of(wrapped) == (0, 3)
    assert ranges.of(i, inside) == (-4, 3)
    assert ranges.of(i, outside) == INT64


def test_what_no_way_reaches_counts_for_nothing() -> None:
    g = GraphBuilder("dead", {"x": tensor(4)})
    yes, no, join = g.block("yes"), g.block("no"), g.block("join", INT)
    small = g.host(g.entry, "mod", g.host(g.entry, "item", g.op(g.entry, "aten.argmax.default", g.params[0])), 3)
    g.branch(g.entry, g.host(g.entry, "lt", small, 3), yes, no)
    g.jump(yes, join, small)
    g.jump(no, join, 99)
    g.leave(join, join.params[0])
    ranges = Ranges(g.graph)
    assert ranges.of(join.params[0]) == (0, 2)
    assert [ranges.can_be_taken(e) for e in g.entry.edges()] == [True, False]


def test_sides_of_a_switch_know_their_index() -> None:
    g = GraphBuilder("switch", {"n": INT})
    a, b, c, many = g.block("a"), g.block("b"), g.block("c"), g.block("many", INT)
    g.switch(g.entry, g.params[0], a, Edge(many, [g.params[0]]), b, Edge(many, [g.params[0]]), c)
    for block in (a, b, c, many):
        g.leave(block, g.params[0])
    ranges = Ranges(g.graph)
    assert [ranges.of(g.params[0], x) for x in (a, b, c)] == [(0, 0), (2, 2), (4, 4)]
    assert ranges.of(many.params[0]) == (1, 3)


def test_a_number_that_is_read_as_a_bool() -> None:
    # Its bounds as a number are not those of the bool; the ways through the graph are gone through until nothing changes.
    g = GraphBuilder("bool", {"t": tensor(dtype="int64")})
    yes, no = g.block("yes"), g.block("no")
    cond = g.host(g.entry, "item", g.params[0], type=BOOL)
    g.branch(g.entry, cond, yes, no)
    g.leave(yes, cond)
    g.leave(no, cond)
    verify(g.graph)
    ranges = Ranges(g.graph)
    assert (ranges.of(cond), ranges.of(cond, yes), ranges.of(cond, no)) == ((0, 1), (1, 1), (0, 0))
