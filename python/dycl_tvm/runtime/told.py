# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a session tells of itself and of its last call."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from dycl_tvm.runtime import capi
from dycl_tvm.runtime.library import Library
from dycl_tvm.runtime.model import Model
from dycl_tvm.runtime.path import Path, path_of
from dycl_tvm.runtime.profile.budget import Budgets


class Told:
    """The part of a module that asks its session and changes nothing."""

    metadata: dict[str, Any]
    _library: Library
    _session: ctypes.c_void_p
    _lock: threading.RLock
    _site: int | None
    _entered: bool
    _budgets: Budgets

    def _live(self) -> Model:
        raise NotImplementedError

    def _check(self, status: int) -> None:
        raise NotImplementedError

    @property
    def last_path(self) -> Path:
        """The path that the last call took; empty if its inputs were refused, or if it has not come back yet (in a signal handler)."""
        total, written = ctypes.c_uint64(), ctypes.c_size_t()
        with self._lock:
            self._check(self._library.dycl_path(self._session, None, 0, None, ctypes.byref(total)))
            entries = (capi.PathEntry * max(min(total.value, 4096), 1))()
            self._check(self._library.dycl_path(self._session, entries, len(entries), ctypes.byref(written), ctypes.byref(total)))
            site, cut = self._site, self._budgets.cut(self._session)
        if not self._entered:
            return Path(None, None, ())
        taken = [(entry.decision, entry.choice) for entry in entries[: written.value]]
        return path_of(self.metadata, site, taken, total.value - written.value, cut)

    @property
    def path_key(self) -> bytes:
        """What tells the path of the last call from others: much faster to have than :attr:`last_path`, and to be compared only."""
        total, written = ctypes.c_uint64(), ctypes.c_size_t()
        entries = (capi.PathEntry * 4096)()
        with self._lock:
            self._check(self._library.dycl_path(self._session, entries, len(entries), ctypes.byref(written), ctypes.byref(total)))
            site = -1 if self._site is None else self._site
        return b"%d %d " % (site, total.value) + ctypes.string_at(entries, written.value * ctypes.sizeof(capi.PathEntry))

    @property
    def kernels_run(self) -> dict[str, int]:
        """How often each kernel ran in the last call, by name; kernels that did not run are left out."""
        names = [kernel["symbol"] for kernel in self.metadata["kernels"]]
        return {name: n for name, n in zip(names, self._counts(self._library.dycl_kernel_runs, len(names))) if n}

    @property
    def sub_dnns_run(self) -> dict[str, int]:
        """How many kernel calls each sub-DNN made in the last call, by name; those that did not run are left out."""
        found: dict[str, int] = {}
        calls = self.metadata["calls"]
        for call, n in zip(calls, self._counts(self._library.dycl_call_runs, len(calls))):
            if n:
                found[call["sub_dnn"]] = found.get(call["sub_dnn"], 0) + n
        return found

    @property
    def arena_bytes(self) -> int:
        """Bytes of the memory plan of one session."""
        return int(self._info().arena_bytes)

    @property
    def session_bytes(self) -> int:
        """Bytes of all memory of one session."""
        return int(self._info().session_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return int(self._info().weight_bytes)

    @property
    def params_fd(self) -> int:
        """The descriptor of the sealed memory that holds the params (``load(..., mmap="sealed")``), -1 where they lie elsewhere.

        It is closed with the weights. A process that inherits it, or gets it through a socket, loads it as its ``params``, shares the
        memory, and need not trust anybody to leave it as it is.
        """
        return int(self._library.dycl_params_fd(self._live().handle))

    def _info(self) -> capi.ModelInfo:
        info, model = capi.ModelInfo(struct_size=ctypes.sizeof(capi.ModelInfo)), self._live()
        self._check(self._library.dycl_model_info(model.handle, ctypes.byref(info)))
        return info

    def _counts(self, function: Any, size: int) -> list[int]:
        counts = (ctypes.c_uint64 * max(size, 1))()
        with self._lock:
            self._check(function(self._session, counts, size))
            entered = self._entered
        return list(counts)[:size] if entered else []
