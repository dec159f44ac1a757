# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Phases of a build: how long each took, and a line on stderr for those who wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Union

from dycl_tvm.errors import DyclError, InternalError

#: What ``build(progress=...)`` takes: a bool, or a function that gets one line of text at a time.
ProgressLike = Union[bool, None, Callable[[str], None]]


class Phases:
    """Measures named phases and tells about them.

    Parameters
    ----------
    progress : bool, callable or None
        True writes to stderr, a callable gets each line, None and False are quiet.
    """

    def __init__(self, progress: ProgressLike = None) -> None:
        self.seconds: dict[str, float] = {}
        self._listener_failed: Exception | None = None
        if callable(progress):
            self._say: Callable[[str], None] | None = progress
        else:
            self._say = _to_stderr if progress else None

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[None]:
        """Measure one phase; ``what`` says in a few words what is done.

        Raises
        ------
        InternalError
            In place of an exception that is none of this package's own.
        """
        self.tell(f"{name}: {what} ...")
        begin = time.perf_counter()
        try:
            yield
        except Exception as error:
            if isinstance(error, DyclError) or error is self._listener_failed:
                raise
            raise InternalError(f"the phase {name!r} of the build was under way ({what})", error) from error
        finally:
            took = time.perf_counter() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + took
        self.tell(f"{name}: {took:.1f} s")

    def step(self, name: str, done: int, total: int) -> None:
        """Say how far the phase under way is."""
        self.tell(f"  {name} {done} of {total}")

    def tell(self, line: str) -> None:
        """Say one line, if anybody listens."""
        if self._say is not None:
            try:
                self._say(line)
            except Exception as error:
                self._listener_failed = error
                raise


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
