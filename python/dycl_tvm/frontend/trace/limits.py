# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How far staging may go."""

from __future__ import annotations

from dataclasses import dataclass

#: How many times the forward may be run again because paths could not be joined.
MAX_RUNS = 1000
#: How many trips of a loop are unrolled, if its state has no form that all trips share and the user gave no bound, to see whether it ends.
MAX_TRIPS = 16
#: How many calls of one function may be under way whose recursion has a depth that is known only at run time: as many as Python has.
MAX_RECURSION = 1000
#: How long staging may take, in seconds.
MAX_SECONDS = 600.0
#: How many bytes of memory staging may take.
MAX_MEMORY = 4 * 2**30
#: How many times a program may be staged again because it makes new state each time.
MAX_ROUNDS = 32


@dataclass(frozen=True)
class Limits:
    """Bounds that the user can set.

    Attributes
    ----------
    runs : int
        How many times the program may be run.
    loop_trips : int, optional
        How many trips a loop may take whose trip count is known only at run time.
    seconds : float
        How long staging may take.
    memory : int
        How many bytes of memory staging may take.
    recursion : int
        How many calls of one function may be under way in a recursion whose depth is known only at run time.
    length : int, optional
        How long a dimension may be whose size is known only at run time, if nothing else bounds it.
    """

    runs: int = MAX_RUNS
    loop_trips: int | None = None
    seconds: float = MAX_SECONDS
    memory: int = MAX_MEMORY
    recursion: int = MAX_RECURSION
    length: int | None = None
