# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Iterating as a ``for`` statement does, and what advances an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dycl_tvm.frontend.python.calls.class_patches import is_library_class
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current


def iterate(iterable: Any) -> Iterator[Any]:
    """Iterate as a ``for`` statement does."""
    if isinstance(iterable, Poison):
        use(iterable)
    iterator = iter(iterable)
    if iterator is not iterable:
        yield from iterator
        return
    while True:
        advancing(iterator)
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def advancing(x: Any) -> None:
    """Check an iterator that is about to be advanced: that cannot be undone, so it must have been made on the path at hand."""
    if _is_iterator(x):
        current().heap.check_undoable(x, "an iterator made before a branch is advanced in it")


def _is_iterator(x: Any) -> bool:
    """Whether ``x`` is an iterator whose position cannot be saved (that of a user's class is in its attributes)."""
    return hasattr(type(x), "__next__") and not isinstance(x, torch.Tensor) and is_library_class(type(x))
