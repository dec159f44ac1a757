# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What Python's functions do with lists, where a loop does it one by one: like the user's own code, it runs rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def total(items: Iterable[Any], start: Any) -> Any:
    """Stand for ``sum``."""
    for x in items:
        start = start + x
    return start


def any_of(items: Iterable[Any]) -> bool:
    """Stand for ``any``."""
    for x in items:
        if x:
            return True
    return False
