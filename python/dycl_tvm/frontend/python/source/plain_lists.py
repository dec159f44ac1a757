# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What Python's functions do with lists, where a loop does it one by one: like the user's own code, it runs rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def total(items: Iterable[Any], start: Any) -> Any:
    """Stand for ``sum``."""
    for x in items:
        start = start + x
    return start


def any_of(items: Iterable[Any]) -> bool:
    """Stand for ``any``."""
    for x in items:  # noqa: SIM110  (a loop that is rolled)
        if x:
            return True
    return False


def keys_of(items: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    """Return what a function gives for each item."""
    return [key(x) for x in items]
