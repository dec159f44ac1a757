# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known in a block of the dominator tree and in those below it, forgotten when the block is left.

Leaving costs what was learned in the block, not what is known.
"""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Scopes:
    """Changes of tables, taken back by scopes.

    What is concluded holds as long as what was learned before it; so it outlives a scope in which nothing had been learned yet.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[dict[Any, Any], Any, Any]] = []
        self._learned: list[int] = []

    def enter(self) -> int:
        """Open a scope; return what :meth:`leave` takes."""
        return len(self._changes)

    def learn(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set what holds until the scope is left."""
        self._learned.append(len(self._changes))
        self._changes.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def conclude(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set what follows from what is known now, and may be forgotten at any time."""
        self._changes.append((table, key, _ABSENT))
        table[key] = value

    def leave(self, entered: int) -> None:
        """Take back what was learned since, and what was concluded after that."""
        first = len(self._changes)
        while self._learned and self._learned[-1] >= entered:
            first = self._learned.pop()
        while len(self._changes) > first:
            table, key, before = self._changes.pop()
            if before is _ABSENT:
                table.pop(key, None)
            else:
                table[key] = before
