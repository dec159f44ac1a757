# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the kernel families need to know of a CPU: one description, from the target."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import tvm
import tvm_ffi

from dycl_tvm.cpu_features import UNSEEN_FEATURES


@dataclass(frozen=True)
class Machine:
    """A CPU.

    Attributes
    ----------
    isa : str
        ``avx512``, ``avx2``, ``sse`` or ``neon``.
    vector_bytes : int
        Width of a vector register.
    registers : int
        Number of vector registers.
    l1, l2 : int
        Bytes of data cache of one core.
    l3 : int
        Bytes of cache that the cores share.
    cores : int
        Threads that kernels are cut for; they run with any number.
    gflops : float
        Peak of one core, float32, 1e9 floating point operations per second (a multiply-add counts two).
    bandwidth : float
        Bytes per second that one core streams from memory, in 1e9.
    launch : float
        Seconds that a parallel loop costs over a serial one.
    amx, amx_int8 : bool
        Whether the CPU has tiles of bfloat16, and of 8-bit integers.
    bf16 : bool
        Whether the CPU has AVX512-BF16: sums of products of bfloat16 pairs.
    vnni : bool
        Whether an x86 CPU has sums of products of 8-bit integers, for whole vectors.
    dotprod, i8mm : bool
        Whether an ARM CPU has such sums, of factors of one sign (``sdot``) and of factors of which one has a sign (``sudot``).
    """

    isa: str
    vector_bytes: int
    registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    gflops: float
    bandwidth: float
    launch: float = 2e-6
    amx: bool = False
    amx_int8: bool = False
    bf16: bool = False
    vnni: bool = False
    dotprod: bool = False
    i8mm: bool = False

    @property
    def lanes(self) -> int:
        """Float32 elements of a vector; the block of packed layouts."""
        return self.vector_bytes // 4

    def stream_rate(self, nbytes: float) -> float:
        """Return the bytes per second at which a core reads so many in order, again and again: from the nearest cache that they fit."""
        return self.bandwidth * 1e9 * (1.5 if nbytes > self.l3 / 2 else 2.5 if nbytes > self.l2 / 2 else 5.0)


#: Typical cores. What the figures miss of a particular CPU, tuning finds out.
_MACHINES = {
    "avx512": Machine("avx512", 64, 32, 32 << 10, 1 << 20, 32 << 20, 2, 120.0, 12.0),
    "avx2": Machine("avx2", 32, 16, 32 << 10, 512 << 10, 32 << 20, 2, 118.0, 12.0),
    "sse": Machine("sse", 16, 16, 32 << 10, 256 << 10, 8 << 20, 2, 25.0, 10.0),
    "neon": Machine("neon", 16, 32, 32 << 10, 512 << 10, 2 << 20, 4, 16.0, 5.0),
}


def machine_of(target: tvm.target.Target) -> Machine:
    """Return the description of a CPU target (of the host, for a device target)."""
    if target.host is not None and str(target.kind) != "llvm":
        target = target.host
    has_feature = tvm_ffi.get_global_func("target.target_has_feature")

    def has(*features: str) -> bool:
        return all(has_feature(feature, target) for feature in features)

    text = f"{target.attrs.get('mcpu', '')} {' '.join(str(a) for a in target.attrs.get('mattr', []))}".lower()
    if "aarch64" in str(target.attrs.get("mtriple", "")) or re.search(r"neon|cortex|carmel|apple|neoverse", text):
        return replace(_MACHINES["neon"], dotprod=has("dotprod"), i8mm=has("i8mm"))
    if has("avx512f", "avx512bw", "avx512dq", "avx512vl"):
        base = _MACHINES["avx512"]
        if has("amx-tile"):  # these CPUs have larger caches of their own
            base = replace(base, l1=48 << 10, l2=2 << 20)
        return replace(base, amx=has("amx-bf16"), amx_int8=has("amx-int8"), bf16=has("avx512bf16"), vnni=has("avx512vnni"))
    if has("avx2", "fma"):
        return replace(_MACHINES["avx2"], vnni=has("avxvnni"))
    return _MACHINES["sse"]


def for_compiler(target: tvm.target.Target) -> tvm.target.Target:
    """Return a target as LLVM is given it: with whole vectors, as kernels name them, and without what no loader can ask for.

    For Intel's CPUs LLVM prefers vectors of 256 bits, for the sake of programs with few vectors, which a lower clock would hurt.
    """
    if str(target.kind) != "llvm" or str(target.attrs.get("mtriple", "x86_64")).split("-")[0] not in ("x86_64", "amd64"):
        return target
    has_feature = tvm_ffi.get_global_func("target.target_has_feature")
    unwanted = [feature for feature in ("prefer-256-bit", *UNSEEN_FEATURES) if has_feature(feature, target)]
    if not unwanted:
        return target
    attributes = {str(key): value for key, value in target.attrs.items()}
    mattr = [*map(str, attributes.get("mattr", [])), *("-" + feature for feature in unwanted)]
    return tvm.target.Target({**attributes, "kind": "llvm", "mattr": mattr})
