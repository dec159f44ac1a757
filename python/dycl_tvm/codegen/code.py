# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The code of an artefact: what is compiled and linked when it is written."""

from __future__ import annotations

from dataclasses import dataclass

from dycl_tvm.codegen.cuda.images import add_device_code
from dycl_tvm.codegen.dispatcher import generate
from dycl_tvm.compile.program import KernelLibrary, Program


@dataclass(frozen=True)
class Code:
    """A program as code.

    Attributes
    ----------
    source : str
        The C++ of the dispatcher.
    library : KernelLibrary
        The kernels; for GPUs with the images of their device functions.
    """

    source: str
    library: KernelLibrary


def generate_code(program: Program, library: KernelLibrary) -> Code:
    """Print the dispatcher of a program, and compile its device functions.

    Raises
    ------
    TargetError, CompileError
        If the device functions cannot be compiled here; the message says what to install.
    """
    return Code(generate(program), add_device_code(program, library))
