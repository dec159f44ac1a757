# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How much of a tensor is wanted, where a size of the call decides: the first elements along some of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union


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


@dataclass(frozen=True)
class Digits:
    """Of a dimension that others were merged to: the elements whose place along each of these is within a limit of its own.

    Attributes
    ----------
    sizes : tuple of int
        Of the merged dimensions, the outermost first; at least two.
    limits : tuple of Extent
        The outermost alone may have none.
    """

    sizes: tuple[int, ...]
    limits: tuple[Extent | None, ...]

    @property
    def outer(self) -> Extent | None:
        """An extent of the whole dimension that covers these elements: up to the last place of the outermost one."""
        first = self.limits[0]
        return None if first is None else first.scaled(math.prod(self.sizes[1:]))

    def places(self, sizes: Sequence[int]) -> list[int]:
        """Return where these elements are, for sizes of a call."""
        found = [0]
        for size, limit in zip(self.sizes, self.limits):
            found = [at * size + k for at in found for k in range(size if limit is None else min(size, max(0, limit.at(sizes))))]
        return found


#: Values of a size that are tried, to find out how a function of it grows.
_MOST_TRIED = 1 << 12
#: The largest product that is a size: no arithmetic with it overflows.
_MOST = 1 << 40
#: Which elements of a dimension are wanted.
Limit = Union[Extent, Digits]
#: What is wanted of a tensor: of each dimension the first elements, or all of them (None).
Wanted = tuple[Union[Limit, None], ...]


def outer(limit: Limit | None) -> Extent | None:
    """Return an extent that covers a limit."""
    return limit.outer if isinstance(limit, Digits) else limit


def parts_of(size: int, limit: Limit | None) -> list[tuple[int, Extent | None]]:
    """Return a dimension of a size as those that were merged to it, each with its extent; as itself if none were."""
    return [*zip(limit.sizes, limit.limits)] if isinstance(limit, Digits) else [(size, limit)]


def sizes_of(wanted: Sequence[Limit | None]) -> list[int]:
    """Return the sizes of the call that decide what is wanted, in order."""
    return sorted({e.size for limit in wanted for _, e in parts_of(0, limit) if e is not None and e.factor})


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

    def clipped(self, limit: Limit | None, whole: int) -> Limit | None:
        """Return a limit of a dimension, None if that is always all of it."""
        if isinstance(limit, Digits) and math.prod(limit.sizes) == whole:
            return self.merged(parts_of(whole, limit))
        return self.shortened(limit, whole)

    def shortened(self, limit: Limit | None, whole: int) -> Extent | None:
        """Return an extent of a dimension that covers a limit, None if that is always all of it."""
        extent = outer(limit)
        return None if extent is None or self.range(extent)[0] >= whole else extent

    def merged(self, parts: Sequence[tuple[int, Extent | None]]) -> Limit | None:
        """Return the limit of a dimension that others are merged to, given as their sizes and extents, the outermost first."""
        found: list[tuple[int, Extent | None]] = []
        for size, given in parts:
            extent = self.shortened(given, size)
            if extent is None and found:
                before, limit = found[-1]
                found[-1] = (before * size, None if limit is None else limit.scaled(size))
            elif size != 1:
                found.append((size, extent))
        if len(found) < 2:
            return found[0][1] if found else None
        return Digits(tuple(n for n, _ in found), tuple(e for _, e in found))

    def regrouped(self, parts: Sequence[tuple[int, Limit | None]], sizes: Sequence[int]) -> list[Limit | None]:
        """Return the limits of dimensions that hold the elements of others in their order, given as sizes and limits.

        A limit that no dimension alone can say is left out: it covers more.
        """
        ahead: list[tuple[int, Extent | None]] = []
        for size, limit in reversed(parts):
            ahead += reversed(parts_of(size, limit))
        found: list[Limit | None] = []
        for size in sizes:
            taken: list[tuple[int, Extent | None]] = []
            while size > 1 and ahead:
                n, extent = ahead.pop()
                if n and size % n == 0:
                    taken.append((n, extent))
                    size //= n
                elif n and n % size == 0:
                    taken.append((size, _divided(extent, n // size)))
                    ahead.append((n // size, None))
                    size = 1
                elif ahead:  # with the next one as one dimension
                    rows, _ = ahead.pop()
                    ahead.append((n * rows, None if extent is None else extent.scaled(rows)))
            found.append(self.merged([*taken, (size, None)]))
        return found

    def covering(self, size: int, needed: Callable[[int], int]) -> Extent | None:
        """Return an extent that is never less than a function of a size, and not much more; None if the size has too many values."""
        least, most = self.bounds[size]
        if most - least > _MOST_TRIED:
            return None
        values = {n: needed(n) for n in range(least, most + 1)}
        slope = (values[most] - values[least]) // max(most - least, 1)
        lines = [Extent(size, f, max(v - f * n for n, v in values.items())) for f in (slope, slope + 1, slope + 2)]
        # the least mean of what it is more than needed
        return min(lines, key=lambda e: sum(min(e.factor * n + e.constant, values[most]) / max(v, 1) for n, v in values.items()))

    def covers(self, a: Extent, b: Extent) -> bool:
        """Whether ``a`` is never less than ``b``."""
        if a.factor and b.factor and a.size != b.size:
            return self.range(a)[0] >= self.range(b)[1]
        known = a if a.factor else b
        return self.range(Extent(known.size, a.factor - b.factor, a.constant - b.constant))[0] >= 0

    def joined(self, a: Limit | None, b: Limit | None) -> Limit | None:
        """Return what covers both."""
        if a is None or b is None:
            return None
        if a == b:
            return a
        if isinstance(a, Extent) and isinstance(b, Extent):
            return a if self.covers(a, b) else b if self.covers(b, a) else None
        sizes = a.sizes if isinstance(a, Digits) else b.sizes if isinstance(b, Digits) else ()
        both = [self.regrouped([(math.prod(sizes), x)], sizes) for x in (a, b)]
        return self.merged([(n, outer(self.joined(outer(x), outer(y)))) for n, x, y in zip(sizes, *both)])

    def union(self, a: Wanted | None, b: Wanted | None) -> Wanted | None:
        """Return what covers both; None stands for nothing at all."""
        if a is None or b is None:
            return b if a is None else a
        return tuple(self.joined(x, y) for x, y in zip(a, b, strict=True))

    def reshaped(self, wanted: Wanted, shape: Sequence[int], other: Sequence[int]) -> Wanted:
        """Return what is wanted of the same elements, in order, in another shape."""
        found: list[Limit | None] = [None] * len(other)
        for dims, others in _groups(shape, other):
            limits = self.regrouped([(shape[d], wanted[d]) for d in dims], [other[o] for o in others])
            for o, limit in zip(others, limits):
                found[o] = limit
        return tuple(found)


def _divided(extent: Extent | None, size: int) -> Extent | None:
    """Return how many parts of a size the first elements of a dimension reach into; None if no size of the call says so."""
    if extent is None or extent.factor % size:
        return None
    return Extent(extent.size, extent.factor // size, -(-extent.constant // size))


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
