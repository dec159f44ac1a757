# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The undo log of everything that the user's program changes while it is staged.

Both sides of a branch run on the same Python objects, one after the other. Before a place is changed, its contents are
saved here once per scope; :meth:`Journal.rollback` restores them in place, so that identity holds. The log also says
which places a side changed, which is what a join has to merge. The cost is that of the changes, not of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.trace.heap.places import Place


class Journal:
    """The undo log. Scopes nest: a branch side, a loop, a call."""

    def __init__(self) -> None:
        #: Key, place and contents.
        self._log: list[tuple[Any, Place, Any]] = []
        self._seen: list[set[Any]] = [set()]
        self._deferred: list[Callable[[], None]] = []
        self._marks = [0]
        #: How often something was about to be changed.
        self.touches = 0

    def defer(self, settle: Callable[[], None]) -> None:
        """Let ``settle`` note what is changed now, before the journal is used again."""
        self._deferred.append(settle)

    def settle(self) -> None:
        """Note what was changed since :meth:`defer`."""
        while self._deferred:
            self._deferred.pop()()

    def touch(self, place: Place, surely: bool = True) -> None:
        """Save the contents of a place that is about to be changed, or may be."""
        if self._deferred:
            self.settle()
        self.touches += surely
        seen = self._seen[-1]
        key = place.key
        if key not in seen:
            seen.add(key)
            self._log.append((key, place, place.read()))

    def note(self, place: Place, before: Any) -> None:
        """Save what a place held that was changed already: the change was found by comparison."""
        self.touches += 1
        seen = self._seen[-1]
        key = place.key
        if key not in seen:
            seen.add(key)
            self._log.append((key, place, before))

    def open(self) -> int:
        """Open a scope; return the mark to give to the other methods."""
        self.settle()
        self._seen.append(set())
        self._marks.append(len(self._log))
        return len(self._log)

    def close(self) -> None:
        """Close the innermost scope; its changes stay and count to the scope around it."""
        self.settle()
        inner = self._seen.pop()
        self._marks.pop()
        self._seen[-1] |= inner

    def depth(self) -> int:
        """Return how many scopes are open."""
        return len(self._seen)

    def close_to(self, depth: int) -> None:
        """Close scopes until ``depth`` are open."""
        while len(self._seen) > depth:
            self.close()

    def changes(self, mark: int) -> dict[Any, Place]:
        """Return the places changed since ``mark``, by key, in order of first change."""
        self.settle()
        found: dict[Any, Place] = {}
        for key, place, _ in self._log[mark:]:
            if key not in found:
                found[key] = place
        return found

    def before(self, mark: int) -> dict[Any, Any]:
        """Return what the places changed since ``mark`` held then, by key."""
        found: dict[Any, Any] = {}
        for key, _, contents in self._log[mark:]:
            if key not in found:
                found[key] = contents
        return found

    def rollback(self, mark: int) -> None:
        """Undo all changes since ``mark``; the scopes stay as they are."""
        self.settle()
        while len(self._log) > mark:
            _, place, contents = self._log.pop()
            place.write(contents)
        for seen, opened in zip(reversed(self._seen), reversed(self._marks)):
            if opened < mark:  # an exception may have left scopes open that began after the mark
                break
            seen.clear()
