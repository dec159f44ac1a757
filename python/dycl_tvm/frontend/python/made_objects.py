# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects that a call makes and leaves for the next: a cache, a record. All that one holds is in its attributes, so these are kept."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch

from dycl_tvm.errors import StateError
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.compiled import is_python
from dycl_tvm.frontend.trace.heap.places import in_slots, space_of
from dycl_tvm.frontend.trace.join.captured import Captured, Items, Plain, capture, is_container
from dycl_tvm.frontend.trace.join.poison import Poison
from dycl_tvm.frontend.trace.session import current

#: How deep objects may lie in each other.
_MOST_DEEP = 20


def opened(c: Captured, lives_on: Callable[[Any], bool], depth: int = 0) -> Captured:
    """Return what a call leaves with the objects in it that it has made as what they hold."""
    if depth > _MOST_DEEP:
        return c
    if isinstance(c, Items) and (isinstance(c.obj, tuple) or not lives_on(c.obj)):
        items = [opened(i, lives_on, depth + 1) for i in c.items]
        return replace(c, items=items) if any(a is not b for a, b in zip(items, c.items)) else c
    if not isinstance(c, Plain) or not _is_made(c.obj, lives_on):
        return c
    held = {**(space_of(c.obj) or {}), **dict(in_slots(c.obj))}
    return Items(c.obj, [opened(capture(v), lives_on, depth + 1) for v in held.values()], tuple(held))


def refuse_two_names(x: Any, name: str) -> NoReturn:
    """Refuse an object that a call leaves under two names: the next would find two, and the program may ask whether they are one."""
    raise StateError(
        f"`{name}` is a {type(x).__name__} that a call makes and leaves under two names",
        current().origin(),
        "leave it under one name, or make it in __init__",
    )


def _is_made(x: Any, lives_on: Callable[[Any], bool]) -> bool:
    """Whether an object is one that a call has made, that nothing refers to weakly, and that is no more than what its attributes hold."""
    kind: Any = type(x)
    if not _is_record(kind) or is_container(x) or lives_on(x):
        return False
    birth = current().heap.birth
    return bool(birth(x)) and not birth(kind) and not weakref.getweakrefcount(x)


@functools.cache
def _is_record(kind: Any) -> bool:
    """Whether objects of a class hold what is in their attributes, and nothing else."""
    if issubclass(kind, (OwnValue, Poison, torch.nn.Module)) or hasattr(kind, "__del__"):
        return False
    return kind.__mro__[-1] is object and all(map(is_python, kind.__mro__[:-1])) and kind is not object
