# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How kernels are made for GPUs: every operator has a schedule of ``backends/tir_cuda``, or a library on the device computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import tvm

from dycl_tvm.backends import tir_cuda
from dycl_tvm.backends.registry import Backend
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.compile.call_list import CallList
from dycl_tvm.compile.device import build_device_code
from dycl_tvm.compile.device_branches import find_segments
from dycl_tvm.compile.fronts import Fronts, plan_fronts
from dycl_tvm.compile.layout import Layouts
from dycl_tvm.compile.narrow import prepare_narrow
from dycl_tvm.compile.pipeline import KernelSet, Progress
from dycl_tvm.compile.program import KernelCall, Program
from dycl_tvm.compile.stats import CompileStats
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import HCFG, HostOp


class OnDevice:
    """The kernels of one graph; it has the interface of :class:`dycl_tvm.compile.on_cpu.OnCPU`.

    Parameters
    ----------
    graph : HCFG
    target : tvm.target.Target
    options : KernelOptions
    constants : mapping
        Of each sub-DNN the parameters that are weights wherever it is called.
    progress : callable or None
    backends : iterable of Backend
        Those that may take regions.

    Raises
    ------
    UnsupportedError
        A recursion that keeps something over a call.
    """

    def __init__(
        self,
        graph: HCFG,
        target: tvm.target.Target,
        options: KernelOptions,
        constants: Mapping[str, Collection[int]],
        progress: Progress | None,
        backends: Iterable[Backend],
    ) -> None:
        _refuse_stack(graph)
        self._graph = graph
        self._target, self._constants, self._progress = target, constants, progress
        self._half = options.accuracy == "fp16"
        self._libraries = {b.name for b in backends if b.on_device}
        self._rules: dict[str, str] = {}
        self.layouts = Layouts()
        self.makers: dict[str, Maker] = {}

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module that is to be legalised."""
        return prepare_narrow(mod, self._constants, self._half, tir_cuda.word_of(self._target))

    def choose(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module as it is: kernel families are those of CPUs."""
        return mod

    def fronts(self, lists: dict[str, CallList], table: KernelSet) -> Fronts:
        """Find what is computed of tensors whose sizes each call decides; launches get their grids from these sizes."""
        return plan_fronts(self._graph, lists, table, self.layouts, as_inputs=False)

    def build(self, program: Program, functions: dict[str, Any]) -> list[tuple[str, bytes]]:
        """Put the device's code into a program; there are no objects for the host."""
        libraries = {k.symbol: _num_tensors(program, n) for n, k in enumerate(program.kernels) if k.backend in self._libraries}
        program.device, self._rules = build_device_code(program.kernels, functions, self._target, self._progress, self._half, libraries)
        if not libraries:  # their calls are in no graph of CUDA's
            program.device = replace(program.device, segments=find_segments(program))
        return []

    def tell(self, stats: CompileStats) -> None:
        """Add what was chosen to the numbers of a lowering."""
        stats.families = dict(sorted(Counter(self._rules.values()).items()))


def _num_tensors(program: Program, kernel: int) -> int:
    """Return how many tensors a kernel is called with."""
    return next(len(i.args) for b in program.blocks for i in b.instrs if isinstance(i, KernelCall) and i.kernel == kernel)


def _refuse_stack(graph: HCFG) -> None:
    """Refuse recursive functions that keep something over a call: the stack is in the host's memory."""
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, HostOp) and step.op == "push":
                raise UnsupportedError(
                    "a recursion whose depth is known only at run time is not supported on GPUs", step.origin, "build for the CPU"
                )
