# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a reduction keeps of the elements that it has seen, how it takes another one, and how two such states become one.

A state is several numbers. :meth:`update` and :meth:`merge` return the new ones in the order in which they may be stored: none reads
one before it. The order in which elements are taken is free, as states keep what depends on it (the index of the first extreme element).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tvm import tirx

#: An index beyond all elements.
_NONE = 2**31 - 1


class Reducer(Protocol):
    """A reduction, without what is reduced over which axes."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of a state."""

    @property
    def cost(self) -> int:
        """Vector operations an element."""

    def start(self, first: Any) -> Sequence[Any]:
        """Return the state before the first element, whose index is ``first`` (or later than that of some other state)."""

    def update(self, state: Sequence[Any], item: Any, index: Any) -> Sequence[Any]:
        """Return the state with one more element, whose index is int32."""

    def merge(self, a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
        """Return the state of both."""

    def results(self, state: Sequence[Any]) -> Sequence[Any]:
        """Return what is computed: one expression an output."""


def _is_nan(x: Any) -> Any:
    return tirx.isnan(x)  # TVM folds x != x


@dataclass(frozen=True, eq=False)
class Fold:
    """An associative and commutative ``combine`` from its identity: sums, products, extremes of integers."""

    dtype: str
    identity: Any
    combine: Callable[[Any, Any], Any]
    cost: int = 1

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.dtype,)

    def start(self, first: Any) -> Sequence[Any]:
        return [self.identity]

    def update(self, state: Sequence[Any], item: Any, index: Any) -> Sequence[Any]:
        return [self.combine(state[0], item)]

    def merge(self, a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
        return [self.combine(a[0], b[0])]

    def results(self, state: Sequence[Any]) -> Sequence[Any]:
        return [state[0]]


@dataclass(frozen=True)
class Extreme:
    """The largest or smallest float; NaN if there is one.

    State: a NaN that was seen or 0, the extreme of the rest. A comparison is false for NaN, so each of the two takes one instruction
    or two, and waits for one of the step before.
    """

    dtype: str
    is_max: bool
    cost: int = 3

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.dtype, self.dtype)

    def start(self, first: Any) -> Sequence[Any]:
        return [tirx.const(0, self.dtype), tirx.const(-math.inf if self.is_max else math.inf, self.dtype)]

    def update(self, state: Sequence[Any], item: Any, index: Any) -> Sequence[Any]:
        return self.merge(state, [item, item])

    def merge(self, a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
        better = b[1] > a[1] if self.is_max else b[1] < a[1]
        return [tirx.Select(_is_nan(b[0]), b[0], a[0]), tirx.Select(better, b[1], a[1])]

    def results(self, state: Sequence[Any]) -> Sequence[Any]:
        return [tirx.Select(_is_nan(state[0]), state[0], state[1])]


@dataclass(frozen=True)
class ArgExtreme:
    """The index of the first NaN, or else of the first largest or smallest element; and that element.

    State: the first index of a NaN, the first index of the extreme of the rest, that extreme. Elements of one state must come in the
    order of their indices.
    """

    dtype: str
    is_max: bool
    identity: Any
    cost: int = 5

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("int32", "int32", self.dtype)

    @property
    def _has_nan(self) -> bool:
        return "float" in self.dtype

    def start(self, first: Any) -> Sequence[Any]:
        # all elements may equal the identity: then the first one is the answer
        return [tirx.const(_NONE, "int32"), first, self.identity]

    def _better(self, a: Any, b: Any) -> Any:
        return a > b if self.is_max else a < b

    def update(self, state: Sequence[Any], item: Any, index: Any) -> Sequence[Any]:
        nan, at, value = state
        found = tirx.Select(_is_nan(item), tirx.min(nan, index), nan) if self._has_nan else nan
        better = self._better(item, value)
        return [found, tirx.Select(better, index, at), tirx.Select(better, item, value)]

    def merge(self, a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
        better = self._better(b[2], a[2])
        earlier = tirx.And(tirx.EQ(b[2], a[2]), b[1] < a[1])
        return [tirx.min(a[0], b[0]), tirx.Select(tirx.Or(better, earlier), b[1], a[1]), tirx.Select(better, b[2], a[2])]

    def results(self, state: Sequence[Any]) -> Sequence[Any]:
        nan, at, value = state
        if not self._has_nan:
            return [at.astype("int64"), value]
        there = nan < tirx.const(_NONE, "int32")
        width = int(self.dtype.removeprefix("float"))
        bits = int(np.dtype(self.dtype).type(math.nan).view(f"uint{width}"))
        no_number = tirx.reinterpret(self.dtype, tirx.const(bits, f"uint{width}"))
        return [tirx.Select(there, nan, at).astype("int64"), tirx.Select(there, no_number, value)]
