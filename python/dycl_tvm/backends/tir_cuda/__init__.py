# Licensed under the Apache License, Version 2.0; see LICENSE.
"""GPU schedules of TIR kernels."""

from dycl_tvm.backends.tir_cuda.int8 import word_of
from dycl_tvm.backends.tir_cuda.schedule import Candidate, candidates

__all__ = ["Candidate", "candidates", "word_of"]
