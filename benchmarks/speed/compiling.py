# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compiles one prepared network with dycl_tvm, and says what that took."""

from __future__ import annotations

import inspect
import pickle
import resource
import time
from pathlib import Path
from typing import Any

import torch

import dycl_tvm
from dycl_tvm import codegen
from dycl_tvm import compile as compiler
from dycl_tvm.artifact import Artifact
from dycl_tvm.build import simplify, stage_model
from dycl_tvm.progress import Phases
from dycl_tvm.target import resolve_target


def compile_network(folder: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Build, write model.so, model.params and the split ONNX form; return seconds by phase and the peak of memory.

    Options are arguments of ``build``, and under the name "lower" those that only ``compile.lower`` has; one that is unknown is an
    error that names it.
    """
    lowering = options.get("lower", {})
    missing = sorted(set(options) - {"lower"} - set(inspect.signature(dycl_tvm.build).parameters))
    missing += sorted(set(lowering) - set(inspect.signature(compiler.lower).parameters))
    if missing:
        return {"error": f"build() does not take {', '.join(missing)}"}
    out.mkdir(parents=True, exist_ok=True)
    model = torch.load(folder / "model.pt", weights_only=False)
    with (folder / "data.pickle").open("rb") as file:
        inputs = pickle.load(file)["inputs"][0]
    before = peak_megabytes()
    begin = time.perf_counter()
    tensors = tuple(map(torch.from_numpy, inputs))
    artifact = lowered_with(model, tensors, lowering) if lowering else dycl_tvm.build(model, tensors, target="native", **options)
    artifact.export_library(out / "model.so")
    artifact.save_params(out / "model.params")
    total = time.perf_counter() - begin
    report = artifact.report()
    found = {
        "seconds": total,
        "phases": report.seconds,
        "peak_mb": peak_megabytes(),
        "before_mb": before,
        "kernels": report.kernels,
        "kernel_calls": report.kernel_calls,
        "unscheduled": len(report.unscheduled),
        "arena_bytes": report.arena_bytes,
        "arena_lower_bound": report.arena_lower_bound,
        "library_bytes": (out / "model.so").stat().st_size,
    }
    begin = time.perf_counter()
    artifact.source()
    found["dispatcher_seconds"] = time.perf_counter() - begin
    if not options:
        try:
            artifact.export_onnx(out / "split", split=True)
        except Exception as error:
            found["split_error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def lowered_with(model: Any, inputs: tuple[torch.Tensor, ...], lowering: dict[str, Any]) -> Artifact:
    """Compile as ``build`` does, with arguments for ``compile.lower``."""
    phases, target = Phases(), resolve_target("native")
    graph = stage_model(model, inputs, phases=phases)
    stats = simplify(graph, (), phases)
    with phases.phase("compile", f"{len(graph.sub_dnns())} sub-DNNs"):
        lowered = compiler.lower(graph, target.target, **lowering)
    return Artifact(graph, lowered, codegen.generate_code(lowered.program, lowered.library), target, stats, phases)


def peak_megabytes() -> float:
    """Return the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
