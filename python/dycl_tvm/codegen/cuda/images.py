# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The images of an artefact's GPU code: a cubin for the architecture, and PTX for drivers that refuse the cubin."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

from dycl_tvm.codegen.cuda import nvcc, nvrtc
from dycl_tvm.codegen.cuda.architectures import number_of, preferred_major, ptx_version
from dycl_tvm.codegen.cuda.source import compiler_source
from dycl_tvm.compile.program import DeviceCode, KernelLibrary, Program
from dycl_tvm.errors import CompileError

#: Contraction to fused multiply-add as on the CPU; no other liberty with the rules of floating point.
_OPTIONS = ("--std=c++17", "--fmad=true")
#: e_machine of NVIDIA's GPUs.
EM_CUDA = 190


@dataclass(frozen=True)
class Images:
    """The code of all device functions. ``compiler`` says who made it."""

    arch: str
    cubin: bytes
    ptx: bytes
    ptx_version: tuple[int, int]
    compiler: str


def compile_images(code: DeviceCode) -> Images:
    """Compile the device functions of a program, on this machine, whatever its GPU.

    Raises
    ------
    TargetError
        For an architecture that is not known.
    CompileError
        If no compiler for it is installed (the message says what to install), or it refuses the code.
    """
    number = number_of(code.arch)
    version = ptx_version(number)
    source = compiler_source(code.source)
    compiler = nvrtc.find(number, preferred_major(number))
    toolkit = nvcc.find_nvcc(number) if compiler is None else None
    if compiler is not None:
        name = f"NVRTC {compiler.version[0]}.{compiler.version[1]}"
        options = [*_OPTIONS, f"--gpu-architecture={code.arch}", "--device-as-default-execution-space"]
        ptx, cubin = compiler.compile(source, "kernels.cu", options)
    elif toolkit is not None:
        name = toolkit
        ptx, cubin = nvcc.compile_with_nvcc(toolkit, source, "kernels.cu", number, list(_OPTIONS))
    else:
        raise CompileError(_nothing_for(number))
    ptx = bound_ptx(ptx, version)
    nvcc.check_ptx(ptx, number)
    found = cubin_architecture(cubin)
    if found != number:
        raise CompileError(f"{name} made a cubin for sm_{found}, wanted {code.arch}")
    return Images(code.arch, cubin, ptx, version, name)


def add_device_code(program: Program, library: KernelLibrary) -> KernelLibrary:
    """Return the library with the images of a program's device code in it; of a CPU program the library as it is.

    Raises
    ------
    TargetError, CompileError
        As :func:`compile_images`.
    """
    if program.device is None:
        return library
    images = compile_images(program.device)
    return replace(library, sources=(*library.sources, ("device.S", image_source(images))))


def _nothing_for(number: int) -> str:
    have = ", ".join(f"NVRTC {c.version[0]}.{c.version[1]}" for c in nvrtc.installed())
    package = f"nvidia-cuda-nvrtc-cu{preferred_major(number)}"
    return (
        f"no CUDA compiler for sm_{number} is installed ({f'there is {have}, which does not know it' if have else 'there is none'}); "
        f"`pip install dycl-tvm[cuda]` (or {package}) brings one, neither a GPU nor a CUDA toolkit is needed"
    )


def bound_ptx(ptx: bytes, version: tuple[int, int]) -> bytes:
    """Declare a lower PTX version, so that older drivers take it; ``ptxas`` checks that nothing newer is used.

    The name of the source and its comments go.
    """
    text = re.sub(rb"(?m)^\s*//.*\n", b"", ptx)
    declared = re.search(rb"(?m)^\.version (\d+)\.(\d+)", text)
    if declared is None:
        raise CompileError("internal: the compiler made PTX without a version")
    if (int(declared[1]), int(declared[2])) < version:
        return text
    return text[: declared.start()] + b".version %d.%d" % version + text[declared.end() :]


def cubin_architecture(cubin: bytes) -> int:
    """Return the architecture in the header of a cubin: 72 for sm_72.

    Raises
    ------
    CompileError
        If it is no ELF file for NVIDIA GPUs.
    """
    if len(cubin) < 64 or cubin[:4] != b"\x7fELF" or struct.unpack_from("<H", cubin, 18)[0] != EM_CUDA:
        raise CompileError("internal: the compiler made something that is not a cubin")
    (flags,) = struct.unpack_from("<I", cubin, 48)
    # since ABI 8 (CUDA 13) the architecture stands one byte further up
    return int(flags >> 8 & 0xFF) if cubin[8] >= 8 else int(flags & 0xFF)


def image_source(images: Images) -> str:
    """Return assembly that holds the images as read-only data."""

    def data(name: str, content: bytes) -> str:
        lines = ["    .byte " + ",".join(map(str, content[i : i + 64])) for i in range(0, len(content), 64)]
        body = "\n".join(lines)
        return f".balign 64\n.globl {name}\n.hidden {name}\n{name}:\n{body}\n"

    return (
        '.section .rodata.device,"a"\n'
        f"{data('DyclCubin', images.cubin)}{data('DyclPtx', images.ptx + bytes(1))}"
        '.section .note.GNU-stack,"",%progbits\n'
    )
