# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Levels of CPUs: one library with code for several, of which it takes the best that the CPU runs when it is loaded.

Each level is a whole program with kernels, memory plan and layouts of its own, so that it is what a build for that CPU alone is. What the
runtime knows as ``kProgram`` and ``kArtifactInfo`` is a copy of those of the level that was chosen, made before anything else runs; so the
runtime knows nothing of levels, and a library with one has none of this. Weights that levels lay out alike are in the params file once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dycl_tvm.codegen.machine import Machine
from dycl_tvm.codegen.text import string
from dycl_tvm.codegen.weights import tensor_bytes, weight_names
from dycl_tvm.compile.program import KernelLibrary, Program, Weight
from dycl_tvm.errors import TargetError

#: Linux's names of features that code can ask for, by the names that GCC and Clang have for them in ``__builtin_cpu_supports``.
_ASKED_AS = {
    "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "popcnt": "popcnt", "avx": "avx", "avx2": "avx2", "fma": "fma",
    "f16c": "f16c", "bmi1": "bmi", "bmi2": "bmi2", "abm": "lzcnt", "movbe": "movbe", "cx16": "cmpxchg16b",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd",
    "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16", "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "avx_vnni": "avxvnni", "gfni": "gfni", "sse4a": "sse4a", "xop": "xop",
    "fma4": "fma4", "tbm": "tbm",
}  # fmt: skip


@dataclass(frozen=True)
class CPULevel:
    """The code of a network for one kind of CPU."""

    program: Program
    library: KernelLibrary
    machine: Machine


def check_levels(machines: Sequence[Machine]) -> None:
    """Refuse levels between which a library cannot choose.

    Parameters
    ----------
    machines : sequence of Machine
        The first runs on every CPU that the library is for.

    Raises
    ------
    TargetError
        If one lacks what the first has, has no more than one before it, or has what code cannot ask for.
    """
    first = machines[0]
    for k, other in enumerate(machines[1:], 1):
        if other.arch != "x86_64" or first.arch != "x86_64":
            raise TargetError("one library has code for several CPUs of x86-64 only; build one for each of the others")
        if less := sorted(set(first.cpu_flags) - set(other.cpu_flags)):
            raise TargetError(
                f"each CPU that a library has code for needs all that the least of them has ({first.mcpu}); "
                f"{other.mcpu or 'the baseline'} lacks {', '.join(less)}"
            )
        if not_less := [m.mcpu for m in machines[:k] if set(other.cpu_flags) <= set(m.cpu_flags)]:
            raise TargetError(
                f"a library takes the last of its CPUs that runs, so that code for {other.mcpu or 'the baseline'} behind that for "
                f"{not_less[0]}, which has all that it has, is no gain: put the better CPU behind"
            )
        if unknown := [flag for flag in _beyond(other, first) if flag not in _ASKED_AS]:
            raise TargetError(f"a library cannot ask for {', '.join(unknown)}, which {other.mcpu} has; build one for it alone")


def share_weights(programs: Sequence[Program]) -> None:
    """Give the weights of all levels names in one params file: what is equal has one name, what a level lays out otherwise its own."""
    known = {name: _content(w) for name, w in zip(weight_names(programs[0]), programs[0].weights)}
    by_content: dict[tuple[object, ...], list[str]] = {}
    for name, content in known.items():
        by_content.setdefault(content, []).append(name)
    for level, program in enumerate(programs[1:], 1):
        taken: set[str] = set()
        for k, (name, weight) in enumerate(zip(weight_names(program), program.weights)):
            content = _content(weight)
            same = [n for n in by_content.get(content, ()) if n not in taken]
            chosen = name if name in same else same[0] if same else f"{name}@{level}"
            while chosen in taken or known.get(chosen, content) != content:
                chosen += f"@{level}"
            if chosen not in known:
                known[chosen] = content
                by_content.setdefault(content, []).append(chosen)
            taken.add(chosen)
            program.weights[k] = replace(weight, name=chosen)


def _content(weight: Weight) -> tuple[object, ...]:
    return weight.type.dtype, weight.type.shape, hashlib.sha256(tensor_bytes(weight.data)).digest()


def _beyond(machine: Machine, first: Machine) -> list[str]:
    return sorted(set(machine.cpu_flags) - set(first.cpu_flags))


def chooser(machines: Sequence[Machine], numbers: Sequence[int]) -> str:
    """Return the C++ that takes one of several programs when the library is loaded.

    Parameters
    ----------
    machines : sequence of Machine
        Of the levels, the least first.
    numbers : sequence of int
        Of the levels among which it chooses, as :func:`~dycl_tvm.codegen.dispatcher.generate` was given them: the last that the CPU runs,
        or the one that the environment variable ``DYCL_CPU`` names, if it runs that.
    """
    declared = "".join(f"extern const ProgramDesc kProgram{k};\nextern const ArtifactInfo kArtifactInfo{k};\n" for k in numbers)
    rows = "".join(
        f"      {{{string(machines[k].mcpu)}, {_test(machines[k], machines[0])},\n       &kProgram{k}, &kArtifactInfo{k}}},\n"
        for k in numbers
    )
    return _CHOOSER.format(declared=declared, rows=rows)


def _test(machine: Machine, first: Machine) -> str:
    return " && ".join(f"__builtin_cpu_supports({string(_ASKED_AS[f])})" for f in _beyond(machine, first)) or "true"


_CHOOSER = """// Licensed under the Apache License, Version 2.0; see LICENSE.
#include <cstdlib>
#include <cstring>

#include "artifact_info.h"
#include "program.h"

namespace dycl {{
{declared}
// These are kProgram and kArtifactInfo to the runtime, which begins to read them after the constructor below.
__attribute__((visibility("hidden"))) extern ProgramDesc g_program __asm__("_ZN4dycl8kProgramE");
__attribute__((visibility("hidden"))) extern ArtifactInfo g_info __asm__("_ZN4dycl13kArtifactInfoE");
ProgramDesc g_program;
ArtifactInfo g_info;

namespace {{

struct Level {{
  const char* cpu;
  bool runs;
  const ProgramDesc* program;
  const ArtifactInfo* info;
}};

__attribute__((constructor(101))) void Choose() {{
  __builtin_cpu_init();
  const Level levels[] = {{
{rows}  }};
  const char* asked = getenv("DYCL_CPU");
  const Level* best = levels;
  for (const Level& level : levels) {{
    if (!level.runs) continue;
    best = &level;
    if (asked != nullptr && strcmp(asked, level.cpu) == 0) break;
  }}
  g_program = *best->program;
  g_info = *best->info;
}}

}}  // namespace
}}  // namespace dycl
"""
