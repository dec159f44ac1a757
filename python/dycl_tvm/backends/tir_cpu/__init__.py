# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CPU schedules of TIR kernels."""

from dycl_tvm.backends.tir_cpu.generic import schedule

__all__ = ["schedule"]
