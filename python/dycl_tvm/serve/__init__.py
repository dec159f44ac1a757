# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Serves compiled networks by the Open Inference Protocol (KServe v2), on one machine or on Ray Serve. Imports neither torch nor TVM.

The names are loaded on first use: what they need comes with ``pip install dycl-tvm[serve]``, and Ray with ``dycl-tvm[serve,ray]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dycl_tvm.serve.ray_serve import deployment
    from dycl_tvm.serve.repository import ModelFiles
    from dycl_tvm.serve.server import Server
    from dycl_tvm.serve.settings import Settings

_HOME = {"ModelFiles": "repository", "Server": "server", "Settings": "settings", "deployment": "ray_serve"}

__all__ = ["ModelFiles", "Server", "Settings", "deployment"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dycl_tvm.serve' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dycl_tvm.serve.{_HOME[name]}"), name)
