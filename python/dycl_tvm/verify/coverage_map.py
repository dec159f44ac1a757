# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What runs have covered of a graph: edges of decisions, pairs of them, numbers of trips of loops."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from dycl_tvm.hcfg.analysis import natural_loops, reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Switch

#: Above so many edges pairs are not counted.
_MOST_FOR_PAIRS = 3000
#: So many edges that were not taken are named.
_MOST_NAMED = 20


class Covered:
    """The coverage of one graph."""

    def __init__(self, graph: HCFG) -> None:
        decisions = [b for b in reverse_postorder(graph) if isinstance(b.terminator, (Branch, Switch))]
        self.numbers: dict[tuple[Block, int], int] = {}
        owners = []
        for k, block in enumerate(decisions):
            for index in range(len(block.edges())):
                self.numbers[block, index] = len(self.numbers)
                owners.append(k)
        self._loops = {loop.header: loop.body for loop in natural_loops(graph).loops}
        n = len(self.numbers)
        self.taken = np.zeros(n, bool)
        self._owners = np.array(owners, dtype=np.int64)
        self._pairs = np.zeros((n, n), bool) if n <= _MOST_FOR_PAIRS else None
        self.trips: set[str] = set()

    def add(self, edges: Sequence[tuple[Block, int, int]]) -> bool:
        """Count the edges of one call; return whether one of them is new."""
        now = np.zeros(len(self.taken), bool)
        running: dict[Block, int] = {}
        for block, index, _ in edges:
            number = self.numbers.get((block, index))
            if number is not None:
                now[number] = True
            target = block.edges()[index].target
            body = self._loops.get(target)
            if body is not None:
                if block in body:
                    running[target] = running.get(target, 0) + 1
                else:
                    if target in running:
                        self._note(running[target])
                    running[target] = 0
        for count in running.values():
            self._note(count)
        new = bool((now & ~self.taken).any())
        self.taken |= now
        if self._pairs is not None:
            self._pairs |= np.outer(now, now)
        return new

    def _note(self, trips: int) -> None:
        self.trips.add(str(trips) if trips <= 2 else "many")

    def missing(self) -> list[tuple[Block, int]]:
        """Return the edges not yet taken, in the order of the graph."""
        return [edge for edge, number in self.numbers.items() if not self.taken[number]]

    def untaken(self) -> tuple[str, ...]:
        """Return edges not taken, as the user's lines with the way out."""
        return tuple(dict.fromkeys(_way_out(block, index) for block, index in self.missing()))[:_MOST_NAMED]

    def trip_counts(self) -> tuple[str, ...]:
        """Return the numbers of trips that loops made, in their order."""
        return tuple(t for t in ("0", "1", "2", "many") if t in self.trips)

    def pairs(self) -> tuple[int, int]:
        """Return how many pairs of edges of different decisions were taken in one call, and how many there are."""
        if self._pairs is None:
            return 0, 0
        different = self._owners[:, None] != self._owners[None, :]
        return int((self._pairs & different).sum()) // 2, int(different.sum()) // 2


def _way_out(block: Block, index: int) -> str:
    term = block.terminator
    assert isinstance(term, (Branch, Switch))
    origin = term.origin
    where = f"{os.path.basename(origin.file)}:{origin.line}: {origin.code}" if origin is not None else "?"
    return f"{where} -> {index == 0 if isinstance(term, Branch) else index}"
