# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators on complex numbers, as operators on their real and imaginary parts (docs/complex-numbers.md)."""

from dycl_tvm.compile.complex import arithmetic, fourier, functions, moves, products, reductions  # noqa: F401  # they register
from dycl_tvm.compile.complex.pair import COMPLEX, Pair

__all__ = ["COMPLEX", "Pair"]
