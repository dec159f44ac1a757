# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that are made of others, written in PyTorch: traced, and converted one by one."""

from dycl_tvm.compile.composed import (  # noqa: F401  # they register
    distances,
    elementary,
    images,
    linalg,
    normal,
    order,
    polynomials,
    quantized,
    selection,
    special,
)
