# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From an outlined HCFG to a Program, the objects of its kernels, and its IRModule."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tvm

from dycl_tvm.backends.partition import partition
from dycl_tvm.backends.registry import Generated, active_backends, requested
from dycl_tvm.backends.tir_cpu.options import DEFAULT_TUNING_SECONDS, FAMILIES, Accuracy, KernelOptions
from dycl_tvm.backends.tir_cpu.words import amx
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.compile import templates
from dycl_tvm.compile.call_list import call_list
from dycl_tvm.compile.device import is_device
from dycl_tvm.compile.fronts import Fronts
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.layout import constant_params
from dycl_tvm.compile.lowering import Lowering, Placement
from dycl_tvm.compile.on_cpu import OnCPU
from dycl_tvm.compile.on_device import OnDevice
from dycl_tvm.compile.pipeline import KernelSet, legalise, to_kernels
from dycl_tvm.compile.program import CopyTensor, KernelCall, KernelLibrary, Program
from dycl_tvm.compile.stats import CompileStats
from dycl_tvm.compile.weights import Link, link_with_tvm
from dycl_tvm.hcfg.nodes import HCFG

__all__ = ["DEFAULT_TUNING_SECONDS", "FAMILIES", "Accuracy", "CompileStats", "KernelOptions", "Lowered", "Placement", "has_amx", "lower"]


@dataclass
class Lowered:
    """What :func:`lower` gives.

    Attributes
    ----------
    program : Program
    library : KernelLibrary
    ir_module : tvm.IRModule
        One global Relax function a sub-DNN, as imported.
    stats : CompileStats
    placement : Placement
        Where the graph is in the program.
    fronts : Fronts
        What is computed of the results of sub-DNNs.
    """

    program: Program
    library: KernelLibrary
    ir_module: tvm.IRModule
    stats: CompileStats
    placement: Placement
    fronts: Fronts


def lower(
    graph: HCFG,
    target: tvm.target.Target,
    *,
    disabled_backends: Collection[str] = (),
    enabled_backends: Collection[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
    dedup: bool = True,
    plan: bool = True,
    options: KernelOptions | None = None,
    link: Link = link_with_tvm,
    tag: str = "",
) -> Lowered:
    """Compile an outlined HCFG.

    Parameters
    ----------
    graph : HCFG
        Blocks hold sub-DNN calls and host operations only.
    target : tvm.target.Target
        As :mod:`dycl_tvm.target` resolves it. The artefact needs such a machine.
    disabled_backends : collection of str
        Backends that may not take regions.
    enabled_backends : collection of str
        Backends that take all that they can, whatever their cost hooks say.
    progress : callable, optional
        Called with (phase, done, total).
    dedup : bool
        False compiles equal kernels again for every place (the ablation).
    plan : bool
        False gives every value bytes of its own (the ablation).
    options : KernelOptions, optional
        How kernels are chosen.
    link : callable, optional
        Links the kernels that are run at build time.
    tag : str
        What the symbols of the kernels end in, where a library has those of several CPUs.

    Raises
    ------
    UnsupportedError
        An operator that has no lowering.
    CompileError
        A kernel that TVM or a backend could not compile.
    """
    stats = CompileStats()
    sub_dnns, constants, options = graph.sub_dnns(), constant_params(graph), options or KernelOptions()
    backends = active_backends(disabled_backends, enabled_backends)
    kernels: OnCPU | OnDevice
    if is_device(target):
        kernels = OnDevice(graph, target, options, constants, progress, backends)
    else:
        kernels = OnCPU(graph, target, options, constants, progress, backends)
    with _timed(stats, "import"), target:
        imported = import_sub_dnns(sub_dnns, progress)
    with _timed(stats, "partition"):
        parts = partition(imported, backends, target, constants, requested(enabled_backends))
    with _timed(stats, "legalise"):
        legal = legalise(kernels.prepare(parts.mod), target)
    with _timed(stats, "layouts"):
        chosen = kernels.choose(legal)
    with _timed(stats, "passes"):
        low = to_kernels(chosen, target)
    table = KernelSet(dedup=dedup, makers=kernels.makers, tag=tag)
    with _timed(stats, "call lists"):
        lists = {s.name: call_list(s.name, low, table, parts.backend_of) for s in sub_dnns}
    with _timed(stats, "fronts"):
        fronts = kernels.fronts(lists, table)
    with _timed(stats, "plan"):
        lowering = Lowering(graph, lists, table.functions, plan, kernels.layouts, fronts.bounds.products, link)
        lowering.prepare_folding()
        program = lowering.run()
    with _timed(stats, "kernels"):
        objects = kernels.build(program, table.functions)
    library = _library(program, objects, parts.generated)
    assert {k.backend for k in program.kernels} <= {"tvm", templates.BACKEND, *parts.backend_of.values()}
    stats.offload = parts.offload
    kernels.tell(stats)
    _count(stats, graph, program, lowering)
    return Lowered(program, library, imported, stats, lowering.placement(), fronts)


def _library(program: Program, objects: Sequence[tuple[str, bytes]], generated: Sequence[Generated]) -> KernelLibrary:
    """Return the objects of a program's kernels, with what backends generated and with the templates that it calls."""
    called = [k.symbol for k in program.kernels if k.backend == templates.BACKEND]
    return KernelLibrary(
        (*objects, *(o for g in generated for o in g.objects)),
        tuple(s for g in generated for s in g.sources) + ((("templates.cc", templates.source_of(called)),) if called else ()),
        tuple(dict.fromkeys(f for g in generated for f in g.link_flags)),
    )


def _count(stats: CompileStats, graph: HCFG, program: Program, lowering: Lowering) -> None:
    """Add the numbers of a program and of its plan."""
    assert lowering.plan is not None
    stats.sub_dnns, stats.kernels = len(graph.sub_dnns()), len(program.kernels)
    stats.calls = sum(isinstance(i, KernelCall) for b in program.blocks for i in b.instrs)
    stats.folded_calls = lowering.folded_calls
    stats.arena_bytes = program.arena_bytes
    stats.arena_lower_bound, stats.coalesced, stats.in_place = lowering.plan.lower_bound, lowering.plan.coalesced, lowering.plan.in_place
    stats.copies = sum(isinstance(m, CopyTensor) for b in program.blocks for g in b.gotos() for m in g.moves)
    stats.weight_bytes = sum(w.type.nbytes for w in program.weights)


def has_amx(target: tvm.target.Target) -> bool:
    """Whether a target is a CPU that has the tiles of AMX for bfloat16."""
    return not is_device(target) and amx.has_tiles(machine_of(target))


@contextmanager
def _timed(stats: CompileStats, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    stats.seconds[phase] = time.perf_counter() - start
