# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How many trips the loops of a graph make at most, where a number of the host counts them."""

from __future__ import annotations

import math

from dycl_tvm.hcfg.analysis import Loop, natural_loops
from dycl_tvm.hcfg.nodes import HCFG, Block, Value
from dycl_tvm.hcfg.ranges import Ranges
from dycl_tvm.hcfg.types import INT

#: A counter that goes as far bounds nothing: only the width of its type does, and no run makes so many trips.
_FAR = 2**24


def most_trips(graph: HCFG) -> dict[Block, int]:
    """Return for the headers of loops how often a way around leads back to them at most, each time the loop is reached.

    A loop counts its trips if each way around adds to a parameter of its header (or takes from it); the range of that parameter
    (:mod:`dycl_tvm.hcfg.ranges`) then has room for so many.
    """
    loops = natural_loops(graph).loops
    if not loops:
        return {}
    ranges, found = Ranges(graph), {}
    for loop in loops:
        trips = [
            _room(ranges, p, step) for k, p in enumerate(loop.header.params) if p.type == INT and (step := _step(loop, k, ranges.sums))
        ]
        if (least := min(trips, default=math.inf)) < _FAR:
            found[loop.header] = int(least)
    return found


def _step(loop: Loop, k: int, made: dict[Value, tuple[Value, int]]) -> int:
    """Return what every way around adds at least to the ``k``-th parameter of the header, negative if all take from it; 0 if neither."""
    header = loop.header
    given = [e.args[k] for latch in loop.latches for e in latch.edges() if e.target is header]
    added = [made.get(a, (a, 0)) if isinstance(a, Value) else (None, 0) for a in given]
    if any(base is not header.params[k] for base, _ in added):
        return 0
    numbers = [more for _, more in added]
    return min(numbers) if min(numbers) > 0 else max(numbers) if max(numbers) < 0 else 0


def _room(ranges: Ranges, counter: Value, step: int) -> float:
    known = ranges.of(counter)
    if known is None:  # no way leads there
        return 0
    return (known.high - known.low) // abs(step) if known.high - known.low < math.inf else math.inf
