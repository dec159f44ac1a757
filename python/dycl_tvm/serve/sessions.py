# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sessions of one library, and the threads in which they run. A session runs one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dycl_tvm.runtime import Module

#: How often a run that nobody wants any more is told to end: when it is told first it may not have begun yet.
_AGAIN = 0.01


@dataclass(frozen=True)
class Work:
    """What a session is to do. ``until`` is a moment of ``time.monotonic()``."""

    leaves: list[Any]
    until: float | None = None
    reset: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run gave, the name of its path, and how long it took."""

    site: int
    leaves: list[Any]
    path: str
    seconds: float


class Sessions:
    """The sessions that are in no call and no sequence, and the threads.

    Parameters
    ----------
    module : Module
        The first session.
    threads : int
        How many calls may run at the same time.
    label : callable
        Gives the name of the path that a session's last run took.
    """

    def __init__(self, module: Module, threads: int, label: Callable[[Module], str]) -> None:
        self._first, self._kept, self._label = module, threads, label
        self._free = [module]
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"dycl-{module.name}")

    async def run(self, work: Work, session: Module | None = None) -> tuple[Module, Outcome]:
        """Run in a thread, in this session or in a free one, which is then the caller's to give back.

        If the caller is cancelled the run is too, and is over when this raises. So it is with errors.
        """
        used = [] if session is None else [session]

        def run() -> Outcome:
            if not used:
                used.append(self._taken())
            return self._run(work, used[0])

        future = asyncio.get_running_loop().run_in_executor(self._threads, run)
        done = False
        try:
            outcome = await asyncio.shield(future)
            done = True
        except asyncio.CancelledError:
            await self._ended(future, used)
            raise
        finally:
            if not done and session is None and used:
                self.give_back(used[0])
        return used[0], outcome

    async def _ended(self, future: asyncio.Future[Outcome], used: list[Module]) -> None:
        while not future.done():
            for session in used:
                session.cancel()
            try:
                await asyncio.wait({future}, timeout=_AGAIN)
            except asyncio.CancelledError:
                continue  # it is being ended already, and a session in a call cannot be given to another
        if not future.cancelled():
            future.exception()  # asked for, so that asyncio does not report that nobody has

    def _run(self, work: Work, session: Module) -> Outcome:
        if work.reset:
            session.reset_state()
        if work.seed is not None:
            session.manual_seed(work.seed)
        begun = time.monotonic()
        left = None if work.until is None else (work.until - begun) * 1e3
        site, leaves = session.run_leaves(work.leaves, deadline_ms=left)
        seconds = time.monotonic() - begun
        return Outcome(site, leaves, self._label(session), seconds)

    def _taken(self) -> Module:
        try:
            return self._free.pop()
        except IndexError:
            return self._first.new_session()

    def give_back(self, session: Module) -> None:
        """Keep a session for the next call, or free it if there are enough."""
        if len(self._free) < self._kept:
            self._free.append(session)
        elif session is not self._first:
            session.close()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
