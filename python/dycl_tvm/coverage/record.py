# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which paths were taken, by which inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dycl_tvm.coverage.flow import Flow, Key, ListedPath, Listing
from dycl_tvm.coverage.runners import Outcome


@dataclass
class Seen:
    """How often a path was taken, the names of the inputs that were given for it, and the first input that was found by searching."""

    runs: int = 0
    given: list[str] = field(default_factory=list)
    found: Sequence[Any] | None = None


class Coverage:
    """What the runs so far have exercised.

    Attributes
    ----------
    seen : dict
        From each path taken to what took it; paths with more trips than listed and those cut short are among them.
    failures : list of (str, str)
        Calls that ended in an error that is no ``raise`` of the network: the name of the input and the error.
    """

    def __init__(self, flow: Flow, listing: Listing) -> None:
        self.flow, self.listing = flow, listing
        self.seen: dict[Key, Seen] = {}
        self.failures: list[tuple[str, str]] = []
        self.sides: set[tuple[int, int]] = set()
        self._listed = {p.key: p for p in listing.paths}
        self._missing = set(self._listed)

    def note(self, outcome: Outcome, leaves: Sequence[Any], name: str | None = None) -> bool:
        """Take down one run; ``name`` is that of a given input, None for one that was searched. Return whether its path is new."""
        self.sides.update(outcome.key)
        if outcome.error and outcome.key not in self._ends_in_raise():
            self.failures.append((name or "a searched input", outcome.error))
            return False
        new = outcome.key not in self.seen
        seen = self.seen.setdefault(outcome.key, Seen())
        seen.runs += 1
        if name is not None:
            seen.given.append(name)
        elif seen.found is None:
            seen.found = list(leaves)
        self._missing.discard(outcome.key)
        return new

    def _ends_in_raise(self) -> set[Key]:
        if not hasattr(self, "_raising"):
            self._raising = {p.key for p in self.listing.paths if self.flow.blocks[p.end].end == "raise"}
        return self._raising

    @property
    def done(self) -> bool:
        """Whether every listed path was taken."""
        return not self._missing

    def taken(self) -> list[ListedPath]:
        """Return the listed paths that were taken."""
        return [p for p in self.listing.paths if p.key in self.seen]

    def missing(self) -> list[ListedPath]:
        """Return the listed paths that were not."""
        return [p for p in self.listing.paths if p.key not in self.seen]

    def unlisted(self) -> list[Key]:
        """Return the paths taken that are not in the list: more trips through a loop, or beyond the list's limit."""
        return [key for key in self.seen if key not in self._listed]
