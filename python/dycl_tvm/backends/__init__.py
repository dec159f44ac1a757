# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Backends: who compiles which region. Those of the package are registered here, in one line each."""

from dycl_tvm.backends import cublas, cudnn, onednn
from dycl_tvm.backends.registry import register_backend
from dycl_tvm.backends.tir_cpu import backend as cpu_families

register_backend(onednn.backend())
register_backend(cublas.backend())
register_backend(cudnn.backend())
register_backend(cpu_families.backend())
