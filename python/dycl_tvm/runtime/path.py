# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The path that a run took, in the user's terms: files, lines, code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source. ``line`` is 0 where it is unknown; then ``code`` may say what is decided there all the same."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        if not self.line:
            return f"{self.file}: {self.code}" if self.code else "an unknown line"
        return f"{self.file}:{self.line}" + (f": {self.code}" if self.code else "")


@dataclass(frozen=True)
class Decision:
    """One branch or switch on the way.

    ``decision`` numbers the places of the network; ``choice`` is a bool for a branch, the case for a switch. ``forced`` says that the
    run's budget took the side, and not the condition.
    """

    decision: int
    choice: bool | int
    origin: SourceLine
    forced: bool = False

    def __str__(self) -> str:
        word = f"case {self.choice}" if not isinstance(self.choice, bool) else ("true " if self.choice else "false")
        return f"{word} {self.origin}" + (" (forced by the budget)" if self.forced else "")


@dataclass(frozen=True)
class Path:
    """The path of the last run.

    Attributes
    ----------
    site : int or None
        The return site; None when the run failed.
    origin : SourceLine or None
        The line of that ``return``.
    branches : tuple of Decision
        In order. A run with more than 4096 decisions keeps the last ones; ``omitted`` says how many came before.
    """

    site: int | None
    origin: SourceLine | None
    branches: tuple[Decision, ...]
    omitted: int = 0

    @property
    def cut(self) -> Decision | None:
        """The decision that the run's budget forced; None where all were taken by their conditions."""
        return next((b for b in self.branches if b.forced), None)

    def key(self) -> tuple[Any, ...]:
        """Return what makes two paths the same: the decisions, their choices, and the return site."""
        return (self.site, self.omitted, *((b.decision, int(b.choice)) for b in self.branches))

    def __str__(self) -> str:
        lines = [f"({self.omitted} earlier decisions)"] if self.omitted else []
        lines += map(str, self.branches)
        lines.append(f"return {self.origin}" if self.site is not None else "no return: the run failed")
        return "\n".join(lines)


def path_of(metadata: dict[str, Any], site: int | None, taken: Sequence[tuple[int, int]], omitted: int, cut: int | None) -> Path:
    """Return a path from the numbers and choices of its decisions.

    Parameters
    ----------
    metadata : dict
        Of the artefact.
    site : int or None
        The return site.
    taken : sequence of (int, int)
        The last decisions.
    omitted : int
        How many came before them.
    cut : int or None
        The place, from the first decision on, of the one that the run's budget forced.
    """
    branches = [decision_of(metadata, number, choice, k == cut) for k, (number, choice) in enumerate(taken, omitted)]
    return Path(site, None if site is None else source_line(metadata["sites"][site]["origin"]), tuple(branches), omitted)


def decision_of(metadata: dict[str, Any], number: int, choice: int, forced: bool = False) -> Decision:
    """Return a decision from its number and choice."""
    decision = metadata["decisions"][number]
    return Decision(number, choice if decision["kind"] == "switch" else bool(choice), source_line(decision["origin"]), forced)


def source_line(origin: dict[str, Any] | None) -> SourceLine:
    """Return an origin of the metadata."""
    if origin is None:
        return SourceLine("", 0, "", "")
    return SourceLine(origin["file"], origin["line"], origin["function"], origin["code"])
