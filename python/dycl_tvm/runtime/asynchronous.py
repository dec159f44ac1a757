# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls of a module that go on in a thread of their own, as futures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dycl_tvm.errors import CancelledError


class Ticket:
    """What cancels one call and no other, whether it waits for its turn or runs. The call runs ``with`` it.

    Parameters
    ----------
    cancel : callable
        Ends the call that runs.

    Attributes
    ----------
    address : int
        Of a number that cancels the call if it is not 0 when the call begins.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._cancelled = ctypes.c_int32()
        self.address = ctypes.addressof(self._cancelled)
        self._lock = threading.Lock()  # the call does not end, and so no other begins, while it is cancelled
        self._runs = False

    def __enter__(self) -> None:
        with self._lock:
            if self._cancelled.value:  # libraries of version 0.2 do not look there
                raise CancelledError("the call was cancelled before it began")
            self._runs = True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._runs = False

    def cancel(self) -> None:
        """Cancel the call."""
        with self._lock:
            self._cancelled.value = 1
            if self._runs:
                self._cancel()


class RunFuture(Future[Any]):
    """The result of a call that goes on in a thread; also for ``asyncio.wrap_future``.

    Parameters
    ----------
    call : callable
        ``call(ticket)`` makes the call.
    cancel : callable
        Ends the call that runs.
    """

    def __init__(self, call: Callable[[Ticket], Any], cancel: Callable[[], None]) -> None:
        super().__init__()
        self._call, self._ticket = call, Ticket(cancel)
        self.set_running_or_notify_cancel()  # it cannot be taken back, but ended

    def start(self) -> None:
        """Make the call in a thread that the interpreter waits for at its end."""
        threading.Thread(target=self._work, name="dycl-run").start()

    def cancel(self) -> bool:
        """End the call before its next kernel: the future's exception is then a ``dycl_tvm.CancelledError``.

        Returns
        -------
        bool
            False if the call had ended. True does not say that it will be in time.
        """
        if self.done():
            return False
        self._ticket.cancel()
        return True

    def _work(self) -> None:
        try:
            result = self._call(self._ticket)
        except BaseException as error:  # whoever asks for the result gets it
            self.set_exception(error)
        else:
            self.set_result(result)
