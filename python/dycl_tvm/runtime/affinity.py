# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where the threads of parallel kernels run, and with which priority: one answer for all libraries of the process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from operator import index

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi, library


def set_affinity(cpus: Iterable[int] | None, nice: int = 0) -> None:
    """Let the threads of parallel kernels run on some CPUs only, and with a priority of their own.

    That is for the threads that all libraries of this process share, and for those of modules with a number of threads of their own that is
    said afterwards; not for the threads that call a module, which are the program's. There are as many shared threads then as CPUs, unless
    ``DYCL_NUM_THREADS`` says another number or there are threads already.

    Parameters
    ----------
    cpus : iterable of int, or None
        Numbers of CPUs. None: all that the process may use.
    nice : int, optional
        From -20 to 19; higher is later than other threads of the machine. Below that of the process it takes a privilege: where that lacks
        nothing changes, and the log of the library says so.

    Raises
    ------
    UsageError
        If the process may use none of these CPUs, or a number is wrong.
    """
    try:
        numbers, nice = [] if cpus is None else sorted({index(cpu) for cpu in cpus}), index(nice)
    except TypeError as error:
        raise UsageError(f"cpus are numbers of CPUs or None, and nice is a number: {error}") from None
    if cpus is not None and not numbers:
        raise UsageError("there must be a CPU for the threads; None stands for all")
    if any(cpu < 0 or cpu >= 1024 for cpu in numbers) or not -20 <= nice <= 19:
        raise UsageError("a CPU has a number from 0 to 1023, and nice is from -20 to 19")
    array = (ctypes.c_int32 * len(numbers))(*numbers)
    library.for_all(lambda opened: _tell(opened, array, nice))


def _tell(opened: ctypes.CDLL, cpus: ctypes.Array[ctypes.c_int32], nice: int) -> None:
    options = capi.ThreadOptions(ctypes.sizeof(capi.ThreadOptions), cpus, len(cpus), nice)
    capi.check(opened, opened.dycl_set_thread_options(ctypes.byref(options)))
