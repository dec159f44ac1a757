# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How much of a tensor is wanted, where a size of the call decides: the first elements along some of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    """``factor * size + constant`` elements, where ``size`` numbers a size that each call decides; a plain number has no factor."""

    size: int
    factor: int
    constant: int

    @staticmethod
    def number(n: int) -> Extent:
        """Return a plain number."""
        return Extent(-1, 0, n)

    def scaled(self, factor: int, constant: int = 0) -> Extent:
        """Return ``factor`` times the extent, plus ``constant``."""
        return Extent(self.size, self.factor * factor, self.constant * factor + constant)

    def at(self, sizes: Sequence[int]) -> int:
        """Return the number, where the sizes are these."""
        return self.constant + (self.factor * sizes[self.size] if self.factor else 0)


#: The largest product that is a size: no arithmetic with it overflows.
_MOST = 1 << 40
#: What is wanted of a tensor: of each dimension the first elements, or all of them (None).
Wanted = tuple[Extent | None, ...]


class Bounds:
    """The least and the largest value of each size.

    Parameters
    ----------
    bounds : sequence of (int, int)
        None is negative.
    multiplies : bool
        Whether a product of sizes may be one more size, with a number behind those that there are.
    """

    def __init__(self, bounds: Sequence[tuple[int, int]], multiplies: bool = False) -> None:
        self.bounds = list(bounds)
        self.multiplies = multiplies
        #: Of each product the numbers of two sizes that come before it.
        self.products: list[tuple[int, int]] = []
        self._known: dict[tuple[int, ...], int] = {(k,): k for k in range(len(bounds))}

    def product(self, a: Extent, b: Extent) -> Extent | None:
        """Return the product of two extents; None if it is no number of elements of a size."""
        if not a.factor or not b.factor:
            return b.scaled(a.constant) if not a.factor else a.scaled(b.constant)
        if a.constant or b.constant or not self.multiplies:
            return None
        of = {k: key for key, k in self._known.items()}
        key = tuple(sorted(of[a.size] + of[b.size]))
        if key not in self._known:
            (low, high), (least, most) = self.bounds[a.size], self.bounds[b.size]
            if high * most > _MOST:
                return None
            self._known[key] = len(self.bounds)
            self.products.append((a.size, b.size))
            self.bounds.append((low * least, high * most))
        return Extent(self._known[key], a.factor * b.factor, 0)

    def numbers(self, sizes: Sequence[int]) -> list[int]:
        """Return the sizes of a call, and behind them their products."""
        found = list(sizes)
        for a, b in self.products:
            found.append(found[a] * found[b])
        return found

    def range(self, extent: Extent) -> tuple[int, int]:
        """Return the least and the largest that an extent can be."""
        least, most = self.bounds[extent.size] if extent.factor else (0, 0)
        ends = (extent.factor * least + extent.constant, extent.factor * most + extent.constant)
        return min(ends), max(ends)

    def clipped(self, extent: Extent | None, whole: int) -> Extent | None:
        """Return an extent of a dimension, None if that is always all of it."""
        return None if extent is None or self.range(extent)[0] >= whole else extent

    def covers(self, a: Extent, b: Extent) -> bool:
        """Whether ``a`` is never less than ``b``."""
        if a.factor and b.factor and a.size != b.size:
            return self.range(a)[0] >= self.range(b)[1]
        known = a if a.factor else b
        return self.range(Extent(known.size, a.factor - b.factor, a.constant - b.constant))[0] >= 0

    def joined(self, a: Extent | None, b: Extent | None) -> Extent | None:
        """Return what covers both."""
        if a is None or b is None:
            return None
        return a if self.covers(a, b) else b if self.covers(b, a) else None

    def union(self, a: Wanted | None, b: Wanted | None) -> Wanted | None:
        """Return what covers both; None stands for nothing at all."""
        if a is None or b is None:
            return b if a is None else a
        return tuple(self.joined(x, y) for x, y in zip(a, b, strict=True))

    def reshaped(self, wanted: Wanted, shape: Sequence[int], other: Sequence[int]) -> Wanted:
        """Return what is wanted of the same elements, in order, in another shape."""
        found: list[Extent | None] = [None] * len(other)
        for dims, others in _groups(shape, other):
            d = next((d for d in dims if shape[d] != 1), None)
            o = next((o for o in others if other[o] != 1), None)
            if d is None or o is None:
                continue
            extent = wanted[d]
            rows, columns = math.prod(shape[k] for k in dims if k > d), math.prod(other[k] for k in others if k > o)
            # the leading dimension alone says where the last wanted element is
            if extent is not None and extent.factor * rows % columns == 0 and extent.constant * rows % columns == 0:
                scaled = Extent(extent.size, extent.factor * rows // columns, extent.constant * rows // columns)
                found[o] = self.clipped(scaled, other[o])
        return tuple(found)


def everything(shape: Sequence[int]) -> Wanted:
    """Return that all of a tensor is wanted."""
    return (None,) * len(shape)


def _groups(shape: Sequence[int], other: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the dimensions of two shapes of one number of elements in groups that hold the same elements."""
    found: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(shape) and b < len(other):
        dims, others = [a], [b]
        left, right = shape[a], other[b]
        a, b = a + 1, b + 1
        while left != right:
            if left < right:
                if a == len(shape):
                    return []
                left *= shape[a]
                dims.append(a)
                a += 1
            else:
                if b == len(other):
                    return []
                right *= other[b]
                others.append(b)
                b += 1
        found.append((dims, others))
    return found
