# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From an outlined HCFG to a Program, the objects of its kernels, and its IRModule."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import tvm

from dycl_tvm.backends.extents import Bounds
from dycl_tvm.backends.partition import Offload, partition
from dycl_tvm.backends.registry import active_backends, requested
from dycl_tvm.backends.tir_cpu import attention, rms_norm
from dycl_tvm.backends.tir_cpu.emit import ModuleEmitter
from dycl_tvm.backends.tir_cpu.families import amx, reduction
from dycl_tvm.backends.tir_cpu.front import same_front
from dycl_tvm.backends.tir_cpu.fuse import fuse
from dycl_tvm.backends.tir_cpu.graph import Reader
from dycl_tvm.backends.tir_cpu.kernels import Kernels
from dycl_tvm.backends.tir_cpu.loops import SCHEDULED
from dycl_tvm.backends.tir_cpu.machine import machine_of
from dycl_tvm.backends.tir_cpu.options import DEFAULT_TUNING_SECONDS, FAMILIES, KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.workload import Accuracy
from dycl_tvm.compile import templates
from dycl_tvm.compile.call_list import call_list
from dycl_tvm.compile.device import build_device_code, is_device
from dycl_tvm.compile.device_branches import find_segments
from dycl_tvm.compile.fronts import Fronts, plan_fronts
from dycl_tvm.compile.half import prepare_half
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.layout import Layouts, constant_params, plan_layouts
from dycl_tvm.compile.lowering import Lowering, Placement
from dycl_tvm.compile.pipeline import KernelSet, build_kernels, legalise, to_kernels
from dycl_tvm.compile.program import CopyTensor, KernelCall, KernelLibrary, Program
from dycl_tvm.compile.stats import CompileStats
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import HCFG, Constant, HostOp, SubDNNCall
from dycl_tvm.hcfg.types import TensorType

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

    Raises
    ------
    UnsupportedError
        An operator that has no lowering.
    CompileError
        A kernel that TVM or a backend could not compile.
    """
    stats = CompileStats()
    if is_device(target):
        _refuse_stack(graph)
    sub_dnns = graph.sub_dnns()
    with _timed(stats, "import"), target:
        imported = import_sub_dnns(sub_dnns, progress)
    with _timed(stats, "partition"):
        backends = active_backends(disabled_backends, enabled_backends)
        constants = constant_params(graph)
        parts = partition(imported, backends, target, constants, requested(enabled_backends))
    on_device = is_device(target)
    half = on_device and options is not None and options.accuracy == "fp16"
    with _timed(stats, "legalise"):
        legal = legalise(prepare_half(parts.mod, constants, half) if on_device else rms_norm.join(parts.mod), target)
    with _timed(stats, "layouts"):
        selector = Selector(machine_of(target), options or KernelOptions(), target, progress, _weight_bytes(graph), bool(graph.sizes))
        kernels = Kernels(selector)
        # the families are kernels of CPUs
        packed, layouts = (legal, None) if on_device else choose_kernels(graph, legal, kernels, constants)
        if not on_device:
            selector.save()
    with _timed(stats, "passes"):
        low = to_kernels(packed, target)
    table = KernelSet(dedup=dedup, makers=kernels.makers)
    with _timed(stats, "call lists"):
        lists = {s.name: call_list(s.name, low, table, parts.backend_of) for s in sub_dnns}
    fronts = Fronts(Bounds([]))
    if not on_device:
        with _timed(stats, "fronts"):
            fronts = plan_fronts(graph, lists, table, layouts)
    with _timed(stats, "plan"):
        lowering = Lowering(graph, lists, table.functions, plan, layouts)
        lowering.prepare_folding()
        program = lowering.run()
    with _timed(stats, "kernels"):
        # what was folded away is not compiled for the target
        wanted = {k.symbol: table.functions[k.symbol] for k in program.kernels if k.backend == "tvm"}
        if not on_device and "reduction" not in selector.options.disabled_families:
            reductions = {s: fn for s, fn in ((s, reduction.schedule(fn, selector.machine)) for s, fn in wanted.items()) if fn is not None}
            wanted |= {s: same_front(fn, wanted[s]) for s, fn in reductions.items()}
            kernels.families += Counter({"reduction": _num_calls(program, reductions)})
        if on_device:
            on_it = {b.name for b in backends if b.on_device}
            libraries = {k.symbol: _num_tensors(program, n) for n, k in enumerate(program.kernels) if k.backend in on_it}
            program.device, rules = build_device_code(program.kernels, table.functions, target, progress, half, libraries)
            if not libraries:  # their calls are in no graph
                program.device = replace(program.device, segments=find_segments(program))
        program.amx = amx.used_by(wanted.values())
        built = build_kernels({} if on_device else wanted, target, progress)
    used = {k.backend for k in program.kernels}
    generated = parts.generated
    called = [k.symbol for k in program.kernels if k.backend == templates.BACKEND]
    library = KernelLibrary(
        tuple(built.objects) + tuple(o for g in generated for o in g.objects),
        tuple(s for g in generated for s in g.sources) + ((("templates.cc", templates.source_of(called)),) if called else ()),
        tuple(dict.fromkeys(f for g in generated for f in g.link_flags)),
    )
    assert used <= {"tvm", templates.BACKEND, *parts.backend_of.values()}
    stats.sub_dnns, stats.kernels, stats.unscheduled = len(sub_dnns), len(program.kernels), tuple(built.unscheduled)
    stats.calls = sum(isinstance(i, KernelCall) for b in program.blocks for i in b.instrs)
    stats.folded_calls = lowering.folded_calls
    stats.arena_bytes = program.arena_bytes
    assert lowering.plan is not None
    stats.arena_lower_bound, stats.coalesced = lowering.plan.lower_bound, lowering.plan.coalesced
    stats.in_place = lowering.plan.in_place
    stats.copies = sum(isinstance(m, CopyTensor) for b in program.blocks for g in b.gotos() for m in g.moves)
    stats.weight_bytes = sum(w.type.nbytes for w in program.weights)
    stats.offload = _with_families(parts.offload, kernels.offload)
    stats.families, stats.generic = dict(sorted(kernels.families.items())), tuple(dict.fromkeys(kernels.left))
    stats.generic_kernels = () if on_device else tuple(symbol for symbol, fn in wanted.items() if SCHEDULED not in fn.attrs)
    stats.measured = selector.measured + selector.found
    stats.estimated = selector.choices() - stats.measured
    if on_device:
        stats.families = dict(sorted(Counter(rules.values()).items()))
    return Lowered(program, library, imported, stats, lowering.placement(), fronts)


def has_amx(target: tvm.target.Target) -> bool:
    """Whether a target is a CPU that has the tiles of AMX for bfloat16."""
    return not is_device(target) and amx.allowed(machine_of(target), "bf16x3")


def _num_calls(program: Program, symbols: Collection[str]) -> int:
    """Return how many calls of some kernels a program has."""
    calls = (i.kernel for b in program.blocks for i in b.instrs if isinstance(i, KernelCall))
    return sum(program.kernels[k].symbol in symbols for k in calls)


def _num_tensors(program: Program, kernel: int) -> int:
    """Return how many tensors a kernel is called with."""
    return next(len(i.args) for b in program.blocks for i in b.instrs if isinstance(i, KernelCall) and i.kernel == kernel)


def _weight_bytes(graph: HCFG) -> int:
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


def _with_families(offload: dict[str, Offload], taken: Offload) -> dict[str, Offload]:
    """Move what kernel families took from TVM's account to their own."""
    rest = offload["tvm"]
    rest.nodes, rest.macs = max(0, rest.nodes - taken.nodes), max(0, rest.macs - taken.macs)
    return {**{k: v for k, v in offload.items() if k != "tvm"}, "tir_cpu": taken, "tvm": rest}


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


def _refuse_stack(graph: HCFG) -> None:
    """Refuse recursive functions that keep something over a call: the stack is in the host's memory."""
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, HostOp) and step.op == "push":
                raise UnsupportedError(
                    "a recursion whose depth is known only at run time is not supported on GPUs", step.origin, "build for the CPU"
                )


@contextmanager
def _timed(stats: CompileStats, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    stats.seconds[phase] = time.perf_counter() - start
