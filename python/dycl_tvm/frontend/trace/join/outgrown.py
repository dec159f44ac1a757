# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists that a rolled loop leaves with other items than they had: a layer above may know what can stand for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dycl_tvm.frontend.trace.session import current


def _stays(x: Any, items: Sequence[Any], by_path: bool) -> None:
    """Nothing stands for any list."""


class Outgrown:
    """Whom a session asks.

    Attributes
    ----------
    ask : callable
        Given a container, the items that it has on the path that leaves most, and whether that depends on the path through a trip. It
        returns where nothing can stand for the container, and else begins anew.
    """

    def __init__(self) -> None:
        self.ask: Callable[[Any, Sequence[Any], bool], None] = _stays


def outgrown(x: Any, items: Sequence[Any], by_path: bool = False) -> None:
    """Ask what can stand for a container that is older than the loops that are being rolled, if there are any."""
    rolling = [r.loop for r in current().decisions.rolling if r.loop.trip_of is None]
    if rolling and not any(loop.recursion for loop in rolling) and not current().heap.is_newer(x, rolling[-1].clock):
        current().get(Outgrown).ask(x, items, by_path)
