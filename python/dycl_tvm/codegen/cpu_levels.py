# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Levels of CPUs: one library with code for several, of which it takes the best that the CPU runs when it is loaded.

Each level is a whole program with kernels, memory plan and layouts of its own, so that it is what a build for that CPU alone is. What the
runtime knows as ``kProgram`` and ``kArtifactInfo`` is a copy of those of the level that was chosen, made before anything else runs; so the
runtime knows nothing of levels but that a choice can be refused, and a library with one has none of this. Weights that levels lay out alike
are in the params file once.
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
        If one lacks what the first has, has no more than one before it, or has the name of another.
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
        if other.mcpu in [m.mcpu for m in machines[:k]]:
            raise TargetError(
                f"a library tells its CPUs by their names, and two are {other.mcpu}, with other -mattr; name one of them otherwise"
            )


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


def chooser(machines: Sequence[Machine], numbers: Sequence[int]) -> str:
    """Return the C++ that takes one of several programs when the library is loaded: ``cpu_levels.h`` of the runtime says how.

    Parameters
    ----------
    machines : sequence of Machine
        Of the levels, the least first, with what their code needs.
    numbers : sequence of int
        Of the levels among which it chooses, as :func:`~dycl_tvm.codegen.dispatcher.generate` was given them. One alone is taken
        whatever the CPU and its user say: its kernels are others where the build checks it.
    """
    several = len(numbers) > 1
    declared = "".join(f"extern const ProgramDesc kProgram{k};\nextern const ArtifactInfo kArtifactInfo{k};\n" for k in numbers)
    rows = "".join(
        f"    {{{string(machines[k].mcpu)},\n     {string(''.join(f'{flag} ' for flag in machines[k].cpu_flags))},\n"
        f"     &kProgram{k}, &kArtifactInfo{k}}},\n"
        for k in numbers
    )
    return _CHOOSER.format(
        declared=declared, rows=rows, level="ChooseLevel(kLevels)" if several else "kLevels[0]", check="Check" if several else "nullptr"
    )


_CHOOSER = """// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "cpu_levels.h"

namespace dycl {{
{declared}
// These are kProgram and kArtifactInfo to the runtime, which begins to read them after the constructor below.
__attribute__((visibility("hidden"))) extern ProgramDesc g_program __asm__("_ZN4dycl8kProgramE");
__attribute__((visibility("hidden"))) extern ArtifactInfo g_info __asm__("_ZN4dycl13kArtifactInfoE");
ProgramDesc g_program;
ArtifactInfo g_info;

namespace {{

constexpr CpuLevel kLevels[] = {{
{rows}}};
const CpuLevel* g_chosen = nullptr;

[[maybe_unused]] int Check() {{ return CheckCpu(kLevels, *g_chosen); }}

__attribute__((constructor(101))) void Choose() {{
  g_chosen = &{level};
  g_program = *g_chosen->program;
  g_info = *g_chosen->info;
  g_info.check_cpu = {check};
}}

}}  // namespace
}}  // namespace dycl
"""
