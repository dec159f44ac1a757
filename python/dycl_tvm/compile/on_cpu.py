# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How kernels are made for CPUs: a backend chooses them, in layouts that are planned here, and the rest has TVM's schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm

from dycl_tvm.backends.network_kernels import Network
from dycl_tvm.backends.registry import Backend, kernels_of
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.words import amx
from dycl_tvm.backends.tir_cpu.words.loops import SCHEDULED
from dycl_tvm.compile.call_list import CallList
from dycl_tvm.compile.fronts import Fronts, plan_fronts
from dycl_tvm.compile.layout import Layouts, plan_layouts
from dycl_tvm.compile.pipeline import KernelSet, Progress, build_kernels
from dycl_tvm.compile.program import KernelCall, Program
from dycl_tvm.compile.stats import CompileStats
from dycl_tvm.hcfg.nodes import HCFG, Constant, SubDNNCall
from dycl_tvm.hcfg.types import TensorType


class OnCPU:
    """The kernels of one graph.

    Parameters
    ----------
    graph : HCFG
    target : tvm.target.Target
    options : KernelOptions
    constants : mapping
        Of each sub-DNN the parameters that are weights wherever it is called.
    progress : callable or None
    backends : sequence of Backend
        Those that may make kernels, in the order in which they are asked.

    Attributes
    ----------
    layouts : Layouts
        Of the graph's values, once kernels are chosen.
    """

    def __init__(
        self,
        graph: HCFG,
        target: tvm.target.Target,
        options: KernelOptions,
        constants: Mapping[str, Collection[int]],
        progress: Progress | None,
        backends: Sequence[Backend],
    ) -> None:
        self._graph, self._target, self._progress = graph, target, progress
        self._across = options.layout_planning
        self._kernels = kernels_of(Network(target, options, constants, weight_bytes(graph), bool(graph.sizes), progress), backends)
        self._scheduled = 0
        self._generic: tuple[str, ...] = ()
        self._unscheduled: tuple[str, ...] = ()
        self.layouts = Layouts()

    @property
    def makers(self) -> Mapping[str, Any]:
        """By the name of its function, what makes a kernel again for fewer keys."""
        return self._kernels.makers

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module that is to be legalised."""
        return self._kernels.prepare(mod)

    def choose(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return a legalised module with kernels in it, in the layouts that are best for the whole graph."""

        def plan(graphs: Mapping[str, Any], wishes: Any) -> Layouts:
            self.layouts = plan_layouts(self._graph, dict(graphs), wishes, self._across)
            return self.layouts

        return self._kernels.choose(mod, [s.name for s in self._graph.sub_dnns()], plan)

    def fronts(self, lists: dict[str, CallList], table: KernelSet) -> Fronts:
        """Find what is computed of tensors whose sizes each call decides, and give their kernels these sizes."""
        return plan_fronts(self._graph, lists, table, self.layouts)

    def build(self, program: Program, functions: dict[str, Any]) -> list[tuple[str, bytes]]:
        """Return the objects of the program's kernels; what was folded away is not among them."""
        wanted = {k.symbol: functions[k.symbol] for k in program.kernels if k.backend == "tvm"}
        scheduled = self._kernels.schedule(wanted)
        self._scheduled = _num_calls(program, scheduled)
        wanted |= scheduled
        program.amx = amx.used_by(wanted.values())
        self._generic = tuple(symbol for symbol, fn in wanted.items() if SCHEDULED not in fn.attrs)
        built = build_kernels(wanted, self._target, self._progress)
        self._unscheduled = tuple(built.unscheduled)
        return built.objects

    def tell(self, stats: CompileStats) -> None:
        """Add what was chosen to the numbers of a lowering."""
        chosen, rest = self._kernels.chosen(), stats.offload["tvm"]
        left = replace(rest, nodes=max(0, rest.nodes - chosen.offload.nodes), macs=max(0, rest.macs - chosen.offload.macs))
        stats.offload = {**{k: v for k, v in stats.offload.items() if k != "tvm"}, "tir_cpu": chosen.offload, "tvm": left}
        stats.families = dict(sorted((Counter(chosen.families) + Counter({"reduction": self._scheduled})).items()))
        stats.generic, stats.generic_kernels, stats.unscheduled = chosen.left, self._generic, self._unscheduled
        stats.measured, stats.estimated, stats.halved = chosen.measured, chosen.estimated, chosen.halved


def weight_bytes(graph: HCFG) -> int:
    """Return the bytes of all constants that sub-DNNs read."""
    constants = {
        id(a): a.type.nbytes
        for block in graph.blocks
        for step in block.steps
        if isinstance(step, SubDNNCall)
        for a in step.args
        if isinstance(a, Constant) and isinstance(a.type, TensorType)
    }
    return sum(constants.values())


def _num_calls(program: Program, symbols: Collection[str]) -> int:
    """Return how many calls of some kernels a program has."""
    calls = (i.kernel for b in program.blocks for i in b.instrs if isinstance(i, KernelCall))
    return sum(program.kernels[k].symbol in symbols for k in calls)
