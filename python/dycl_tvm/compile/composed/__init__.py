# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that are made of others, written in PyTorch: traced, and converted one by one."""

from dycl_tvm.compile.composed import distances, elementary, images, linalg, order, selection, special  # noqa: F401  # they register
