# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What was compiled against the graph that it was compiled from: the kernels by themselves, then the whole lowered program."""

from __future__ import annotations

import dataclasses
from typing import Any

from dycl_tvm import compile
from dycl_tvm.codegen.machine import runs_here
from dycl_tvm.compile import KernelOptions, Lowered
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.verify.certificate import Kernels, Level
from dycl_tvm.verify.kernels import check_kernels
from dycl_tvm.verify.memory import CompiledKernels
from dycl_tvm.verify.program import check_program

#: About how many seconds the kernels and the program may take; they count operations, so that two builds check the same.
_SECONDS: dict[str, tuple[float, float]] = {"default": (0.6, 0.4), "full": (60.0, 60.0)}


def check_compiled(
    graph: HCFG, lowered: Lowered, target: Any, twin: Any, level: Level = "default", accuracy: str = "default", seed: int = 0
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

    Raises
    ------
    VerificationError
        If something differs.
    """
    for_kernels, for_flow = _SECONDS[level]
    here = lowered.program.device is None and runs_here(target)
    compiled = CompiledKernels(lowered.library) if here else None
    flow = check_program(graph, lowered, compiled, accuracy=accuracy, seconds=for_flow, seed=seed)
    if compiled is not None and flow.edges < flow.edges_total:  # without kernels the rest is soon done
        rest = check_program(graph, lowered, None, accuracy=accuracy, seconds=for_flow, seed=seed)
        flow = dataclasses.replace(flow, calls=flow.calls + rest.calls, edges=max(flow.edges, rest.edges))
    if compiled is not None:
        found = check_kernels(graph, lowered, compiled, accuracy=accuracy, seconds=for_kernels, seed=seed)
    elif level == "full":
        of_cpu = accuracy if accuracy in ("strict", "default") else "default"
        other = compile.lower(graph, twin, options=KernelOptions(of_cpu))  # type: ignore[arg-type]
        loaded = CompiledKernels(other.library)
        check_program(graph, other, loaded, accuracy=of_cpu, seconds=for_flow, seed=seed)
        found = check_kernels(graph, other, loaded, accuracy=of_cpu, seconds=for_kernels, seed=seed)
        found = dataclasses.replace(found, twin=str(twin.attrs.get("mcpu", twin.kind)))
    else:
        found = Kernels(total=len(graph.sub_dnns()), reason="kernels of this target do not run on the machine that built them")
    return dataclasses.replace(found, calls=flow.calls, edges=flow.edges, edges_total=flow.edges_total)
