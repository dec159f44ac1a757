# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The machine that a library is for: architecture, triple, and the CPU features that its code uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dycl_tvm.runtime.trailer import canonical_arch, why_not_here

#: LLVM's names of features that it uses by itself, so that their absence stops a program, and Linux's names of them in /proc/cpuinfo.
#: Those of x86-64 are in ``src/runtime/cpu_levels.h`` too.
CPU_FLAGS = {
    "x86_64": {
        "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt", "cx16": "cx16",
        "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm", "movbe": "movbe",
        "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq", "avx512vl": "avx512vl",
        "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "avx512ifma": "avx512ifma",
        "avx512vbmi": "avx512vbmi", "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg",
        "avx512vpopcntdq": "avx512_vpopcntdq", "avxvnni": "avx_vnni", "amx-tile": "amx_tile", "amx-bf16": "amx_bf16",
        "gfni": "gfni", "sse4a": "sse4a", "xop": "xop", "fma4": "fma4", "tbm": "tbm", "egpr": "apx",
    },
    "aarch64": {
        "fullfp16": "asimdhp", "dotprod": "asimddp", "lse": "atomics", "rdm": "asimdrdm", "sve": "sve", "sve2": "sve2",
        "i8mm": "i8mm", "bf16": "bf16", "fp16fml": "asimdfhm",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A CPU, as far as a loader must know it.

    Attributes
    ----------
    arch : str
        ``x86_64``, ``aarch64``, as ``uname -m`` says.
    triple, mcpu : str
        LLVM's names; ``mcpu`` is empty for the baseline.
    cpu_flags : tuple of str
        What ``/proc/cpuinfo`` must list.
    """

    arch: str
    triple: str
    mcpu: str
    cpu_flags: tuple[str, ...]

    def for_code(self, amx: bool) -> Machine:
        """Return what a library needs. Without kernels of ours that use them its code has no tiles, and Linux may hide those of the CPU."""
        return self if amx else replace(self, cpu_flags=tuple(f for f in self.cpu_flags if not f.startswith("amx_")))

    def describe(self) -> dict[str, Any]:
        """Return the JSON form, for the metadata."""
        return {"arch": self.arch, "triple": self.triple, "mcpu": self.mcpu, "cpu_flags": list(self.cpu_flags)}


def machine_of(target: Any) -> Machine:
    """Return the machine that runs the host code of a ``tvm.target.Target``."""
    from tvm.target import Target, codegen

    host = target.host or target
    if host.kind.name != "llvm":
        host = Target("llvm")
    triple = str(host.attrs.get("mtriple", "") or codegen.llvm_get_system_triple())
    arch = canonical_arch(triple.split("-")[0])
    known = CPU_FLAGS.get(arch, {})
    flags = sorted(known[str(f)] for f in codegen.llvm_get_cpu_features(host) if str(f) in known)
    return Machine(arch, triple, str(host.attrs.get("mcpu", "")), tuple(flags))


def runs_here(target: Any) -> bool:
    """Whether the machine that builds can run the host code of a ``tvm.target.Target``."""
    return not why_not_here(machine_of(target).describe())
