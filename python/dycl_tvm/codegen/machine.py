# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The machine that a library is for: architecture, triple, and the CPU features that its code uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dycl_tvm.cpu_features import CPU_FEATURES
from dycl_tvm.runtime.trailer import canonical_arch, why_not_here


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

    def for_code(self, amx: Sequence[str]) -> Machine:
        """Return what a library needs whose kernels use the features ``amx`` (LLVM's names).

        Without kernels of ours that use them its code has no tiles, and Linux may hide those of the CPU.
        """
        used = {CPU_FEATURES[self.arch][feature] for feature in (*amx, "amx-tile")} if amx else set()
        return replace(self, cpu_flags=tuple(f for f in self.cpu_flags if not f.startswith("amx_") or f in used))

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
    known = CPU_FEATURES.get(arch, {})
    flags = sorted(known[str(f)] for f in codegen.llvm_get_cpu_features(host) if str(f) in known)
    return Machine(arch, triple, str(host.attrs.get("mcpu", "")), tuple(flags))


def runs_here(target: Any) -> bool:
    """Whether the machine that builds can run the host code of a ``tvm.target.Target``."""
    return not why_not_here(machine_of(target).describe())
