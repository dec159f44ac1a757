# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The programs of a CUDA toolkit, where there is one: ``nvcc`` as a compiler, ``ptxas`` as a check of PTX."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from dycl_tvm.errors import CompileError

_PACKAGES = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc-cu11", "nvidia-cuda-nvcc")


def _find(name: str) -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    inside = Path(home) / "bin" / name if home else None
    if inside is not None and inside.is_file():
        return str(inside)
    return shutil.which(name)


@functools.cache
def find_ptxas() -> str | None:
    """Return the path of ``ptxas``: of a toolkit, or of a package of PyPI."""
    found = _find("ptxas")
    for package in _PACKAGES if found is None else ():
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if file.name == "ptxas" and path.is_file():
                return str(path)
    return found


@functools.cache
def find_nvcc(number: int) -> str | None:
    """Return the path of an ``nvcc`` that knows an architecture."""
    nvcc = _find("nvcc")
    if nvcc is None:
        return None
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return nvcc if f"sm_{number}" in done.stdout.split() else None


def compile_with_nvcc(nvcc: str, source: str, name: str, number: int, options: list[str]) -> tuple[bytes, bytes]:
    """Compile CUDA C++ to PTX and a cubin.

    Raises
    ------
    CompileError
        With the compiler's words.
    """
    with tempfile.TemporaryDirectory(prefix="dycl-nvcc-") as folder:
        unit = Path(folder) / name
        unit.write_text(source)
        made = []
        for form in ("ptx", "cubin"):
            out = unit.with_suffix(f".{form}")
            command = [nvcc, f"--{form}", f"-arch=sm_{number}", *options, str(unit), "-o", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompileError(f"nvcc could not compile {name}:\n{done.stderr[:4000]}")
            made.append(out.read_bytes())
    return made[0].rstrip(b"\0"), made[1]


def check_ptx(ptx: bytes, number: int) -> None:
    """Let ``ptxas`` read PTX, where it is installed and knows the architecture.

    Raises
    ------
    CompileError
        If the PTX is not valid for the version and the architecture that it declares.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        return
    with tempfile.TemporaryDirectory(prefix="dycl-ptxas-") as folder:
        unit = Path(folder) / "kernels.ptx"
        unit.write_bytes(ptx)
        command = [ptxas, "-O0", f"-arch=sm_{number}", str(unit), "-o", str(unit.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = done.stderr + done.stdout
    if done.returncode != 0 and not re.search(r"not defined for option 'gpu-name'|Unsupported \.version", words):
        raise CompileError(f"the PTX for sm_{number} is not valid:\n{words[:4000]}")
