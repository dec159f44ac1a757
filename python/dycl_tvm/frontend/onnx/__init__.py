# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The ONNX front end: a model with If, Loop, Scan and sequences becomes an HCFG of ATen operations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dycl_tvm.frontend.onnx.opened import open_dimensions, open_model
    from dycl_tvm.frontend.onnx.stage import stage_onnx
    from dycl_tvm.frontend.onnx.values import NeedsValue

__all__ = ["NeedsValue", "is_onnx", "open_dimensions", "open_model", "stage_onnx"]


def is_onnx(model: Any) -> bool:
    """Whether ``build`` was given an ONNX model: a ``ModelProto``, or a path that ends in ``.onnx``."""
    if isinstance(model, (str, os.PathLike)):
        return str(os.fspath(model)).endswith(".onnx")
    return type(model).__name__ == "ModelProto" and type(model).__module__.startswith("onnx")


def __getattr__(name: str) -> Any:
    # The package onnx is imported when a model is there, not before.
    if name == "stage_onnx":
        from dycl_tvm.frontend.onnx.stage import stage_onnx

        return stage_onnx
    if name in ("open_dimensions", "open_model"):
        from dycl_tvm.frontend.onnx import opened

        return getattr(opened, name)
    if name == "NeedsValue":
        from dycl_tvm.frontend.onnx.values import NeedsValue

        return NeedsValue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
