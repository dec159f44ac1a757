# Licensed under the Apache License, Version 2.0; see LICENSE.
"""oneDNN: convolutions and products with their biases, residuals and activations, where the library is installed.

Matches are chains of operators (``steps.py``); neighbouring ones become one region, inside of which tensors keep oneDNN's layouts. A
region is C++ (``source.py``) on top of ``src/runtime/onednn_region.h``, which packs the weights once for each session.
"""

from dycl_tvm.backends.onednn.cost import worth
from dycl_tvm.backends.onednn.library import find_library
from dycl_tvm.backends.onednn.source import generate
from dycl_tvm.backends.onednn.table import patterns
from dycl_tvm.backends.registry import Backend

__all__ = ["backend", "find_library"]


def backend() -> Backend:
    """Return the backend; it takes nothing where the library is not installed.

    It takes part on request only: an artefact must not come to need a library because the machine that built it has one.
    """
    return Backend("onednn", patterns, generate, worth, on_request=True)
