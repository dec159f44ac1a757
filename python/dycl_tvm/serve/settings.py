# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The bounds of a server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from dycl_tvm.errors import UsageError


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Settings:
    """The bounds of a server; those of calls and sequences are of each model.

    Parameters
    ----------
    sessions : int
        Calls that run at the same time. By default one for each core.
    queue : int
        Calls that may wait; what comes beyond is refused as busy.
    threads : int, optional
        Threads of each session; left out, the sessions share the threads of the process.
    sequences : int
        Sequences that may be open; each holds a session.
    sequence_idle : float
        Seconds after which a sequence that nobody calls is forgotten.
    max_body : int, optional
        Bytes of a request. By default what the inputs may need as text.
    max_connections : int
        Connections of HTTP, and calls of gRPC.
    patience : float
        Seconds in which a client must have sent the head of a request, its body, and have read the next part of a response.
    grace : float
        Seconds that requests have to end when the server is told to.
    """

    sessions: int = field(default_factory=_cores)
    queue: int = 64
    threads: int | None = None
    sequences: int = 256
    sequence_idle: float = 300.0
    max_body: int | None = None
    max_connections: int = 1000
    patience: float = 30.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        for name in ("sessions", "max_connections", "patience", "sequence_idle"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("queue", "sequences", "grace"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.max_body is not None and self.max_body <= 0:
            raise UsageError(f"max_body must be positive, got {self.max_body}")
