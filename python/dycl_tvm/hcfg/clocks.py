# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The clocks that a network may read while it runs, and what they say where a graph is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import FLOAT, INT, ScalarType

#: By the name in Python's module ``time``.
CLOCKS: dict[str, Callable[[], float]] = {
    name: getattr(time, name)
    for base in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
    for name in (base, f"{base}_ns")
}
#: What all clocks say where only the way of a number is of interest.
SOME: dict[str, float] = {"float": 1.5e9, "int": 15 * 10**17}
_said: list[Callable[[str, str], float]] = []


def type_of_clock(name: str) -> ScalarType:
    """Return the type of what a clock says."""
    return INT if name.endswith("_ns") else FLOAT


def read_clock(name: str, origin: Origin | None) -> float:
    """Return what a clock says now."""
    return _said[-1](name, str(origin)) if _said else CLOCKS[name]()


@contextmanager
def clocks_say(say: Callable[[str, str], float]) -> Iterator[None]:
    """Have graphs that run be told the time by ``say(name, place)``."""
    _said.append(say)
    try:
        yield
    finally:
        _said.pop()
