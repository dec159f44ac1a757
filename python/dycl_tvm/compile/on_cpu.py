# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How kernels are made for CPUs: the families of ``backends/tir_cpu`` choose theirs and the layouts, the rest has TVM's schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import tvm

from dycl_tvm.backends.tir_cpu import attention, rms_norm
from dycl_tvm.backends.tir_cpu.emit import ModuleEmitter
from dycl_tvm.backends.tir_cpu.families import reduction
from dycl_tvm.backends.tir_cpu.front import same_front
from dycl_tvm.backends.tir_cpu.fuse import fuse
from dycl_tvm.backends.tir_cpu.graph import Reader
from dycl_tvm.backends.tir_cpu.kernels import Kernels
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words import amx
from dycl_tvm.backends.tir_cpu.words.loops import SCHEDULED
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
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

    Attributes
    ----------
    layouts : Layouts
        Of the graph's values, once kernels are chosen.
    makers : dict
        By the name of its function, what makes a kernel again for fewer keys.
    """

    def __init__(
        self,
        graph: HCFG,
        target: tvm.target.Target,
        options: KernelOptions,
        constants: Mapping[str, Collection[int]],
        progress: Progress | None,
    ) -> None:
        self._graph, self._target, self._constants, self._progress = graph, target, constants, progress
        self._selector = Selector(machine_of(target), options, target, progress, weight_bytes(graph), bool(graph.sizes))
        self._kernels = Kernels(self._selector)
        self._generic: tuple[str, ...] = ()
        self._unscheduled: tuple[str, ...] = ()
        self.layouts = Layouts()
        self.makers = self._kernels.makers

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module that is to be legalised."""
        return rms_norm.join(mod)

    def choose(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return a legalised module with the families' kernels in it."""
        made, self.layouts = choose_kernels(self._graph, mod, self._kernels, self._constants)
        self._selector.save()
        return made

    def fronts(self, lists: dict[str, CallList], table: KernelSet) -> Fronts:
        """Find what is computed of tensors whose sizes each call decides, and give their kernels these sizes."""
        return plan_fronts(self._graph, lists, table, self.layouts)

    def build(self, program: Program, functions: dict[str, Any]) -> list[tuple[str, bytes]]:
        """Return the objects of the program's kernels; what was folded away is not among them."""
        wanted = {k.symbol: functions[k.symbol] for k in program.kernels if k.backend == "tvm"}
        if "reduction" not in self._selector.options.disabled_families:
            found = ((symbol, reduction.schedule(fn, self._selector.machine)) for symbol, fn in wanted.items())
            reductions = {symbol: same_front(fn, wanted[symbol]) for symbol, fn in found if fn is not None}
            wanted |= reductions
            self._kernels.families += Counter({"reduction": _num_calls(program, reductions)})
        program.amx = amx.used_by(wanted.values())
        self._generic = tuple(symbol for symbol, fn in wanted.items() if SCHEDULED not in fn.attrs)
        built = build_kernels(wanted, self._target, self._progress)
        self._unscheduled = tuple(built.unscheduled)
        return built.objects

    def tell(self, stats: CompileStats) -> None:
        """Add what was chosen to the numbers of a lowering."""
        taken, rest = self._kernels.offload, stats.offload["tvm"]
        left = replace(rest, nodes=max(0, rest.nodes - taken.nodes), macs=max(0, rest.macs - taken.macs))
        stats.offload = {**{k: v for k, v in stats.offload.items() if k != "tvm"}, "tir_cpu": taken, "tvm": left}
        stats.families, stats.generic = dict(sorted(self._kernels.families.items())), tuple(dict.fromkeys(self._kernels.left))
        stats.generic_kernels, stats.unscheduled = self._generic, self._unscheduled
        stats.measured = self._selector.measured + self._selector.found
        stats.estimated = self._selector.choices() - stats.measured


def choose_kernels(
    graph: HCFG, mod: tvm.IRModule, kernels: Kernels, constants: Mapping[str, Collection[int]]
) -> tuple[tvm.IRModule, Layouts]:
    """Return the module with family kernels in it, and the layouts of the graph's values.

    ``constants`` are the parameters of each sub-DNN that are weights wherever it is called.
    """
    reader = Reader(mod)
    functions = {s.name: reader.read(s.name, constants.get(s.name, ())) for s in graph.sub_dnns()}
    for function in functions.values():
        attention.join(function, mod, kernels.takes_attention)
        fuse(function)
    layouts = plan_layouts(graph, functions, kernels, kernels.options.layout_planning)
    emitter = ModuleEmitter(mod, kernels)
    for name, function in functions.items():
        emitter.function(function, layouts.params[name], layouts.results[name])
    return emitter.finish(list(functions)), layouts


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
