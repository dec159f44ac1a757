# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels on ARM CPUs that this machine is not: in one program for all of them, run by qemu's user mode."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from emulated_boards import TX2, qemu, root
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

from dycl_tvm.codegen.cross import zig
from dycl_tvm.codegen.toolchain import has_zig

HERE = Path(__file__).parent
#: numpy's kinds of types as DLPack's codes.
_CODES = {"i": 0, "u": 1, "f": 2}


@dataclass(frozen=True)
class Cpu:
    """A CPU: what it is to LLVM and to qemu, and what none but its kernels have among their instructions."""

    mcpu: str
    emulated: str
    instruction: str

    @property
    def target(self) -> Any:
        """The target."""
        return tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": self.mcpu})


#: qemu knows no Cortex-A78, and none with i8mm but the one that has all features.
A57, A78, V1 = Cpu("cortex-a57", "cortex-a57", "smlsl2"), Cpu("cortex-a78", "cortex-a76", "sdot"), Cpu("neoverse-v1", "max", "sudot")
CPUS = (A57, A78, V1)


def compiled(fn: Any, name: str, cpu: Cpu) -> Any:
    """Return the module of a kernel."""
    return tvm.compile(tvm.IRModule({name: fn.with_attr("global_symbol", name)}), target=cpu.target).mod


def innermost(fn: Any, cpu: Cpu) -> list[list[str]]:
    """Return the instructions of each innermost loop of a kernel that multiplies integers."""
    lines = [line.split("//")[0].split() for line in compiled(fn, "main", cpu).inspect_source("asm").splitlines()]
    found: list[list[str]] = []
    label, begin = "", 0
    for k, words in enumerate(lines):
        if words and words[0].endswith(":"):
            label, begin = words[0][:-1], k + 1
        elif words and words[0].startswith(("b.", "cb", "tb")) and words[-1] == label:
            body = [w[0] for w in lines[begin : k + 1] if w and not w[0].startswith((".", "//"))]
            found += [body] if cpu.instruction in body else []
    return found


def run(cpu: Cpu, kernels: Sequence[tuple[Any, Sequence[Any]]], folder: Path) -> list[Any]:
    """Run kernels, each on its arrays, of which the last one is for the result; return the results."""
    emulator = qemu()
    if not has_zig():
        pytest.skip("ziglang is not installed (make setup installs it where it may)")
    names, data = [f"kernel_{k}" for k in range(len(kernels))], bytearray()
    for name, (fn, arrays) in zip(names, kernels):
        compiled(fn, name, cpu).write_to_file(str(folder / f"{name}.o"))
        data += struct.pack("<q", len(arrays))
        for array in map(np.ascontiguousarray, arrays):
            data += struct.pack(f"<{array.ndim + 4}q", _CODES[array.dtype.kind], 8 * array.itemsize, array.ndim, *array.shape, array.nbytes)
            data += array.tobytes()
    (folder / "in").write_bytes(data)
    declared = "".join(f"int __tvm_ffi_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);\n" for name in names)
    (folder / "kernels.h").write_text(f"{declared}#define KERNELS {', '.join(f'__tvm_ffi_{name}' for name in names)}\n")
    includes = [f"-I{path}" for path in (folder, find_include_path(), find_dlpack_include_path())]
    compiler = zig("aarch64")
    # As C: the C++ library that zig would compile for it takes a minute.
    command = [sys.executable, "-m", "ziglang", "cc", *compiler.flags, "-O1", *includes, str(HERE / "arm_driver.c")]
    command += [*(str(folder / f"{name}.o") for name in names), "-o", str(folder / "program")]
    subprocess.run(command, check=True, env={**os.environ, **dict(compiler.environment)})
    done = subprocess.run(
        [emulator, "-cpu", cpu.emulated, "-L", str(root(TX2.glibc)), *(str(folder / name) for name in ("program", "in", "out"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{cpu}: {done.returncode} {done.stderr}"
    found, at = [], 0
    results = (folder / "out").read_bytes()
    for _, arrays in kernels:
        like = np.asarray(arrays[-1])
        found.append(np.frombuffer(results, like.dtype, like.size, at).reshape(like.shape))
        at += like.nbytes
    return found
