# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Memory of a kernel's own whose parts belong to one trip of a loop each.

A kernel may copy the rows of a tile where it has them at hand and read them in later loops over the same tiles. A trip that computes
nothing of interest may then be skipped in all of these loops together: what it would have stored nobody else reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.front import end, found, mentions, trips, variables_of


@dataclass(eq=False)
class Scratch:
    """A buffer that a kernel allocates.

    Attributes
    ----------
    buffer : tirx.Buffer
    depth : int
        How many loops are around its allocation.
    uses : list
        Of each load and store its indices, and the loops around it inside of those around the allocation, outer ones first.
    escapes : bool
        Whether it is known by another name, or a function is handed its address.
    """

    buffer: Any
    depth: int
    uses: list[tuple[Sequence[Any], list[Any]]] = field(default_factory=list)
    escapes: bool = False

    def in_trips(self, same: Callable[[Any], Any]) -> bool:
        """Whether each part is for trips of one number alone, in loops of which ``same`` gives one and the same test for a number.

        ``same`` returns the test of a loop by its variable; None for loops that have another one.
        """
        if self.escapes:
            return False
        groups: list[tuple[list[Any], list[Sequence[Any]]]] = []
        for indices, loops in self.uses:
            group = next((g for of, g in groups if len(of) == len(loops) and all(a.same_as(b) for a, b in zip(of, loops))), None)
            if group is None:
                groups.append((loops, group := []))
            group.append(indices)
        same, walk = functools.cache(same), functools.cache(found)  # the uses are many, the loops around them few
        parts: set[tuple[int, int]] | None = None
        for loops, group in groups:
            own = self._parts(loops, group, same, walk)
            parts = own if parts is None else parts & own
            if not parts:
                break  # the loops are many, and each takes long
        return bool(parts)

    def is_used_up(self, loop: Any, test: Any) -> bool:
        """Whether no trip of a loop reads what a skipped one would have written: it is this loop's alone, later trips are skipped too."""
        own = not self.escapes and all(loops and loops[0].same_as(loop) for _, loops in self.uses)
        return own and int(loop.kind) == tirx.ForKind.SERIAL and _falls(test, loop.loop_var)

    def _parts(
        self,
        loops: Sequence[Any],
        uses: Sequence[Sequence[Any]],
        same: Callable[[Any], Any],
        walk: Callable[[Any, Any], list[Any]],
    ) -> set[tuple[int, int]]:
        """Return along which dimensions there are parts, and how long these are, as loads and stores in the same loops tell."""
        tested = [loop for loop in loops if same(loop) is not None]
        if len(tested) != 1 or not isinstance(tested[0].min, tirx.IntImm) or int(tested[0].min):
            return set()
        own, around, test = tested[0].loop_var, loops[0], same(tested[0])
        inside = {*(v.loop_var for v in walk(around, tirx.For)), *(b.var for b in walk(around, tirx.Bind))}
        # wherever the loops around it are, the same trips are needed; or fewer and fewer of them, so that what is kept is as it was
        for variable in variables_of(test) & inside - {own}:
            outermost = variable.same_as(around.loop_var) and all(l and l[0].same_as(around) for _, l in self.uses)
            if not (outermost and int(around.kind) == tirx.ForKind.SERIAL and _falls(test, variable)):
                return set()
        inner = list(loops[[loop.same_as(tested[0]) for loop in loops].index(True) + 1 :])
        values = {b.var: b.value for b in walk(tested[0].body, tirx.Bind)}
        distinct: list[Sequence[Any]] = []
        for indices in uses:
            if not any(all(tvm_ffi.structural_equal(a, b) for a, b in zip(indices, other)) for other in distinct):
                distinct.append(indices)
        parts = [{(d, n) for d, i in enumerate(indices) if (n := _part(i, own, inner, values)) is not None} for indices in distinct]
        return set.intersection(*parts)


def scratch_of(body: Any) -> list[Scratch]:
    """Return what a kernel of plain loops allocates."""
    made: list[Scratch] = []

    def use(buffer: Any, indices: Sequence[Any], loops: list[Any]) -> None:
        for scratch in made:
            if scratch.buffer.same_as(buffer):
                scratch.uses.append((indices, loops[scratch.depth :]))

    def look(part: Any, loops: list[Any]) -> None:
        loads: list[Any] = []
        calls: list[Any] = []
        tvm_ffi.structural_walk(part, [(TensorLoad, loads.append), (tvm.ir.Call, calls.append)])
        for load in loads:
            use(load.source, load.indices, loops)
        for call in calls:
            if getattr(call.op, "name", "") == "tirx.address_of":
                escape(call.args[0].source)
            elif getattr(call.op, "name", "") in ("tirx.buffer_data", "tirx.tvm_access_ptr"):
                for scratch in made:
                    scratch.escapes = True

    def escape(buffer: Any) -> None:
        for scratch in made:
            scratch.escapes = scratch.escapes or scratch.buffer.same_as(buffer)

    def visit(stmt: Any, loops: list[Any]) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for s in stmt.seq:
                visit(s, loops)
        elif isinstance(stmt, tirx.AttrStmt):
            look(stmt.value, loops)
            visit(stmt.body, loops)
        elif isinstance(stmt, tirx.IfThenElse):
            look(stmt.condition, loops)
            visit(stmt.then_case, loops)
            if stmt.else_case is not None:
                visit(stmt.else_case, loops)
        elif isinstance(stmt, tirx.For):
            look(stmt.min, loops)
            look(stmt.extent, loops)
            visit(stmt.body, [*loops, stmt])
        elif isinstance(stmt, tirx.AllocBuffer):
            made.append(Scratch(stmt.buffer, len(loops)))
        elif isinstance(stmt, tirx.BufferStore):
            use(stmt.buffer, stmt.indices, loops)
            look(stmt, loops)
        elif isinstance(stmt, (tirx.Bind, tirx.Evaluate)):
            look(stmt.value, loops)
        else:  # what may hide anything
            look(stmt, loops)
            for scratch in made:
                scratch.escapes = True

    visit(body, [])
    return made


def _falls(test: Any, variable: Any) -> bool:
    """Whether a test of lower bounds, once false, stays so when a variable grows."""
    if not mentions(test, variable):
        return True
    if isinstance(test, (tirx.And, tirx.Or)):
        return _falls(test.a, variable) and _falls(test.b, variable)
    if not isinstance(test, tirx.LT) or mentions(test.b, variable):
        return False
    least = test.a.value if isinstance(test.a, tirx.Cast) else test.a
    parts = tvm.sym.detect_linear_equation(least, [variable])
    return len(parts) == 2 and isinstance(parts[0], tirx.IntImm) and int(parts[0]) >= 0


def _part(index: Any, number: Any, inner: Sequence[Any], values: dict[Any, Any]) -> int | None:
    """Return n where an index is from ``n * number`` to ``n * number + n - 1`` in all trips of the loops ``inner``."""
    ends = [end(index, trips(inner), values, which) for which in ("min_value", "max_value")]
    sizes = []
    for e in ends:
        if e is None:
            return None
        parts = tvm.sym.detect_linear_equation(e, [number])
        if len(parts) != 2 or not all(isinstance(p, tirx.IntImm) for p in parts):
            return None
        sizes.append((int(parts[0]), int(parts[1])))
    (size, first), (other, last) = sizes
    return size if size == other and 0 <= first <= last < size else None
