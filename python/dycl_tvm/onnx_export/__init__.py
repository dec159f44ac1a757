# Licensed under the Apache License, Version 2.0; see LICENSE.
"""HCFGs as ONNX: one model with ``If`` and ``Loop``, or one model a sub-DNN with a description of the graph around them.

``export_model`` and ``export_split`` need the extra ``onnx`` (onnxscript); :func:`run`, :class:`OnnxModel` and :class:`SplitModel`
need onnxruntime only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dycl_tvm.onnx_export.driver import OnnxModel, SplitModel, run
    from dycl_tvm.onnx_export.model import export_model
    from dycl_tvm.onnx_export.split import export_split

_HOME = {"OnnxModel": "driver", "SplitModel": "driver", "run": "driver", "export_model": "model", "export_split": "split"}

__all__ = ["OnnxModel", "SplitModel", "export_model", "export_split", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dycl_tvm.onnx_export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dycl_tvm.onnx_export.{_HOME[name]}"), name)
