# Licensed under the Apache License, Version 2.0; see LICENSE.
"""By how much at least, and at most, a number of the run is larger than another one: a counter that moves on, by one step or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Advance:
    """A number is between ``root + least`` and ``root + most``; None where that is not known.

    Attributes
    ----------
    root : Value
    least, most : int or None
    """

    root: Any
    least: int | None
    most: int | None

    def plus(self, least: int | None, most: int | None) -> Advance | None:
        """Return the advance of a number that is so much larger again; None if nothing is known of it."""
        made = Advance(self.root, _sum(self.least, least), _sum(self.most, most))
        return None if made.least is None and made.most is None else made

    @property
    def rises(self) -> bool:
        """Whether the number is surely no smaller than the root."""
        return self.least is not None and self.least >= 0

    @property
    def falls(self) -> bool:
        """Whether it is surely no larger."""
        return self.most is not None and self.most <= 0


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def advance_of(x: Any) -> Advance | None:
    """Return how far an int is from another one; None for what Python knows, or if that is not known."""
    if not isinstance(x, torch.SymInt):
        return None
    root, more = x.node.base
    return x.node.advance or Advance(root, more, more)


def note_step(made: Any, op: str, a: Any, b: Any) -> None:
    """Note how far a sum or a difference of two ints is from one of them."""
    sign = {"add": 1, "sub": -1}.get(op)
    if sign is None:
        return
    of, by = (b, a) if op == "add" and _is_step(a) and not _is_step(b) else (a, b)
    if not isinstance(of, torch.SymInt) or not _is_step(by):
        return
    if type(by) is int:
        root, more = of.node.base
        made.node.base = (root, more + sign * by)
    least, most = sorted(sign * n for n in ((by, by) if type(by) is int else by.node.bounds))
    found = of.node.advance if type(by) is int else advance_of(of)
    made.node.advance = found and found.plus(least, most)


def _is_step(x: Any) -> bool:
    """Whether bounds of an int are known."""
    return type(x) is int or (isinstance(x, torch.SymInt) and x.node.bounds is not None)


def one_advance(numbers: Sequence[Any]) -> Advance | None:
    """Return how far a number is from another one that is one of several: of those that are all counted from the same."""
    found = [advance_of(x) for x in numbers]
    first = found[0]
    if first is None or any(f is None or f.root is not first.root for f in found):
        return None
    ends = [[getattr(f, end) for f in found] for end in ("least", "most")]
    least, most = None if None in ends[0] else min(ends[0]), None if None in ends[1] else max(ends[1])
    return None if least is None and most is None else Advance(first.root, least, most)
