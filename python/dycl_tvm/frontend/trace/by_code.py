# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A cache of what is found of code objects, by their identity: to hash one takes long, and equal ones may stand in two files."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from dycl_tvm.frontend.trace.bounded import Bounded

Rest = ParamSpec("Rest")
Found = TypeVar("Found")


def by_code(find: Callable[Concatenate[types.CodeType, Rest], Found]) -> Callable[Concatenate[types.CodeType, Rest], Found]:
    """Return a function that calls ``find`` once for each code object with the same other arguments, given by position."""
    known = Bounded[tuple[object, ...], tuple[types.CodeType, Found]](1 << 14)

    @functools.wraps(find)
    def of(code: types.CodeType, *rest: Rest.args, **named: Rest.kwargs) -> Found:
        key = (id(code), *rest)
        found = known.get(key)
        if found is None:
            found = known[key] = (code, find(code, *rest, **named))  # which keeps the code, and so its identity
        return found[1]

    return of
