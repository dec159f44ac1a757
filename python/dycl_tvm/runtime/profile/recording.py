# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A profile that goes on: the runs of a session are added to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dycl_tvm.runtime.profile.profile import Profile
from dycl_tvm.runtime.profile.ring import Ring, runs_of
from dycl_tvm.runtime.profile.tables import tables
from dycl_tvm.runtime.profile.trace import write_trace

#: How many events there is room for where nothing else is said: 16 MB.
CAPACITY = 1 << 18


class Recording(Profile):
    """A profile of the runs inside of a ``with``. Made by :meth:`dycl_tvm.runtime.Module.profile`.

    Parameters
    ----------
    library : ctypes.CDLL
    metadata : dict
        Of the artefact.
    session : callable
        Gives a context in which the session, which is None once it is closed, is used by nobody else.
    rings : list
        Keeps what a session writes to as long as the session.
    capacity : int
        Events between two collections for which there is room.
    every : int, optional
        Of so many runs one is timed inside. Otherwise as many are as cost little.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        metadata: dict[str, Any],
        session: Callable[[], AbstractContextManager[ctypes.c_void_p | None]],
        rings: list[Ring],
        capacity: int = CAPACITY,
        every: int | None = None,
    ) -> None:
        self._ring, self._session, self._rings = Ring(library, capacity, every), session, rings  # an older library is refused here
        super().__init__(metadata)

    def __enter__(self) -> Recording:
        with self._session() as session:
            if session is not None:
                self._ring.start(session)
                self._rings.append(self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        with self._session() as session:
            if session is not None:
                try:
                    self._take(session)
                finally:
                    self._ring.stop(session)
                    self._rings.remove(self._ring)

    def collect(self) -> None:
        """Add the runs until now. At the end that is done anyway; in a long profile it makes room for events."""
        with self._session() as session:
            if session is not None:
                self._take(session)

    def save(self, path: str) -> None:
        """Write the profile to a file that Perfetto and Chrome show as a trace of the last runs; :func:`load_profile` reads it."""
        write_trace(self, path)

    def __str__(self) -> str:
        """Return the tables."""
        return "\n".join(tables(self))

    def _take(self, session: ctypes.c_void_p) -> None:
        self.add(runs_of(self._ring.read(session)))
        self.lost = self._ring.lost
