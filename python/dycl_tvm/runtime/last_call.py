# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a session tells of its last call."""

from __future__ import annotations

import ctypes
from typing import Any

from dycl_tvm.runtime import capi
from dycl_tvm.runtime.loaded import LoadedNetwork
from dycl_tvm.runtime.path import Path, path_of
from dycl_tvm.runtime.profile.budget import Budgets
from dycl_tvm.runtime.turns import Turn


class LastCall(LoadedNetwork):
    """A network in a session that is asked of the call that it made last."""

    _session: ctypes.c_void_p
    _turn: Turn
    _site: int | None
    _entered: bool
    _budgets: Budgets

    @property
    def last_path(self) -> Path:
        """The path that the last call took; empty if its inputs were refused, or if it has not come back yet (in a signal handler)."""
        total, written = ctypes.c_uint64(), ctypes.c_size_t()
        with self._turn.lock:
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
        with self._turn.lock:
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

    def _counts(self, function: Any, size: int) -> list[int]:
        counts = (ctypes.c_uint64 * max(size, 1))()
        with self._turn.lock:
            self._check(function(self._session, counts, size))
            entered = self._entered
        return list(counts)[:size] if entered else []
