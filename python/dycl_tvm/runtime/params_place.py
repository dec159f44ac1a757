# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where the bytes of a params file are, and who keeps them: a path, a file descriptor, memory of the program."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any, Literal

import numpy as np

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi

#: How ``load`` has the weights: mapped, or as they lie in the program's memory; copied; copied into sealed memory.
Mmap = Literal[True, False, "sealed"]

_COPIES: dict[Any, int] = {True: 0, False: 1, "sealed": 2}


class ParamsPlace:
    """What ``load`` was given as ``params``, for the C API.

    Parameters
    ----------
    params : path-like, int, or buffer, optional
        The path, a file descriptor, or the bytes themselves.
    mmap : bool or "sealed"
    offset, size : int
        Which bytes of a file that a descriptor is of; a size of 0 means up to its end.

    Attributes
    ----------
    path : str or None
        Absolute; None where the params are not at a path.
    mmap : bool or "sealed"
    can_be_reopened : bool
        Whether another process can open them again by the path, or they are inside the library.
    """

    def __init__(self, params: Any, mmap: Any = True, offset: int = 0, size: int = 0) -> None:
        if mmap not in _COPIES:
            raise UsageError(f"mmap is True, False or 'sealed', not {mmap!r}")
        self.path: str | None = None
        self.mmap = mmap
        self._options = capi.ModelOptions(ctypes.sizeof(capi.ModelOptions), _COPIES[mmap])
        #: the array over memory of the program, which keeps it alive and, of a bytearray, of its size
        self._memory: np.ndarray | None = None
        if isinstance(params, (int, np.integer)) and not isinstance(params, bool):
            self._options.params_from = capi.PARAMS_FROM_DESCRIPTOR
            self._options.params_fd = _number("a file descriptor", params, 31)
            self._options.params_offset = _number("params_offset", offset, 64)
            self._options.params_size = _number("params_size", size, 64)
        elif offset or size:
            raise UsageError("params_offset and params_size are for params that are given as a file descriptor")
        elif isinstance(params, (str, os.PathLike)):
            self.path = os.path.abspath(os.fspath(params))
        elif params is not None:
            self._borrow(params)
        self.can_be_reopened = self.path is not None or params is None

    def _borrow(self, params: Any) -> None:
        try:
            memory = np.frombuffer(params, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise UsageError(f"params is a path, a file descriptor or a contiguous buffer of bytes: {error}") from None
        self._memory = memory
        self._options.params_from = capi.PARAMS_FROM_MEMORY
        self._options.params_data, self._options.params_size = memory.ctypes.data, memory.size

    def open(self, library: ctypes.CDLL) -> ctypes.c_void_p:
        """Return the model that a library makes of them."""
        if self._options.params_from != capi.PARAMS_FROM_PATH or self.mmap == "sealed":
            # A library that has it knows these options; others would look for a path, and only copy.
            capi.demand(library, "dycl_params_fd")
        handle = ctypes.c_void_p()
        where = None if self.path is None else os.fsencode(self.path)
        capi.check(library, library.dycl_model_create_with(where, ctypes.byref(self._options), ctypes.byref(handle)))
        return handle


def _number(name: str, given: Any, bits: int) -> int:
    number = operator.index(given)
    if number < 0 or number >= 1 << bits:  # C would take other bits of it
        raise UsageError(f"{name} is not negative and has {bits} bits at most: {number}")
    return number
