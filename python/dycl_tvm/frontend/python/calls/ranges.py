# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``range(...)`` gives where a bound is known only at run time: the program takes it for a range, whatever it does with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.iterators import decided, sequence
from dycl_tvm.frontend.python.flow.for_loops import SymbolicRange
from dycl_tvm.frontend.python.flow.iteration import ByIndex, InTurn
from dycl_tvm.frontend.trace.heap.places import attribute_of
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars

#: As many trips as a loop is unrolled for that has no bound.
_MOST_ITEMS = 16


class RunTimeRange(SymbolicRange, ByIndex):
    """A ``for`` loop over it is rolled (:mod:`..flow.loops`); all else decides how long it is, or is refused."""

    __class__ = range  # type: ignore[assignment]

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        super().__init__(start, stop, step)
        self.__dict__["items"] = None
        current().heap.born(self)

    def settled(self) -> tuple[Any, ...]:
        """Return the items. How many there are is decided, so each length is a path of its own."""
        if self.__dict__["items"] is None:
            items: list[Any] = []
            bounded = scalars.bounds_of(self.start) is not None and scalars.bounds_of(self.stop) is not None
            value, most = self.start, current().limits.loop_trips or _MOST_ITEMS
            while _is_before(value, self.stop, self.step):
                if len(items) == most and not bounded:
                    raise UnsupportedError(
                        "the items of a range with a bound known only at run time, of which there may be any number",
                        current().origin(),
                        "bound it (`range(min(n, 8))`), or loop over it with `for`",
                    )
                items.append(value)
                value = value + self.step
            current().journal.touch(attribute_of(self, "items"))
            self.__dict__["items"] = tuple(items)
        return self.__dict__["items"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return sequence(self.settled())

    def __reversed__(self) -> Iterator[Any]:
        items = self.settled()
        return sequence(items, len(items) - 1, -1)

    def in_turn(self) -> InTurn:
        """Return what a loop goes over."""
        return InTurn(self.length(), lambda index: self.start + self.step * index, ())

    def are_any(self) -> Any:
        """Return whether there are any numbers."""
        return self.length() > 0

    def length(self) -> Any:
        """Return ``len(self)``, a number that is known at run time."""
        size = abs(self.step)
        distance = self.stop - self.start if self.step > 0 else self.start - self.stop
        length = (distance + (size - 1)) // size
        return scalars.select(length > 0, length, 0)

    def __bool__(self) -> bool:
        return _is_before(self.start, self.stop, self.step)

    def __len__(self) -> int:
        return len(self.settled())

    def __getitem__(self, index: Any) -> Any:
        return self.settled()[index]

    def __eq__(self, other: object) -> Any:
        self._refuse("a comparison")

    def __hash__(self) -> int:
        self._refuse("the hash")

    def __repr__(self) -> str:
        self._refuse("the text")

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse("a copy")

    def index(self, x: Any) -> Any:
        """Refused, like all that asks for one of the items."""
        self._refuse("`index`")

    def count(self, x: Any) -> Any:
        """Refused likewise."""
        self._refuse("`count`")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{what} of a range with a bound known only at run time",
            current().origin(),
            "loop over it, or compute with its bounds",
        )


def _is_before(value: Any, stop: Any, step: int) -> bool:
    bounds, ends = scalars.bounds_of(value), scalars.bounds_of(stop)
    if bounds is not None and ends is not None and (bounds[0] >= ends[1] if step > 0 else bounds[1] <= ends[0]):
        return False
    return decided(value < stop if step > 0 else value > stop)
