# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A time that is made up, so that a program and its graph are told the same: by the line that asks, and how often it did."""

from __future__ import annotations

import functools
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dycl_tvm.garbage import referrers
from dycl_tvm.hcfg.clocks import CLOCKS, clocks_say, type_of_clock
from dycl_tvm.hcfg.nodes import HCFG, HostOp

#: Seconds from one answer that a line gets to the next.
_STEPS = (1.0, 0.0, 1e-2, 1e3)
#: Of each clock, so that none is taken for another; a later line is told a later time.
_START = {"time": 1.5e9, "perf_counter": 2e5, "monotonic": 1e5, "process_time": 20.0, "thread_time": 10.0}
_LINES = 1 << 12


class TimeTold:
    """Tells a program, or a graph, the time.

    Parameters
    ----------
    graph : HCFG
        Nothing is done if it asks no clock.
    """

    def __init__(self, graph: HCFG) -> None:
        self._names = {s.text or "" for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op == "clock"}

    @functools.cached_property
    def _places(self) -> list[tuple[Any, Any, str]]:
        return [(holder, key, name) for name in sorted(self._names) for holder, key in _holders(CLOCKS[name])]

    def __bool__(self) -> bool:
        return bool(self._names)

    @contextmanager
    def of(self, seed: int, program: bool) -> Iterator[None]:
        """Tell the time, from the beginning: to a graph, or to the program too."""
        if not self:
            yield
            return
        asked = Counter[tuple[str, str]]()
        step = _STEPS[seed % len(_STEPS)]

        def say(name: str, place: str) -> float:
            asked[name, place] += 1
            line = int(place.rpartition(":")[2])
            now = _START[name.removesuffix("_ns")] + step * (asked[name, place] + line / _LINES)
            return now if type_of_clock(name).kind == "float" else int(now * 1e9)

        with clocks_say(say):
            put = self._places if program else []
            made = {name: _asking(name, say) for name in self._names}
            for holder, key, name in put:
                _put(holder, key, made[name])
            try:
                yield
            finally:
                for holder, key, name in put:
                    _put(holder, key, CLOCKS[name])


def _asking(name: str, say: Callable[[str, str], float]) -> Callable[[], float]:
    def clock() -> float:
        frame = sys._getframe(1)
        return say(name, f"{frame.f_code.co_filename}:{frame.f_lineno}")

    return clock


def _holders(function: Any) -> list[tuple[Any, Any]]:
    """Return where a program may have a clock: its variables, attributes and lists."""
    found: list[tuple[Any, Any]] = []
    for holder in referrers(function):
        if isinstance(holder, dict) and holder is not CLOCKS and holder is not sys.modules:
            found += [(holder, key) for key, value in holder.items() if value is function]
        elif isinstance(holder, list):
            found += [(holder, k) for k, value in enumerate(holder) if value is function]
        elif isinstance(holder, types.CellType):
            found.append((holder, None))
    return [*found, (vars(time), function.__name__)]


def _put(holder: Any, key: Any, function: Any) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = function
    else:
        holder[key] = function
