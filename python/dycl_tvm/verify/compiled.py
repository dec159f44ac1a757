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

#: Seconds for a full check of the kernels, and for one of the program.
_FULL = 60.0
#: For a default one of both together, and for each kernel: a build takes about a tenth of a second for it.
_DEFAULT, _KERNEL = 1.0, 0.015


def _seconds(lowered: Lowered, level: Level) -> float:
    """Return about how long a check may take. It counts operations, and not time: two builds check the same."""
    return _FULL if level == "full" else max(_DEFAULT, _KERNEL * len(lowered.program.kernels)) / 2


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
    seconds = _seconds(lowered, level)
    here = lowered.program.device is None and runs_here(target)
    if here:
        return _check(graph, lowered, level, accuracy, seed)
    flow = check_program(graph, lowered, None, accuracy=accuracy, seconds=seconds, seed=seed)
    if level == "full":
        of_cpu = accuracy if accuracy in ("strict", "default") else "default"
        other = compile.lower(graph, twin, options=KernelOptions(of_cpu))  # type: ignore[arg-type]
        found = dataclasses.replace(_check(graph, other, level, of_cpu, seed), twin=str(twin.attrs.get("mcpu", twin.kind)))
    else:
        found = Kernels(total=len(graph.sub_dnns()), reason="kernels of this target do not run on the machine that built them")
    return dataclasses.replace(found, calls=flow.calls, edges=flow.edges, edges_total=flow.edges_total)


def _check(graph: HCFG, lowered: Lowered, level: Level, accuracy: str, seed: int) -> Kernels:
    """Check what runs on this machine."""
    seconds, compiled = _seconds(lowered, level), CompiledKernels(lowered.library)
    flow = check_program(graph, lowered, compiled, accuracy=accuracy, seconds=seconds, seed=seed)
    calls, edges = flow.calls, flow.edges
    if edges < flow.edges_total:  # without kernels the rest is soon done
        rest = check_program(graph, lowered, None, accuracy=accuracy, seconds=seconds, seed=seed)
        calls, edges = calls + rest.calls, max(edges, rest.edges)
    found = check_kernels(
        graph, lowered, compiled, accuracy=accuracy, seconds=seconds, seed=seed, thorough=level == "full", known=flow.compared
    )
    return dataclasses.replace(found, calls=calls, edges=edges, edges_total=flow.edges_total)
