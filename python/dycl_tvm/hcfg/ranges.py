# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Ranges of the host ints and bools of a graph: between which bounds each lies, on all ways that can be gone.

Intervals, found together with the edges that can be taken; below a branch its condition narrows what it compares, and what is in lockstep
with that (:mod:`dycl_tvm.hcfg.lockstep`). They are those of Python's ints, which do not overflow: a graph raises where an int leaves
int64, but passes may drop an operation that nobody reads, so nothing is concluded from its not having raised. Source: P. Cousot and
R. Cousot, "Abstract interpretation", POPL 1977 (intervals, widening, narrowing); M. Wegman and F. Zadeck, "Constant propagation with
conditional branches", TOPLAS 1991 (edges).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dycl_tvm.hcfg.analysis import dominators, predecessors, reverse_postorder
from dycl_tvm.hcfg.hostops import COMPARISONS, INT64_MAX, INT64_MIN, NOT_PURE
from dycl_tvm.hcfg.lockstep import lockstep, sums
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Constant, Edge, HostOp, Operand, Switch, Value, operand_type
from dycl_tvm.hcfg.types import BOOL, INT, TensorType, Type


class Range(NamedTuple):
    """The whole numbers from ``low`` (or minus infinity) to ``high`` (or infinity), both included; False is 0 and True is 1."""

    low: float
    high: float

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.low <= number <= self.high

    def meet(self, other: Range) -> Range:
        """Return what lies in both; it may be empty."""
        return Range(max(self.low, other.low), min(self.high, other.high))

    def join(self, other: Range) -> Range:
        """Return the smallest range around both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def plus(self, number: int) -> Range:
        """Return the range of numbers that are so much more."""
        return Range(self.low + number, self.high + number)


ALL = Range(-math.inf, math.inf)
INT64 = Range(INT64_MIN, INT64_MAX)
EITHER = Range(0, 1)
#: Bounds of what ``item`` reads from a tensor.
_DTYPES = {**{f"int{n}": Range(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)}, "uint8": Range(0, 255), "bool": EITHER}
#: Larger numbers are as good as infinity.
_LARGE = 2**65
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
#: A parameter that has grown this often is taken to grow for ever.
PATIENCE = 3
#: A condition is taken apart (``and``, ``or``, ``not``) this deep.
DEPTH = 8
#: So many comparisons narrow one value; more are not looked at, or long chains of them would cost the square of their length.
MOST_FACTS = 32

#: A comparison that holds: operator, left, right.
Fact = tuple[str, Operand, Operand]


class Ranges:
    """The ranges of a graph; they hold until it is changed.

    Parameters
    ----------
    graph : HCFG
        Sound; blocks that the entry does not reach are left out.
    given : mapping, optional
        Ranges of parameters of the entry that are known.

    Attributes
    ----------
    sums : dict
        Of :func:`dycl_tvm.hcfg.lockstep.sums`.
    """

    def __init__(self, graph: HCFG, given: Mapping[Value, Range] | None = None) -> None:
        self._order = reverse_postorder(graph)
        self._tree = dominators(graph)
        self._makers = {s.output: s for b in self._order for s in b.steps if isinstance(s, HostOp)}
        self._homes = {v: b for b in self._order for v in (*b.params, *(o for s in b.steps for o in s.results())) if _whole(v)}
        self.sums = sums(self._order)
        self._lockstep = lockstep(graph, self.sums)
        self._incoming = {b: [(s, e) for s, e in into if s in self._tree.depth] for b, into in predecessors(graph).items()}
        self._facts = {id(e): list(self._facts_of(b, e)) for b in self._order for e in b.edges()}
        self._narrowed: dict[Value, list[tuple[Block, Fact]]] = {}
        for block in self._order:
            # What holds when a loop is reached holds in it: its back edges come from below, and what is compared is from above.
            entering = [e for source, e in self._incoming[block] if not self._tree.dominates(block, source)]
            if len(entering) == 1:
                for fact in self._facts[id(entering[0])]:
                    for operand in {a: None for a in fact[1:] if isinstance(a, Value)}:
                        if len(known := self._narrowed.setdefault(operand, [])) < MOST_FACTS:
                            known.append((block, fact))
        self._found: dict[Value, Range] = {p: INT64.meet(_widest(p.type)) for p in graph.entry.params if _whole(p)} | dict(given or {})
        self._reached = {graph.entry}
        self._taken: set[int] = set()
        self._solve()

    def of(self, operand: Operand, at: Block | None = None) -> Range | None:
        """Return the range of an int or bool; None for anything else, and for what no way reaches.

        Parameters
        ----------
        operand : Value or number
        at : Block, optional
            Where it is read: the branches that lead there narrow it.
        """
        if not isinstance(operand, Value):
            return Range(int(operand), int(operand)) if isinstance(operand, int) else None
        known = self._found.get(operand)
        if at is not None and at not in self._reached:
            return None
        if known is None or at is None:
            return known
        if operand in self.sums:
            base, more = self.sums[operand]
            known = known.meet((self.of(base, at) or ALL).plus(more))
        for block, fact in self._narrowed.get(operand, ()):
            if self._tree.dominates(block, at):
                known = known.meet(self._bound(fact, operand))
        return known

    def can_be_taken(self, edge: Edge) -> bool:
        """Tell whether some way may take an edge."""
        return id(edge) in self._taken

    def can_be_reached(self, block: Block) -> bool:
        """Tell whether some way may lead to a block."""
        return block in self._reached

    # -- the fixpoint --------------------------------------------------------------------------------------------------
    def _solve(self) -> None:
        grown: dict[Value, int] = {}
        changed = True
        while changed:
            changed = False
            for block in self._order:
                if block in self._reached:
                    changed = self._visit(block, grown) or changed
        # Downwards from a solution every step is one again: two of them take back what widening has overdone.
        for _ in range(2 if any(n > PATIENCE for n in grown.values()) else 0):
            for block in self._order:
                if block in self._reached:
                    self._visit(block, None)

    def _visit(self, block: Block, grown: dict[Value, int] | None) -> bool:
        """Compute a block again; ``grown`` counts by which parameters grow, None on the way down."""
        changed = False
        if any(_whole(p) for p in block.params):
            ways = [self._given(block, source, edge) for source, edge in self._incoming[block] if id(edge) in self._taken]
            for param, given in zip(block.params, zip(*ways)):
                changed = self._enter(param, given, grown) or changed
        for step in block.steps:
            for output in step.results():
                if _whole(output):
                    new = self._result(step, block) if isinstance(step, HostOp) else None
                    changed = self._set(output, new) or changed
        for edge in block.edges():
            if id(edge) not in self._taken and self._possible(block, edge):
                self._taken.add(id(edge))
                self._reached.add(edge.target)
                changed = True
        return changed

    def _given(self, block: Block, source: Block, edge: Edge) -> list[Range | None]:
        """Return what an edge gives to the parameters of its target."""
        given = [self._on_edge(a, source, edge) if _whole(p) else None for a, p in zip(edge.args, block.params)]
        for group in self._lockstep.get(block, ()):
            common = ALL
            for k, more in group:
                common = common.meet((given[k] or ALL).plus(-more))
            for k, more in group:
                given[k] = given[k] and common.plus(more)
        return given

    def _enter(self, param: Value, given: Iterable[Range | None], grown: dict[Value, int] | None) -> bool:
        found: Range | None = None
        for way in given:
            if way:
                found = way if found is None else found.join(way)
        old = self._found.get(param)
        if found is None or found == old:
            return False
        if grown is not None and old is not None:
            found = found.join(old)
            grown[param] = grown.get(param, 0) + 1
            if grown[param] > PATIENCE:
                found = Range(old.low if found.low == old.low else -math.inf, old.high if found.high == old.high else math.inf)
        return self._set(param, found)

    def _set(self, value: Value, new: Range | None) -> bool:
        new = new and new.meet(_widest(value.type))
        if not new or new == self._found.get(value):
            return False
        self._found[value] = new
        return True

    def _possible(self, block: Block, edge: Edge) -> bool:
        term = block.terminator
        if isinstance(term, Switch):
            index = self.of(term.index, block)
            return index is not None and any(e is edge and k in index for k, e in enumerate(term.edges))
        if isinstance(term, Branch):
            cond = self.of(term.cond, block)
            return cond is not None and ((edge is term.then and 1 in cond) or (edge is term.orelse and 0 in cond))
        return True

    def _on_edge(self, operand: Operand, source: Block, edge: Edge) -> Range | None:
        known = self.of(operand, source)
        for fact in self._facts[id(edge)] if known is not None and isinstance(operand, Value) else ():
            if any(a is operand for a in fact[1:]):
                known = known.meet(self._bound(fact, operand))  # type: ignore[union-attr]  # not None here
        return known

    # -- operations ----------------------------------------------------------------------------------------------------
    def _result(self, step: HostOp, block: Block, under: tuple[Fact, ...] = ()) -> Range | None:
        """Return what an operation gives at ``block``, where the comparisons ``under`` hold too; None: not known yet."""
        op, args, widest = step.op, step.args, _widest(step.output.type)
        if op == "item":
            return _DTYPES.get(args[0].type.dtype, widest) if isinstance(args[0].type, TensorType) else widest  # type: ignore[union-attr]
        if op in NOT_PURE or not all(_whole(a) for a in args):
            return widest
        if op == "select":
            return self._select(step, block)
        known = [self._narrow(a, block, under) for a in args]
        if any(r is None or not r for r in known):
            return None
        return apply(op, [r for r in known if r is not None], widest)

    def _narrow(self, operand: Operand, block: Block, under: tuple[Fact, ...]) -> Range | None:
        known = self.of(operand, block)
        for fact in under:
            if known is not None and any(a is operand for a in fact[1:]):
                known = known.meet(self._bound(fact, operand))
        return known

    def _select(self, step: HostOp, block: Block) -> Range | None:
        """Each side of a selection is read under its condition: ``i + n if i < 0 else i``."""
        cond, found = self.of(step.args[0], block), None
        for truth, side in ((1, step.args[1]), (0, step.args[2])):
            if cond is None or truth not in cond:
                continue
            under = tuple(self._expand(step.args[0], bool(truth), DEPTH))
            given = self._narrow(side, block, under)
            maker = self._makers.get(side) if isinstance(side, Value) else None
            if maker is not None and maker.op != "select" and given is not None:
                again = self._result(maker, block, under)
                given = given.meet(again) if again is not None else None
            if given:
                found = given if found is None else found.join(given)
        return found

    # -- conditions ----------------------------------------------------------------------------------------------------
    def _facts_of(self, block: Block, edge: Edge) -> Iterator[Fact]:
        """Yield what holds when a block is left by an edge."""
        term = block.terminator
        if isinstance(term, Branch) and term.then is not term.orelse:
            yield from self._expand(term.cond, edge is term.then, DEPTH)
        elif isinstance(term, Switch) and isinstance(term.index, Value):
            numbers = [k for k, e in enumerate(term.edges) if e is edge]
            yield "le", term.index, numbers[-1]
            yield "ge", term.index, numbers[0]

    def _expand(self, cond: Operand, truth: bool, depth: int) -> Iterator[Fact]:
        if not isinstance(cond, Value):
            return
        yield "eq", cond, truth
        maker = self._makers.get(cond)
        if not depth:
            return
        if maker is None:
            yield from self._behind(cond, truth, depth - 1)
            return
        if maker.op in COMPARISONS and all(_whole(a) for a in maker.args):
            yield maker.op if truth else _OPPOSITE[maker.op], *maker.args  # type: ignore[misc]  # comparisons have two operands
        elif maker.op == "not":
            yield from self._expand(maker.args[0], not truth, depth - 1)
        elif maker.op == ("and" if truth else "or"):
            for part in maker.args:
                yield from self._expand(part, truth, depth - 1)
        elif maker.op == "select" and maker.args[2 if truth else 1] is (not truth):
            # `a and b`, `a or b` of two bools.
            yield from self._expand(maker.args[0], truth, depth - 1)
            yield from self._expand(maker.args[1 if truth else 2], truth, depth - 1)

    def _behind(self, param: Value, truth: bool, depth: int) -> Iterator[Fact]:
        """Yield what holds if a parameter is so that only one way can bring as that: `a and b`, where the other way brings False.

        That was found out before the block was entered, so it holds for values that are made above the block; another one may have been
        made again since.
        """
        home = self._homes.get(param)
        if home is None or param not in home.params:
            return
        k = home.params.index(param)
        ways = {e.args[k] for _, e in self._incoming[home] if e.args[k] is not (not truth)}
        way = ways.pop() if len(ways) == 1 else None
        for fact in self._expand(way, truth, depth) if isinstance(way, Value) else ():
            if all(self._is_above(a, home) for a in fact[1:] if isinstance(a, Value)):
                yield fact

    def _is_above(self, value: Value, block: Block) -> bool:
        home = self._homes.get(value)
        return home is not None and home is not block and self._tree.dominates(home, block)

    def _bound(self, fact: Fact, value: Operand) -> Range:
        """Return where ``value`` lies if a comparison that it stands in holds."""
        op, left, right = fact
        known = ALL
        for mine, how, other in ((left, op, right), (right, _MIRRORED[op], left)):
            limit = self.of(other) if mine is value else None
            if limit is not None:
                known = known.meet(self._compared(how, limit, self.of(value)))
        return known

    @staticmethod
    def _compared(op: str, limit: Range, own: Range | None) -> Range:
        if op in ("lt", "le"):
            return Range(-math.inf, limit.high - (op == "lt"))
        if op in ("gt", "ge"):
            return Range(limit.low + (op == "gt"), math.inf)
        if op == "eq":
            return limit
        if own is None or limit.low != limit.high:
            return ALL
        # Unequal to one number: it goes where it is a border.
        return Range(own.low + (own.low == limit.low), own.high - (own.high == limit.low))


def _whole(operand: Operand) -> bool:
    """Tell whether an operand is an int or a bool of the host."""
    return not isinstance(operand, Constant) and operand_type(operand) in (INT, BOOL)


def _widest(type_: Type) -> Range:
    return EITHER if type_ == BOOL else ALL


def apply(op: str, args: list[Range], widest: Range) -> Range:
    """Return the range of an operation of ints and bools."""
    a, b = args[0], args[-1]
    if op == "add":
        return _bounded(a.low + b.low, a.high + b.high)
    if op == "sub":
        return _bounded(a.low - b.high, a.high - b.low)
    if op == "mul":
        return _bounded(*(x * y if x and y else 0 for x in a for y in b))
    if op == "neg":
        return Range(-a.high, -a.low)
    if op == "abs":
        return Range(0 if 0 in a else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high)))
    if op == "min":
        return Range(min(a.low, b.low), min(a.high, b.high))
    if op == "max":
        return Range(max(a.low, b.low), max(a.high, b.high))
    if op == "mod" and b.low > 0:
        return a if a.low >= 0 and a.high < b.low else Range(0, b.high - 1)
    if op == "floordiv" and b.low > 0:
        return _bounded(*(x // y if abs(x) < math.inf and y < math.inf else x if y < math.inf else -(x < 0) for x in a for y in b))
    if op in COMPARISONS:
        return _truth(op, a, b)
    if op == "not":
        return Range(1 - a.high, 1 - a.low)
    if op == "and":
        return Range(min(a.low, b.low), min(a.high, b.high))
    if op == "or":
        return Range(max(a.low, b.low), max(a.high, b.high))
    if op == "to_int":
        return a
    if op == "to_bool":
        return Range(int(0 not in a), int(a != Range(0, 0)))
    return widest


def _bounded(*numbers: float) -> Range:
    """Return the range around some numbers, without large ones, which would grow with every product."""
    low, high = min(numbers), max(numbers)
    low = max(low, -_LARGE) if low >= -_LARGE else -math.inf
    return Range(min(low, _LARGE), max(high, -_LARGE) if high <= _LARGE else math.inf)


def _truth(op: str, a: Range, b: Range) -> Range:
    """Return what a comparison can be."""
    if op in ("gt", "ge"):
        return _truth(_MIRRORED[op], b, a)
    if op == "lt":
        return Range(int(a.high < b.low), int(a.low < b.high))
    if op == "le":
        return Range(int(a.high <= b.low), int(a.low <= b.high))
    same, meets = a.low == a.high == b.low == b.high, bool(a.meet(b))
    return Range(int(same), int(meets)) if op == "eq" else Range(int(not meets), int(not same))
