# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How far staging may go."""

from __future__ import annotations

from dataclasses import dataclass

#: How many times the forward may be run again because paths could not be joined.
MAX_RUNS = 1000


@dataclass(frozen=True)
class Limits:
    """Bounds that the user can set.

    Attributes
    ----------
    runs : int
        How many times the program may be run.
    loop_trips : int, optional
        How many trips a loop may take whose trip count is known only at run time.
    """

    runs: int = MAX_RUNS
    loop_trips: int | None = None
