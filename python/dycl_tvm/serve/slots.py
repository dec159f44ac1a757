# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Places that requests wait for, first come, first served."""

from __future__ import annotations

import asyncio
import time

from dycl_tvm.serve.failures import RequestError, Status


class Slots:
    """A number of places. All calls are of one event loop."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    async def acquire(self, until: float | None) -> None:
        """Take a place, at the latest at the moment ``until`` of ``time.monotonic()``.

        Raises
        ------
        RequestError
            If there was none by then.
        """
        if self._free and not self._waiting:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting[place] = None
        alarm = None if until is None else loop.call_later(max(until - time.monotonic(), 0.0), _expire, place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.release()  # it was given away in the very moment in which the request ended
            raise
        finally:
            self._waiting.pop(place, None)
            if alarm is not None:
                alarm.cancel()

    def release(self) -> None:
        """Give a place back."""
        while self._waiting:
            place = next(iter(self._waiting))
            del self._waiting[place]
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


def _expire(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_exception(RequestError(Status.DEADLINE, "the deadline has passed while the request waited for a session"))
