# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX operators as PyTorch code, one converter an operator; the recorder turns it into ATen operations."""

from dycl_tvm.frontend.onnx.ops import (  # noqa: F401  # they register
    cast,
    convolution,
    elementwise,
    indexing,
    norm,
    optimizers,
    pooling,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    signal,
    vision,
)
