# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What was compiled against the graph that it was compiled from: the kernels by themselves, then the whole lowered program."""

from __future__ import annotations

import dataclasses
from typing import Any

from dycl_tvm import compile
from dycl_tvm.codegen.machine import runs_here
from dycl_tvm.codegen.toolchain import link_shared
from dycl_tvm.compile import KernelOptions, Lowered
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.verify.budget import Budget, BuildBudget
from dycl_tvm.verify.certificate import Kernels, Level
from dycl_tvm.verify.kernels import check_kernels
from dycl_tvm.verify.memory import CompiledKernels
from dycl_tvm.verify.program import check_program

#: What part of the budget is kept for the comparison of kernels by themselves, while the program is run in step with its graph.
_KERNELS = 0.4


def check_compiled(
    graph: HCFG,
    lowered: Lowered,
    target: Any,
    twin: Any,
    level: Level = "default",
    accuracy: str = "default",
    seed: int = 0,
    budget: BuildBudget | None = None,
) -> Kernels:
    """Compare a lowered network with its graph.

    Parameters
    ----------
    graph : HCFG
        After the passes.
    lowered : Lowered
        What was compiled of it.
    target, twin : tvm.target.Target
        What it was compiled for; and what stands for it where that does not run here: a CPU of this machine. Compiling for the twin takes
        as long as the build, so that only ``full`` does it; ``default`` then compares what flows between the kernels.
    level : str
        ``default`` or ``full``.
    accuracy : str
        As :func:`dycl_tvm.build` has it.
    seed : int
        Of all random choices.
    budget : BuildBudget, optional
        That of the build, of which all that is left may be spent; by default that of a build at this level without other checks.

    Raises
    ------
    VerificationError
        If something differs.
    """
    left = (budget or BuildBudget(level)).for_kernels(len(lowered.program.kernels))
    here = lowered.program.device is None and runs_here(target)
    if here:
        return _check(graph, lowered, level, accuracy, seed, left)
    flow = check_program(graph, lowered, None, accuracy=accuracy, budget=left, reserve=_KERNELS * left.left, seed=seed)
    if level == "full":
        of_cpu = accuracy if accuracy in ("strict", "default") else "default"
        other = compile.lower(graph, twin, options=KernelOptions(of_cpu), link=link_shared)  # type: ignore[arg-type]
        found = dataclasses.replace(_check(graph, other, level, of_cpu, seed, left), twin=str(twin.attrs.get("mcpu", twin.kind)))
    else:
        found = Kernels(total=len(graph.sub_dnns()), reason="kernels of this target do not run on the machine that built them")
    return dataclasses.replace(found, calls=flow.calls, edges=flow.edges, edges_total=flow.edges_total)


def _check(graph: HCFG, lowered: Lowered, level: Level, accuracy: str, seed: int, budget: Budget) -> Kernels:
    """Check what runs on this machine."""
    compiled, reserve = CompiledKernels(lowered.library), _KERNELS * budget.left
    flow = check_program(graph, lowered, compiled, accuracy=accuracy, budget=budget, reserve=reserve, seed=seed)
    calls, edges = flow.calls, flow.edges
    if edges < flow.edges_total:  # without kernels the rest is soon done
        rest = check_program(graph, lowered, None, accuracy=accuracy, budget=budget, reserve=reserve, seed=seed)
        calls, edges = calls + rest.calls, max(edges, rest.edges)
    found = check_kernels(
        graph, lowered, compiled, accuracy=accuracy, budget=budget, seed=seed, thorough=level == "full", known=flow.compared
    )
    return dataclasses.replace(found, calls=calls, edges=edges, edges_total=flow.edges_total)
