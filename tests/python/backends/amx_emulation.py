# Licensed under the Apache License, Version 2.0; see LICENSE.
"""AMX on CPUs that have none: builds the emulator of ``amx_emulator.cc``."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tvm

from dycl_tvm.runtime.trailer import cpu_flags

HERE = Path(__file__).parent
#: AMX is emulated, what AMX kernels need besides is not.
CPU = pytest.mark.skipif(
    "avx512_bf16" not in cpu_flags() or shutil.which("g++") is None, reason="this CPU has no AVX512-BF16, or there is no g++"
)
#: What :data:`CPU` asks for, and tiles; a CPU with tiles has more, which some that run the emulator lack.
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake", "mattr": ["+amx-tile", "+amx-int8", "+amx-bf16"]})
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-mfma")


@functools.lru_cache(None)
def folder() -> Path:
    """Return a folder that lasts as long as this process."""
    path = tempfile.mkdtemp(prefix="amx-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@functools.lru_cache(None)
def compiled(name: str, *arguments: str) -> Path:
    """Return what g++ makes of the emulator, and of more files and flags in ``arguments``."""
    out = folder() / name
    sources = [str(HERE / a) if a.endswith(".cc") else a for a in ("amx_emulator.cc", *arguments)]
    subprocess.run(["g++", *_FLAGS, *sources, "-o", str(out), "-ldl", "-lpthread"], check=True)
    return out


def preload() -> Path:
    """Return the library for LD_PRELOAD: there is AMX from the start, and a permission for it."""
    return compiled("preload.so", "-shared", "-DAMX_EMULATOR_PRELOAD")


@contextmanager
def emulated() -> Iterator[Any]:
    """Emulate AMX in this process, or have the CPU's if it has it; gives the library, or None for the CPU's."""
    library = ctypes.CDLL(str(compiled("emulator.so", "-shared")))
    library.amx_emulator_install.restype = ctypes.c_bool
    library.amx_emulator_products.restype = ctypes.c_uint64
    if library.amx_emulator_install():
        yield None
        return
    try:
        yield library
    finally:
        library.amx_emulator_remove()
