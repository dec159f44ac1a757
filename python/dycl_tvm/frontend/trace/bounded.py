# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is kept for all sessions of a process, up to a bound."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


class Bounded(dict[Key, Found]):
    """A dict that is emptied when it would have more than so many entries: what was in it is found anew."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, found: Found) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, found)
