# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The ring of events that a session writes while it is profiled, and the runs that the events tell of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import byref, c_size_t, c_uint64, c_void_p, sizeof
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi

#: ``DyclEvent``, and what its ``kind`` says.
EVENT = np.dtype([("begin", "u8"), ("end", "u8"), ("kind", "u4"), ("index", "u4"), ("choice", "u4"), ("reserved", "u4")])
START, CALL, DECISION, RUN = range(4)
#: Instead of the return site of a run that ended in an error.
_FAILED = 0xFFFFFFFF


class Ring:
    """Events of one session. Its memory must live until :meth:`stop`, or as long as the session.

    Parameters
    ----------
    library : ctypes.CDLL
    capacity : int
        How many events there is room for. The oldest make room for others.
    every : int, optional
        Of so many runs one is timed inside. Otherwise as many are as cost little.

    Attributes
    ----------
    lost : int
        Events that have made room, unread.
    """

    def __init__(self, library: ctypes.CDLL, capacity: int, every: int | None) -> None:
        if capacity <= 0:
            raise UsageError(f"a profile needs room for events, got {capacity}")
        if every is not None and not 1 <= every < 2**32:
            raise UsageError(f"of how many runs one is timed is a number from 1 on, got {every}")
        capi.demand(library, "dycl_profile_start")
        self._library, self._every = library, every or 0
        self._events = np.zeros(capacity, EVENT)
        self._events["kind"] = 0  # the system gives the pages now, not to the runs that write to them first
        self._read = np.zeros(min(capacity, 1 << 14), EVENT)
        self.lost = self._lost_before = 0

    def start(self, session: c_void_p) -> None:
        """Let the session write events from its next run on."""
        options = capi.ProfileOptions(sizeof(capi.ProfileOptions), self._events.ctypes.data, len(self._events), self._every)
        capi.check(self._library, self._library.dycl_profile_start(session, byref(options)))
        self._lost_before = self.lost  # the session counts from its start on

    def read(self, session: c_void_p) -> Iterator[Any]:
        """Yield the events since the last time, oldest first."""
        written, lost = c_size_t(), c_uint64()
        while True:
            taken = self._read.ctypes.data, len(self._read), byref(written), byref(lost)
            capi.check(self._library, self._library.dycl_profile_read(session, *taken))
            self.lost = self._lost_before + lost.value
            if not written.value:
                return
            yield from self._read[: written.value].tolist()

    def stop(self, session: c_void_p) -> None:
        """Take the memory back."""
        capi.check(self._library, self._library.dycl_profile_stop(session))


@dataclass
class RecordedRun:
    """One run; times are nanoseconds.

    Attributes
    ----------
    begin, started, end : int
        When it was called, when its inputs were bound, when it had ended.
    site : int or None
        The return site; None where it failed.
    calls : list of (int, int, int)
        Kernel calls in order: number, begin and end.
    decisions : list of (int, int, int)
        Decisions in order: number, choice, when.
    timed : bool
        Whether it was timed inside. Otherwise nothing is known of its kernels, nor when decisions were taken.
    weight : int
        In how many runs, it among them, one was chosen to be timed inside.
    """

    begin: int
    started: int
    end: int = 0
    site: int | None = None
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    decisions: list[tuple[int, int, int]] = field(default_factory=list)
    timed: bool = True
    weight: int = 1


def runs_of(events: Iterable[Any]) -> Iterator[RecordedRun | None]:
    """Yield the runs that events tell of; None for one whose first events are lost."""
    run: RecordedRun | None = None
    headless = False
    for begin, end, kind, index, choice, _ in events:
        if kind == START:
            run, headless = RecordedRun(begin, end, timed=choice == 0, weight=max(1, index)), False
        elif run is None:
            headless = True
        elif kind == CALL:
            run.calls.append((index, begin, end))
        elif kind == DECISION:
            run.decisions.append((index, choice, begin))
        if kind == RUN:
            if headless:
                yield None
            elif run is not None:
                run.end, run.site = end, None if index == _FAILED else index
                yield run
            run, headless = None, False
