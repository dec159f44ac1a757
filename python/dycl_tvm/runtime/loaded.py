# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known of a loaded network without running it."""

from __future__ import annotations

import ctypes
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.largest_sizes import session_options
from dycl_tvm.runtime.model import Model


class LoadedNetwork:
    """A network over its weights.

    Attributes
    ----------
    metadata : dict
        Names, input and output structures, return sites, kernels, target.
    """

    def __init__(self, model: Model) -> None:
        self._model: Model | None = model  # None: closed
        self._library = model.library
        self._largest_sizes: dict[str, int] = {}
        self.metadata = model.metadata

    @property
    def name(self) -> str:
        """Name of the network."""
        return str(self.metadata["name"])

    @property
    def certificate(self) -> dict[str, Any]:
        """What the build has proved about itself; empty for a library of an earlier version."""
        return dict(self.metadata.get("certificate", {}))

    @property
    def user_metadata(self) -> dict[str, str]:
        """What ``build(user_metadata=...)`` was given."""
        return dict(self.metadata.get("user_metadata", {}))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the memory plan of this session."""
        return int(self._info().arena_bytes)

    @property
    def session_bytes(self) -> int:
        """Bytes of all memory of this session, with its arena."""
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
        if not self._largest_sizes:
            self._check(self._library.dycl_model_info(model.handle, ctypes.byref(info)))
        else:
            how = session_options(self._library, None, self._largest_sizes)
            self._check(self._library.dycl_session_needs(model.handle, how, ctypes.byref(info)))
        return info

    def _live(self) -> Model:
        if self._model is None:
            raise UsageError(f"the module '{self.name}' is closed")
        return self._model

    def _check(self, status: int) -> None:
        if status == capi.ERROR_USAGE:
            self._live()
        capi.check(self._library, status)
