# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Gives the graph the answers that the program got, although the graph need not ask in the same order.

Staging rightly leaves out crossings that decide nothing, may ask for both sides of a short circuit, and passes move questions or ask
once for what was computed twice. So a question is matched by its line, its dtype and what the tensor really holds; among equals the
order decides, or the column and then the order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dycl_tvm.hcfg.hostops import UNASKED, Number
from dycl_tvm.hcfg.interpreter import Watcher
from dycl_tvm.hcfg.nodes import Block, HostOp, Operand
from dycl_tvm.verify.crossings import Crossing
from dycl_tvm.verify.same import close

#: Crossings that are looked at after one that would do: a later one may be equal where it is only close.
_LOOKED_AT = 32


class Astray(Exception):
    """The graph asks far more than the program did."""


class Answers(Watcher):
    """Answers one call of the graph.

    Parameters
    ----------
    crossings : sequence of Crossing
        What the program's call showed.
    strict : bool
        Whether a question belongs to a crossing of its own line only. Passes may keep the line of one of two equal computations.
    folded : bool
        Whether the graph is taken to have computed what no input has a part in: such a crossing answers a question only if no other does.
    columns : bool
        Whether a crossing of the question's own column goes before earlier ones of its line. Steps that staging made of a whole condition
        have the column of its beginning.
    merged : bool
        Whether the graph is taken to ask once for what was computed twice: such a crossing answers a second question only if no other does.
    arrays : bool
        Whether the program may have read what the graph asks for from an array of NumPy's, of which no crossing tells.
    most_edges : int
        So many edges are noted at most.

    Attributes
    ----------
    edges : list of (Block, int, int)
        The edges taken: block, index, number of the program's crossings that were used before.
    wrong : (Crossing, number) or None
        The first crossing at which the graph's tensor held another value than the program's, and that value.
    extra : int
        Questions that the program never asked.
    """

    def __init__(
        self,
        crossings: Sequence[Crossing],
        strict: bool = True,
        folded: bool = False,
        columns: bool = False,
        merged: bool = False,
        arrays: bool = False,
        most_edges: int = 100_000,
    ) -> None:
        self._merged = merged
        #: The numbers of the computations that were answered, with the moments.
        self._answered: dict[int, int] = {}
        self._crossings = crossings
        self._used = [False] * len(crossings)
        self._first = 0
        self._last = -1
        self._strict, self._folded, self._columns, self._most = strict, folded, columns, most_edges
        self._arrays = arrays
        self.edges: list[tuple[Block, int, int]] = []
        self.wrong: tuple[Crossing, Number] | None = None
        self.extra = 0
        self._asked = 0
        #: The operand of the last question, its answer, and the block parameters that it became since.
        self._operand: Operand | None = None
        #: The number of the computation that the last question was about.
        self._latest: int | None = None
        self._answer: Number = 0
        self._became = set[Operand]()

    def item(self, step: HostOp, tensor: torch.Tensor) -> Number:
        """Return the answer to one question of the graph.

        The side of a short circuit that decides is the value of the whole, so a graph may ask for it a second time; Python jumps.
        """
        if step.text in UNASKED:  # the program is not asked: its own tensor's shape says it, or its operator raises
            return tensor.item()
        self._asked += 1
        if self._asked > 4 * len(self._crossings) + 1000:
            raise Astray
        operand = step.args[0]
        if operand in self._became:
            self._ask_again(step)
        else:
            self._operand, self._latest = operand, None
            self._answer = self._answer_to(step, tensor)
            self._became.clear()
        return self._answer

    def _ask_again(self, step: HostOp) -> None:
        """Take the program's own second question of one computation, if it has one at the graph's line, for what is asked here."""
        line = (step.origin.file, step.origin.line) if step.origin is not None else None
        for k in range(self._first, len(self._crossings)) if self._latest is not None else ():
            c = self._crossings[k]
            if not self._used[k] and c.number == self._latest and (line is None or line in c.lines):
                self._use(k)
                return

    def _answer_to(self, step: HostOp, tensor: torch.Tensor) -> Number:
        real = tensor.item()
        dtype = tensor.dtype
        line, column = ((step.origin.file, step.origin.line), step.origin.column) if step.origin is not None else (None, 0)
        best, rank, left = -1, 9.0, _LOOKED_AT
        for k in range(self._first, len(self._crossings)):
            if self._used[k]:
                continue
            left -= rank < 0.5
            if not left:
                break
            c = self._crossings[k]
            if c.dtype != dtype:
                continue
            here, same = line is None or line in c.lines, close(c.real, real)
            if not here and (self._strict or not same):
                continue  # computed by data in the program: the truth is the answer
            found = 2.0 if not here else 1.0 if not same else 0.4 if self._folded and not c.free else 0.0
            if self._columns and found < 1 and column and c.column and c.column != column:
                found += 0.1  # another expression of the same line
            if self._merged and found < 1 and c.number in self._answered:
                found += 0.05 / (2 + self._answered[c.number])  # what was asked last is the likeliest to be asked again
            if found < 1 and c.real != real:
                found += 0.01  # of numbers that are close by chance the one that is equal is meant
            if found < rank:
                best, rank = k, found
            if rank == 0:
                break
        if rank > 0.5:
            again = self._again(dtype, real, line)
            if again is not None and (rank != 1 or not again.free):
                return again.answer
        if best < 0 or (rank == 1 and self._arrays):
            self.extra += 1
            return real
        crossing = self._crossings[best]
        if rank == 1 and self.wrong is None:
            self.wrong = (crossing, real)
        self._use(best)
        return crossing.answer

    def unasked(self) -> list[Crossing]:
        """Return the program's crossings of places that the graph never asked for although they could have had another answer.

        A place that it asks for at other times is a decision of the graph too: one question less there is no reason to believe the truth.
        """
        asked = {c.site for c, used in zip(self._crossings, self._used) if used}
        return [c for c, used in zip(self._crossings, self._used) if c.free and not used and c.site not in asked]

    def took(self, block: Block, index: int) -> None:
        """Note an edge."""
        edge = block.edges()[index]
        became = [p for p, arg in zip(edge.target.params, edge.args) if arg is self._operand or arg in self._became]
        self._became.difference_update(edge.target.params)
        self._became.update(became)
        if len(self.edges) < self._most:
            self.edges.append((block, index, self._last + 1))

    def _use(self, k: int) -> None:
        self._used[k], self._latest = True, self._crossings[k].number
        self._answered[self._crossings[k].number] = self._asked
        self._last = max(self._last, k)
        while self._first < len(self._used) and self._used[self._first]:
            self._first += 1

    def _again(self, dtype: torch.dtype, real: Number, line: tuple[str, int] | None) -> Crossing | None:
        """Return a crossing that was used already and is the one asked for once more."""
        for k in range(len(self._crossings) - 1, -1, -1):
            c = self._crossings[k]
            if self._used[k] and c.dtype == dtype and (line is None or line in c.lines) and close(c.real, real):
                return c
        return None
