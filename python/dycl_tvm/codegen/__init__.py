# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From a lowered program to files: the C++ dispatcher, the shared library, the params file."""

from __future__ import annotations

from dycl_tvm.codegen.code import Code, generate_code
from dycl_tvm.codegen.dispatcher import generate
from dycl_tvm.codegen.link import Linked, Watch, link, save_params
from dycl_tvm.codegen.machine import Machine, machine_of

__all__ = ["Code", "Linked", "Machine", "Watch", "generate", "generate_code", "link", "machine_of", "save_params"]
