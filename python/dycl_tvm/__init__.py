# Licensed under the Apache License, Version 2.0; see LICENSE.
"""dycl_tvm compiles dynamic PyTorch networks into one shared library.

    art = dycl_tvm.build(model, (x,), target="llvm")
    art.export_library("model.so")
    art.save_params("model.params")
    mod = dycl_tvm.load("model.so", "model.params")
    out = mod(x)

The names are loaded on first use, so that a machine which only runs artefacts needs neither torch nor TVM.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from dycl_tvm._version import __version__

if TYPE_CHECKING:
    from dycl_tvm import serve, zoo
    from dycl_tvm.artifact import Artifact, Report
    from dycl_tvm.bound import bound
    from dycl_tvm.build import TensorSpec, build, stage
    from dycl_tvm.compile.register import register_operator
    from dycl_tvm.errors import (
        ArtifactError,
        CancelledError,
        CompileError,
        DeadlineError,
        DeviceError,
        DyclError,
        InputError,
        InternalError,
        InvariantError,
        PathExplosionError,
        RunError,
        StagingLimitError,
        TargetError,
        UnsupportedError,
        UsageError,
        VerificationError,
    )
    from dycl_tvm.hcfg.sizes import Dim
    from dycl_tvm.quantization import Quantized, quantize
    from dycl_tvm.runtime import Module, load, set_affinity

_HOME = {
    "bound": "dycl_tvm.bound",
    "build": "dycl_tvm.build",
    "stage": "dycl_tvm.build",
    "register_operator": "dycl_tvm.compile.register",
    "TensorSpec": "dycl_tvm.build",
    "quantize": "dycl_tvm.quantization",
    "Quantized": "dycl_tvm.quantization",
    "Dim": "dycl_tvm.hcfg.sizes",
    "Artifact": "dycl_tvm.artifact",
    "Report": "dycl_tvm.artifact",
    "load": "dycl_tvm.runtime",
    "Module": "dycl_tvm.runtime",
    "set_affinity": "dycl_tvm.runtime",
    "ArtifactError": "dycl_tvm.errors",
    "CancelledError": "dycl_tvm.errors",
    "CompileError": "dycl_tvm.errors",
    "DeadlineError": "dycl_tvm.errors",
    "DeviceError": "dycl_tvm.errors",
    "DyclError": "dycl_tvm.errors",
    "InputError": "dycl_tvm.errors",
    "InternalError": "dycl_tvm.errors",
    "InvariantError": "dycl_tvm.errors",
    "PathExplosionError": "dycl_tvm.errors",
    "RunError": "dycl_tvm.errors",
    "StagingLimitError": "dycl_tvm.errors",
    "TargetError": "dycl_tvm.errors",
    "UnsupportedError": "dycl_tvm.errors",
    "UsageError": "dycl_tvm.errors",
    "VerificationError": "dycl_tvm.errors",
}

__all__ = [
    "Artifact",
    "ArtifactError",
    "CancelledError",
    "CompileError",
    "DeadlineError",
    "DeviceError",
    "Dim",
    "DyclError",
    "InputError",
    "InternalError",
    "InvariantError",
    "Module",
    "PathExplosionError",
    "Quantized",
    "Report",
    "RunError",
    "StagingLimitError",
    "TargetError",
    "TensorSpec",
    "UnsupportedError",
    "UsageError",
    "VerificationError",
    "__version__",
    "bound",
    "build",
    "load",
    "quantize",
    "register_operator",
    "serve",
    "set_affinity",
    "stage",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in ("serve", "zoo"):
        return importlib.import_module(f"dycl_tvm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'dycl_tvm' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as err:
        if not (err.name or "").startswith("dycl_tvm."):
            raise
        raise ImportError(f"dycl_tvm.{name} is not in dycl-tvm-runtime, which is installed here: pip install dycl-tvm") from err
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    # The import system binds a submodule to its parent: importing dycl_tvm.build would hide the function of that name.
    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
