# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The undo log of everything that the user's program changes while it is staged.

Both sides of a branch run on the same Python objects, one after the other. Before a place is changed, its contents are
saved here once per scope; :meth:`Journal.rollback` restores them in place, so that identity holds. The log also says
which places a side changed, which is what a join has to merge. The cost is that of the changes, not of the state.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.trace.heap.places import Place


class Mark(int):
    """Where a scope begins: how long the log was, and the moment; scopes that begin one after the other may have one place in the log."""

    moment: int


class Journal:
    """The undo log. Scopes nest: a branch side, a loop, a call."""

    def __init__(self) -> None:
        #: Key, place and contents.
        self._log: list[tuple[Any, Place, Any]] = []
        #: Where the entries of each key stand in the log: many scopes in succession may save one place again and again.
        self._entries: dict[Any, list[int]] = {}
        self._seen: list[set[Any]] = [set()]
        self._deferred: list[Callable[[], None]] = []
        #: How many calls are under way that :meth:`hold` was called for.
        self.held = 0
        self._marks = [0]
        #: What is known in each scope only: since which moment, and how to forget it.
        self._facts: list[list[tuple[int, Callable[[], None]]]] = [[]]
        self._moments = itertools.count()
        #: How often something was about to be changed, and how often changes were undone.
        self.touches = self.undone = 0

    def defer(self, settle: Callable[[], None]) -> None:
        """Let ``settle`` note what is changed now, before the journal is used again.

        Between :meth:`hold` and :meth:`release` it is called each time that the journal is used.
        """
        self._deferred.append(settle)

    def settle(self) -> None:
        """Note what was changed since :meth:`defer`."""
        deferred = self._deferred
        self._deferred = []
        for settle in deferred:
            settle()
        if self.held:
            self._deferred += deferred

    def hold(self) -> None:
        """Begin a call whose changes were deferred, or are while its arguments are looked at: the journal is used before it is made."""
        self.held += 1

    def release(self) -> None:
        """End such a call."""
        self.held -= 1
        self.settle()

    def touch(self, place: Place, surely: bool = True) -> None:
        """Save the contents of a place that is about to be changed, or may be."""
        if self._deferred:
            self.settle()
        self.touches += surely
        seen = self._seen[-1]
        key = place.key
        if key not in seen:
            seen.add(key)
            self._append(key, place, place.read())

    def note(self, place: Place, before: Any) -> None:
        """Save what a place held that was changed already: the change was found by comparison."""
        self.touches += 1
        seen = self._seen[-1]
        key = place.key
        if key not in seen:
            seen.add(key)
            self._append(key, place, before)

    def _append(self, key: Any, place: Place, contents: Any) -> None:
        self._entries.setdefault(key, []).append(len(self._log))
        self._log.append((key, place, contents))

    def open(self) -> Mark:
        """Open a scope; return the mark to give to the other methods."""
        self.settle()
        self._seen.append(set())
        self._marks.append(len(self._log))
        self._facts.append([])
        mark = Mark(len(self._log))
        mark.moment = next(self._moments)
        return mark

    def close(self) -> None:
        """Close the innermost scope; its changes stay and count to the scope around it."""
        self.settle()
        inner = self._seen.pop()
        self._marks.pop()
        self._forget(self._facts.pop())
        self._seen[-1] |= inner

    def learn(self, forget: Callable[[], None]) -> None:
        """Note that something is known now, until the innermost scope is closed or taken back."""
        self._facts[-1].append((next(self._moments), forget))

    @staticmethod
    def _forget(facts: list[tuple[int, Callable[[], None]]], since: int = 0) -> None:
        while facts and facts[-1][0] >= since:
            facts.pop()[1]()

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
        return {key: place for key, place, _ in self._first_since(mark)}

    def before(self, mark: int) -> dict[Any, Any]:
        """Return what the places changed since ``mark`` held then, by key."""
        self.settle()
        return {key: contents for key, _, contents in self._first_since(mark)}

    def _first_since(self, mark: int) -> list[tuple[Any, Place, Any]]:
        """Return the first entry of each key since ``mark``, in order. The cost is that of entries or of keys, whichever are fewer."""
        log = self._log
        if len(log) - mark <= len(self._entries):
            firsts: dict[Any, tuple[Any, Place, Any]] = {}
            for entry in log[mark:]:
                firsts.setdefault(entry[0], entry)
            return list(firsts.values())
        return [log[i] for i in sorted([at[bisect_left(at, mark)] for at in self._entries.values() if at[-1] >= mark])]

    def rollback(self, mark: Mark) -> None:
        """Undo all changes since ``mark``, and forget what was learned since; the scopes stay as they are."""
        self.settle()
        self.undone += 1
        while len(self._log) > mark:
            key, place, contents = self._log.pop()
            entries = self._entries[key]
            entries.pop()
            if not entries:
                del self._entries[key]
            if len(self._log) == mark or self._log[-1][0] != key:  # of entries of one place in succession the first says what it held
                place.write(contents)
        for seen, opened, facts in zip(reversed(self._seen), reversed(self._marks), reversed(self._facts)):
            if opened < mark:  # an exception may have left scopes open that began after the mark
                break
            seen.clear()
            self._forget(facts, mark.moment)
