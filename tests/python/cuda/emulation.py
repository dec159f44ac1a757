# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The emulated CUDA driver of ``tests/cpp/cuda``, and the kernels of an artefact compiled for it."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dycl_tvm
from dycl_tvm.codegen.cuda import draws, half, int8
from dycl_tvm.codegen.cuda.source import kernels_of, uses_half
from dycl_tvm.runtime import capi

DRIVER_UNITS = ("blocks.cc", "emulated_driver.cc", "graphs.cc", "ptx.cc")
SOURCES = Path(__file__).resolve().parents[2] / "cpp" / "cuda"
_KERNEL = re.compile(r'extern "C" __global__ void(?: __launch_bounds__\(\d+\))? (\w+)\([^;{]*\) \{')


#: By architecture the version of a driver that is found with it.
DRIVERS = {"sm_53": 10020, "sm_62": 10020, "sm_72": 11040, "sm_87": 12060, "sm_90": 12020}


@dataclass(frozen=True)
class Driver:
    """The emulated ``libcuda.so.1``, loaded into this process: whoever looks for the driver finds it.

    Attributes
    ----------
    path : Path
    library : ctypes.CDLL
    folder : Path
        Where compiled kernels are kept.
    """

    path: Path
    library: ctypes.CDLL
    folder: Path

    def configure(
        self,
        sm: int = 72,
        version: int = 11040,
        *,
        reject_cubin: bool = False,
        fail_kernels: bool = False,
        devices: int = 1,
        memory: int = 1 << 32,
    ) -> None:
        """Make the GPU another one; counts begin at 0."""
        self.library.emulated_cuda_configure(sm, version, int(reject_cubin), int(fail_kernels), devices, ctypes.c_size_t(memory))

    def count(self, what: str) -> int:
        """Return how often something was done.

        Launches, blocks (that ran), waits, copies, cubin, ptx, graphs, graph_launches, conditional_nodes, bodies.
        """
        return int(self.library.emulated_cuda_count(what.encode()))

    def count_on(self, stream: int, what: str) -> int:
        """Return how often something was put on a stream."""
        return int(self.library.emulated_cuda_count_on(ctypes.c_void_p(stream), what.encode()))

    def load(self, artifact: dycl_tvm.Artifact, folder: Path) -> dycl_tvm.Module:
        """Write an artefact and load it, on a GPU that has its kernels."""
        self.use_kernels(artifact)
        library, params = artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")
        return dycl_tvm.load(library, params)

    def use_kernels(self, artifact: dycl_tvm.Artifact) -> None:
        """Let the modules that are loaded next have the kernels of an artefact."""
        self.library.emulated_cuda_kernels(str(self.compiled(artifact)).encode())

    def environment(self, artifact: dycl_tvm.Artifact) -> dict[str, str]:
        """Return what gives another process the emulated GPU with the kernels of an artefact."""
        return {"LD_LIBRARY_PATH": str(self.folder), "EMULATED_CUDA_KERNELS": str(self.compiled(artifact))}

    def compiled(self, artifact: dycl_tvm.Artifact) -> Path:
        """Compile the kernels of an artefact as C++, once."""
        device = artifact._lowered.program.device
        assert device is not None
        text = kernels_as_cpp(device.source)
        out = self.folder / f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not out.exists():
            unit = out.with_suffix(".cc")
            unit.write_text(text)
            # contraction as on a GPU is not wanted here: the tests compare with a tolerance
            compile_cpp([unit], out, "-O1", "-w", f"-I{SOURCES}", str(self.path))
        return out


class OnDevice:
    """A tensor in memory of the emulated GPU."""

    def __init__(self, gpu: Driver, array: np.ndarray) -> None:
        self.gpu, self.array = gpu, array
        self.address, self.stream = ctypes.c_ulonglong(), ctypes.c_void_p()
        gpu.library.cuDevicePrimaryCtxRetain(ctypes.byref(context := ctypes.c_void_p()), 0)
        gpu.library.cuCtxPushCurrent_v2(context)
        gpu.library.cuStreamCreate(ctypes.byref(self.stream), 0)
        assert gpu.library.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(array.nbytes)) == 0
        assert (
            gpu.library.cuMemcpyHtoDAsync_v2(
                self.address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes), self.stream
            )
            == 0
        )
        gpu.library.cuStreamSynchronize(self.stream)

    def read(self) -> np.ndarray:
        """Return what lies there now; the stream of the tensor is waited for, and no other."""
        found = np.zeros_like(self.array)
        self.gpu.library.cuMemcpyDtoHAsync_v2(
            found.ctypes.data_as(ctypes.c_void_p), self.address, ctypes.c_size_t(found.nbytes), self.stream
        )
        self.gpu.library.cuStreamSynchronize(self.stream)
        return found

    def described(self) -> capi.DLTensor:
        """Return the tensor as C takes it."""
        shape = self.array.shape
        code, bits = capi.DL_DTYPES[self.array.dtype.name]
        return capi.DLTensor(self.address.value, capi.DL_CUDA, 0, len(shape), code, bits, 1, (ctypes.c_int64 * len(shape))(*shape), None, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        data = (self.address.value, False)
        return {"shape": self.array.shape, "typestr": self.array.dtype.str, "data": data, "strides": None, "version": 3}


class Stream:
    """A stream of the caller's, as frameworks hand it out."""

    def __init__(self, gpu: Driver) -> None:
        handle = ctypes.c_void_p()
        gpu.library.cuStreamCreate(ctypes.byref(handle), 0)
        assert handle.value is not None
        self.gpu, self.cuda_stream = gpu, handle.value

    def count(self, what: str) -> int:
        return self.gpu.count_on(self.cuda_stream, what)

    def wait(self) -> None:
        self.gpu.library.cuCtxPushCurrent_v2(_context(self.gpu))
        self.gpu.library.cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream))


def _context(gpu: Driver) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    gpu.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return context


def compile_driver(folder: Path, *flags: str) -> Path:
    """Compile the emulated driver."""
    path = folder / "libcuda.so.1"
    units = [SOURCES / name for name in DRIVER_UNITS]
    compile_cpp(units, path, "-O2", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE", "-Wl,-soname,libcuda.so.1", "-ldl", *flags)
    return path


def build_driver(folder: Path) -> Driver:
    """Compile the emulated driver and load it."""
    path = compile_driver(folder)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return Driver(path, library, folder)


def load_stub(driver: Driver, unit: str, name: str) -> ctypes.CDLL:
    """Compile the emulation of a library of NVIDIA's and load it: whoever looks for the library finds it."""
    out = driver.folder / name
    compile_cpp([SOURCES / unit], out, "-O2", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{name}", str(driver.path))
    return ctypes.CDLL(str(out), mode=ctypes.RTLD_GLOBAL)


def errors_without_libraries(driver: Driver, artifact: dycl_tvm.Artifact, folder: Path) -> str:
    """Load an artefact in a process that has the driver alone; return what it says."""
    library, params = artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")
    code = f"import dycl_tvm.runtime as r; r.load({str(library)!r}, {str(params)!r})"
    alone = folder / "driver"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(driver.path)
    gpu = {"LD_LIBRARY_PATH": str(alone), "EMULATED_CUDA_SM": "90", "EMULATED_CUDA_VERSION": "12020"}
    environment = {**driver.environment(artifact), **gpu, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.stderr


def compile_cpp(units: list[Path], out: Path, *flags: str) -> None:
    """Make a shared library of C++ files."""
    command = ["g++", "-std=c++17", "-fPIC", "-shared", "-o", str(out), *map(str, units), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def kernels_as_cpp(source: str) -> str:
    """Return the device functions of a program with the table of them that the emulated driver reads."""
    kernels = kernels_of(source)
    found: list[Any] = list(_KERNEL.finditer(kernels))
    rows = []
    for k, match in enumerate(found):
        body = kernels[match.end() : found[k + 1].start() if k + 1 < len(found) else len(kernels)]
        cooperates = "true" if re.search(r"__syncthreads|__shfl|__syncwarp|__activemask", body) else "false"
        rows.append(f"    EMULATED_KERNEL({match[1]}, {cooperates}),\n")
    table = "".join(rows) + "    {nullptr, nullptr, 0, false},\n"
    halves = f'#include "half_on_cpu.h"\n{half.TYPE}#include "mma_on_cpu.h"\n' if uses_half(kernels) else ""
    bytes8 = int8.functions_of(kernels, '#include "int8_on_cpu.h"\n')
    device = f"{halves}{bytes8}{draws.functions_of(kernels)}{kernels}"
    return f'#include "cuda_on_cpu.h"\n{device}\nextern "C" const EmulatedKernel emulated_kernels[] = {{\n{table}}};\n'
