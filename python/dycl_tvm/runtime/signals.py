# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which signal ends a call: Ctrl-C, in the main thread."""

from __future__ import annotations

import importlib
import os
import signal
import threading

#: ``signal.getsignal`` makes an enum of what this gives, in microseconds.
_handler_of = importlib.import_module("_signal").getsignal
_SIGINT = int(signal.SIGINT)
#: Python's own handler says that the program is to stop; others may want it to go on.
_STOPS = signal.default_int_handler
_this_thread = threading.get_ident
_main_thread = threading.main_thread().ident


def _forked() -> None:
    global _main_thread
    _main_thread = _this_thread()


os.register_at_fork(after_in_child=_forked)


def signal_that_stops() -> int:
    """Return the signal that ends a call of this thread; 0 for none. Each call asks: it takes a tenth of a microsecond."""
    return _SIGINT if _this_thread() == _main_thread and _handler_of(_SIGINT) is _STOPS else 0
