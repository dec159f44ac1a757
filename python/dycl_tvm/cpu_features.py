# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The features of CPUs that code asks for, by their names in LLVM and in Linux."""

from __future__ import annotations

#: LLVM's names of features that it uses by itself, so that their absence stops a program, and Linux's names of them in /proc/cpuinfo.
#: Those of x86-64 are in ``src/runtime/cpu_levels.h`` too.
CPU_FEATURES = {
    "x86_64": {
        "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt", "cx16": "cx16",
        "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm", "movbe": "movbe",
        "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq", "avx512vl": "avx512vl",
        "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "avx512ifma": "avx512ifma",
        "avx512vbmi": "avx512vbmi", "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg",
        "avx512vpopcntdq": "avx512_vpopcntdq", "avxvnni": "avx_vnni", "amx-tile": "amx_tile", "amx-bf16": "amx_bf16",
        "amx-int8": "amx_int8", "gfni": "gfni", "sse4a": "sse4a", "xop": "xop", "fma4": "fma4", "tbm": "tbm", "egpr": "apx",
    },
    "aarch64": {
        "fullfp16": "asimdhp", "dotprod": "asimddp", "lse": "atomics", "rdm": "asimdrdm", "sve": "sve", "sve2": "sve2",
        "i8mm": "i8mm", "bf16": "bf16", "fp16fml": "asimdfhm",
    },
}  # fmt: skip

#: LLVM's names of features of which Linux says nothing in /proc/cpuinfo, so that no loader can ask for them, and which LLVM uses by itself
#: where a CPU has them: kernels are compiled without.
UNSEEN_FEATURES = (
    "avx10.2", "avxifma", "avxneconvert", "avxvnniint8", "avxvnniint16", "cmpccxadd", "movrs",
    "ndd", "nf", "ccmp", "ppx", "push2pop2", "zu",
)  # fmt: skip
