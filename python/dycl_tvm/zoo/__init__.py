# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dynamic networks of the literature as ordinary PyTorch, with random weights and inputs that take many paths.

Nothing here knows of the compiler: each network has one ``forward``, with the control flow that its authors gave it.
"""

from __future__ import annotations

from dycl_tvm.zoo.observe import Path, executed_modules, observed_paths, path_of
from dycl_tvm.zoo.registry import Entry, describe, load, names

__all__ = ["Entry", "Path", "describe", "executed_modules", "load", "names", "observed_paths", "path_of"]
