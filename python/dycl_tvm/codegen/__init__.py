# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From a lowered program to files: the C++ dispatcher, the shared library, the params file."""

from __future__ import annotations

from dycl_tvm.codegen.code import Code, generate_code
from dycl_tvm.codegen.cpu_levels import CPULevel, check_levels, share_weights
from dycl_tvm.codegen.dispatcher import generate
from dycl_tvm.codegen.link import Linked, Watch, link, save_params
from dycl_tvm.codegen.machine import Machine, machine_of
from dycl_tvm.codegen.weights import weight_names

__all__ = [
    "CPULevel", "Code", "Linked", "Machine", "Watch", "check_levels", "generate", "generate_code", "link", "machine_of", "save_params",
    "share_weights", "weight_names",
]  # fmt: skip
