# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Python's garbage collector while a network is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Let full collections look only at objects made from now on.

    PyTorch and TVM keep a million objects alive, none of which a build makes garbage. A build causes several full
    collections, and each of them would visit all these: a tenth of the time that a small network takes. If
    objects are frozen already, by the user (to fork servers) or by a build in another thread, nothing is changed.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
