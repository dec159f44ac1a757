# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Python's garbage collector while a network is staged and built."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: How many new objects there are between two collections of what staging makes.
_NEW_OBJECTS = 20_000
#: How many objects nobody has frozen but Python itself: version 3.12 begins with some.
_FROZEN_BY_PYTHON = gc.get_freeze_count() if sys.version_info[:2] == (3, 12) else 0
#: Whether a build has frozen what there is.
_frozen_here = False


def _is_frozen() -> bool:
    return _frozen_here or gc.get_freeze_count() > _FROZEN_BY_PYTHON  # Python counts them one by one


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Let collections look only at objects made from now on.

    PyTorch and TVM keep a million objects alive, none of which a build makes garbage. A build causes several full
    collections, and each of them would visit all these: a tenth of the time that a small network takes. If
    objects are frozen already, by the user (to fork servers) or by a build in another thread, nothing is changed.
    """
    global _frozen_here
    if _is_frozen():
        yield
        return
    gc.freeze()
    _frozen_here = True
    try:
        yield
    finally:
        _frozen_here = False
        gc.unfreeze()


@contextmanager
def apart_from_the_forward() -> Iterator[None]:
    """Keep the collector out of a program while it is staged.

    What was garbage before is not given up in it, so no finalizer of that runs; nothing is called when a collection begins or ends (a
    profiler that counts them is no part of the forward); and collections are rare, because nearly all that staging makes, it keeps until
    its end.
    """
    callbacks, threshold = list(gc.callbacks), gc.get_threshold()
    gc.callbacks.clear()
    if 0 < threshold[0] < _NEW_OBJECTS:  # otherwise it never runs, or another thread has asked for the same
        gc.set_threshold(_NEW_OBJECTS, *threshold[1:])
    try:
        with young_garbage_only():
            yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.extend(callbacks)


@contextmanager
def no_collections() -> Iterator[None]:
    """Let no collection begin by itself: finalizers that it runs would be taken for a part of what runs meanwhile."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def referrers(obj: Any) -> list[Any]:
    """Return what refers to an object, frozen objects too: Python leaves those out."""
    if not _is_frozen():
        return gc.get_referrers(obj)
    gc.unfreeze()
    try:
        return gc.get_referrers(obj)
    finally:
        gc.freeze()
