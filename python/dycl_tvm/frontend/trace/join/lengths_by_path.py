# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of one fixed length on each path, another on each: as one of a length of the run, where the paths cannot go on apart.

Kernels for fixed shapes are faster, so paths part at first. Where they part too often (a loop that makes a tensor longer in some of its
trips has two to the power of its trips), or may not part at all (in a loop of run-time length), the program is staged once more, and such
tensors meet as one from then on. If it is refused so as well, that is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.join.captured import TensorLeaf, differing_dimension
from dycl_tvm.hcfg.nodes import Origin

#: If paths part so often at one place, they meet.
_MOST_FORKS = 16


class LengthsByPath:
    """The places of a program at which tensors of several lengths meet, and whether they do as one.

    Attributes
    ----------
    refusal : UnsupportedError or None
        Why the program was refused while the paths parted.
    """

    def __init__(self) -> None:
        self.refusal: UnsupportedError | None = None
        self._met: set[Origin | None] = set()
        self._joined: set[Origin | None] = set()
        self._given_up: set[Origin | None] = set()

    def dimension(self, found: Sequence[TensorLeaf], place: Origin | None) -> int | None:
        """Return the dimension along which tensors differ that meet at a place, if one can stand for them there."""
        along = differing_dimension(found)
        if along is not None:
            self._met.add(place)
        return along if place in self._joined else None

    def part_too_often(self, forks: Mapping[Origin | None, int]) -> bool:
        """Whether paths part so often at a place that the program is to be staged anew: they meet then, there and at the others.

        Where they part as often although they meet, for another reason, that has not helped.
        """
        places = self._met - self._given_up
        crowded = {place for place in places if forks.get(place, 0) >= _MOST_FORKS * (4 if place in self._joined else 1)}
        if crowded:
            self._given_up |= crowded & self._joined
            self._joined = self._met - self._given_up
        return bool(crowded)

    def try_otherwise(self, refusal: UnsupportedError) -> bool:
        """Let tensors meet where paths parted, or part where they met, as the program was refused; whether there is anything to try."""
        if self._joined:
            self._given_up |= self._joined
            self._joined = set()
            return self.refusal is None
        self._joined = self._met - self._given_up
        self.refusal = refusal
        return bool(self._joined)
