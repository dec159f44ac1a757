# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What staging may spend: a program without end, or with more paths than anyone can wait for, is refused and not run on for ever."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable

from dycl_tvm.errors import StagingLimitError
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.hcfg.nodes import Origin

#: Steps between two looks at the clock, at the memory, and at the line that is being run.
_INTERVAL = 64


class Budget:
    """The seconds and bytes of one staging, and where they go.

    Parameters
    ----------
    limits : Limits
    origin : callable
        Returns the place in the user's code that is being run.
    """

    def __init__(self, limits: Limits, origin: Callable[[], Origin | None]) -> None:
        self._limits, self._origin = limits, origin
        self._deadline = time.monotonic() + limits.seconds
        self._most = _resident() + limits.memory
        self._steps = 0
        self._seen: Counter[Origin] = Counter()

    def step(self) -> None:
        """Count an operation, an iteration or a call.

        Raises
        ------
        StagingLimitError
            If the seconds or bytes are spent; the message names the line that was seen most.
        """
        self._steps += 1
        if self._steps % _INTERVAL:
            return
        origin = self._origin()
        if origin is not None:
            self._seen[origin] += 1
        if time.monotonic() > self._deadline:
            self._refuse(f"staging takes more than {self._limits.seconds:g} seconds", "max_seconds")
        if _resident() > self._most:
            self._refuse(f"staging takes more than {self._limits.memory / 2**20:.0f} MiB of memory", "max_memory")

    def _refuse(self, reason: str, parameter: str) -> None:
        origin = max(self._seen, key=lambda o: self._seen[o], default=None)
        share = "" if origin is None else f"; {100 * self._seen[origin] / sum(self._seen.values()):.0f} % of it at this line"
        raise StagingLimitError(
            f"{reason}{share}",
            origin,
            "bound loops and recursion by numbers that Python knows, give variables one type and structure on all paths, "
            f"or raise {parameter}",
        )


def _resident() -> int:
    """Return the bytes of memory that this process has."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
