# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ATen operators as Relax expressions, one converter an overload.

Every converter here is compared with PyTorch by a test. What is not in the table is decomposed by PyTorch's own tables until it
is; nothing else is accepted.
"""

from dycl_tvm.compile.ops import (  # noqa: F401  # they register
    bits,
    checks,
    convolution,
    determinant,
    elementwise,
    grouped,
    indexing,
    integers,
    linalg,
    linear,
    moving,
    norm,
    order,
    philox,
    polynomials,
    pooling,
    quantized,
    random,
    reduction,
    resize,
    shape,
)
from dycl_tvm.compile.ops.context import CONVERTERS, OpContext

__all__ = ["CONVERTERS", "OpContext"]
