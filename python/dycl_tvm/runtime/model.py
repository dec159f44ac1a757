# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The weights of a loaded library."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from dycl_tvm.runtime.classes import LOADED, Classes
from dycl_tvm.runtime.library import Library, destroy
from dycl_tvm.runtime.params_place import ParamsPlace


class Model:
    """The weights of a loaded library, shared by all sessions. ``reopen`` loads it again from ``path``, for pickles."""

    def __init__(
        self,
        library: Library,
        metadata: dict[str, Any],
        params: ParamsPlace,
        classes: Classes = LOADED,
        *,
        path: str = "",
        reopen: Callable[..., Any] | None = None,
    ) -> None:
        self.library = library
        self.metadata = metadata
        self.classes = classes
        self.path, self.params, self.reopen = path, params, reopen
        self.handle = handle = params.open(library)
        weakref.finalize(self, destroy, library.dycl_model_destroy, handle)
