# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whose call it is, where modules compute in one memory: a module alone, or all that were given the same arena."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError


class Turn:
    """One call at a time.

    Attributes
    ----------
    lock : threading.RLock
        Kept by a call. A signal handler may ask for the path in the middle of a call of its thread.
    busy : bool
        Whether the thread that holds the lock is in a call.
    """

    def __init__(self) -> None:
        self.lock, self.busy = threading.RLock(), False

    def forked(self) -> None:
        """In a child of fork(): a thread that does not exist there holds no lock."""
        if not self.lock.acquire(blocking=False):
            self.lock, self.busy = threading.RLock(), False
        else:
            self.lock.release()


_lock = threading.RLock()
_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Arena:
    """Memory of the program in which a session computes.

    Parameters
    ----------
    memory : buffer
        It may be written, and is kept alive. The library says whether it is large enough and begins at a multiple of 64 bytes.

    Attributes
    ----------
    begin, size : int
        Its address, and how many bytes it has.
    turn : Turn
        The same for all arenas that overlap: their modules take turns.

    Raises
    ------
    UsageError
        If it cannot be written, or overlaps arenas that do not overlap each other.
    """

    def __init__(self, memory: Any) -> None:
        try:
            array = np.frombuffer(memory, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise UsageError(f"an arena is a contiguous buffer of bytes that may be written: {error}") from None
        if not array.flags.writeable:
            raise UsageError("an arena is memory that may be written; this one is read-only")
        self._memory = array
        self.begin, self.size = array.ctypes.data, array.size
        self._end = self.begin + self.size
        with _lock:
            turns = {arena.turn for arena in _arenas if arena.begin < self._end and self.begin < arena._end}
            if len(turns) > 1:
                raise UsageError("the arena overlaps several others, whose modules do not take turns with each other")
            self.turn: Turn = turns.pop() if turns else Turn()
            _arenas.add(self)
