# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a profile adds to the picture of a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Figures for the blocks and edges of a graph; blocks are named by their places in it.

    Attributes
    ----------
    lines : mapping
        What stands in the box of a block that ran.
    shares : mapping
        The part of the time that was spent in a block.
    edges : mapping
        How often each edge was taken, from (block, block).
    """

    lines: Mapping[int, Sequence[str]]
    shares: Mapping[int, float]
    edges: Mapping[tuple[int, int], int]

    def fill(self, block: int) -> str:
        """Return the colour of a block: the warmer, the more time."""
        if block not in self.lines:
            return "#eaeef2"
        cold = 1.0 - min(1.0, self.shares.get(block, 0.0)) ** 0.5
        return f"rgb(255,{round(140 + 112 * cold)},{round(60 + 185 * cold)})"

    def width(self, source: int, target: int) -> float:
        """Return how thick an edge is drawn: the more often it was taken, the thicker."""
        return 0.8 + 3.2 * (self.edges.get((source, target), 0) / self._most if self._most else 0.0)

    @functools.cached_property
    def _most(self) -> int:
        return max(self.edges.values(), default=0)

    def label(self, source: int, target: int) -> str:
        """Return how often an edge was taken."""
        return f"×{self.edges.get((source, target), 0):,}"
