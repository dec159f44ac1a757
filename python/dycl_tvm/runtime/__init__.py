# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs compiled networks from Python. Imports neither torch nor TVM."""

from __future__ import annotations

from dycl_tvm.runtime.affinity import set_affinity
from dycl_tvm.runtime.load import load
from dycl_tvm.runtime.module import Module
from dycl_tvm.runtime.path import Decision, Path, SourceLine

__all__ = ["Decision", "Module", "Path", "SourceLine", "load", "set_affinity"]
