# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Items that are named by a text with a number in it that is known only at run time: ``self.experts[f"expert_{i}"]``.

Of the names that a table has those can be told that are such texts, and for which numbers. So the item is chosen by the number, as one of
a list is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

from dycl_tvm.frontend.python.flow.choices import switch
from dycl_tvm.frontend.trace.join.texts import Text, is_whole, matching, number_in
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.raising import surely_leaves


def is_name(x: Any) -> bool:
    """Whether something is a text that may name an item."""
    return type(x) is Text and is_whole(x)


def named(names: Iterable[Any], text: Text, get: Callable[[str], Any], error: type[Exception]) -> Any:
    """Return what ``get`` gives for the one of some names that a text is; on paths on which it is none of them, there is an error."""
    found, number = matching(names, text), number_in(text)
    missing = error("a name with a number known only at run time is not there")
    if not surely_leaves(missing):
        missing = error(text)
    if not found:
        raise of_program(missing)
    numbers = sorted(found)
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        bounds = scalars.bounds_of(number)
        known = bounds is not None and bounds[0] >= first and bounds[1] <= last
        position, fine = number - first, True if known else (number >= first) & (number <= last)
    else:
        position, fine = 0, reduce(or_, [number == n for n in numbers])
        for at, n in enumerate(numbers):
            position = scalars.select(number == n, at, position)
    if fine is not True:
        require(fine, missing)
    return switch([get(found[n]) for n in numbers], position, inside=True)
