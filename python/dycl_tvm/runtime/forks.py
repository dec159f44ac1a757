# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What has to be told in a child of ``fork()``, where the other threads are not."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something with locks that a thread which is not there may hold."""

    def forked(self) -> None:
        """Make its locks anew."""


_told: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell(thing: Forkable) -> None:
    """Let something know, as long as it lives, that the process is a child now."""
    _told.add(thing)


def _forked() -> None:
    for thing in list(_told):
        thing.forked()


os.register_at_fork(after_in_child=_forked)
