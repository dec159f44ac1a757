# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls of the program that ``conftest.py`` builds, and what they give."""

from __future__ import annotations

import numpy as np

from dycl_tvm.runtime import Module

X = np.arange(4, dtype="float32")
SUM = (X + [10, 20, 30, 40]) * 2
#: Turns of the loop in the program: centuries.
ENDLESS = 2**62


def is_right(module: Module) -> None:
    """A call gives what it should."""
    np.testing.assert_array_equal(module(X, 0)["y"], SUM)
