# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sequences of requests, each with a session that keeps the state between them.

A sequence changes by calls that succeed only: one that fails leaves it as it was, so that the client may send the request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dycl_tvm.runtime import Module
from dycl_tvm.serve.failures import RequestError, Status, invalid
from dycl_tvm.serve.slots import Slots


class Sequence:
    """A sequence that is open, or that a request is about to open (``session`` is None)."""

    def __init__(self, now: float) -> None:
        self.session: Module | None = None
        self.turn = Slots(1)  # requests of a sequence run in the order in which they came
        self.users, self.used = 0, now


class Sequences:
    """The sequences of one model.

    Parameters
    ----------
    most : int
        How many there may be.
    idle : float
        Seconds after which a sequence that nobody calls is forgotten.
    free : callable
        Takes the sessions of sequences that have ended.
    """

    def __init__(self, most: int, idle: float, free: Callable[[Module], None]) -> None:
        self._most, self._idle, self._free = most, idle, free
        self._open: dict[int | str, Sequence] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def turn(self, name: int | str, start: bool, until: float | None) -> AsyncIterator[Sequence]:
        """Wait for the turn of a request of a sequence.

        Raises
        ------
        RequestError
            If the sequence is not open, or if one more cannot be opened.
        """
        loop = asyncio.get_running_loop()
        sequence = self._open.get(name)
        if sequence is None:
            if not start:
                raise _not_open(name)
            if len(self._open) >= self._most:
                raise RequestError(Status.BUSY, f"all {self._most} sequences that the server keeps are in use")
            sequence = self._open[name] = Sequence(loop.time())
            self._watch()
        sequence.users += 1
        try:
            await sequence.turn.acquire(until)
            try:
                if sequence.session is None and not start:
                    raise _not_open(name)
                yield sequence
            finally:
                sequence.turn.release()
        finally:
            sequence.users -= 1
            sequence.used = loop.time()
            if sequence.session is None and not sequence.users:
                del self._open[name]

    def close(self, sequence: Sequence) -> None:
        """End a sequence, in its turn."""
        if sequence.session is not None:
            self._free(sequence.session)
            sequence.session = None

    def _watch(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(min(self._idle, 1.0), self._forget)

    def _forget(self) -> None:
        self._sweep = None
        now = asyncio.get_running_loop().time()
        for name, sequence in list(self._open.items()):
            if not sequence.users and now - sequence.used >= self._idle:
                self.close(sequence)
                del self._open[name]
        if self._open:
            self._watch()


def _not_open(name: int | str) -> RequestError:
    return invalid(
        f"the sequence {name!r} is not open here: it has ended, was forgotten because nobody called, or began elsewhere; "
        "its first request has sequence_start"
    )
