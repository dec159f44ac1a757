# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The ONNX front end: a model with If, Loop, Scan and sequences becomes an HCFG of ATen operations."""

from dycl_tvm.frontend.onnx.model import is_onnx
from dycl_tvm.frontend.onnx.stage import stage_onnx
from dycl_tvm.frontend.onnx.values import NeedsValue

__all__ = ["NeedsValue", "is_onnx", "stage_onnx"]
