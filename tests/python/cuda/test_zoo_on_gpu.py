# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks of the zoo built for the GPUs of boards and of a server, and run on the emulated one: on every path what eager does."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from emulation import Driver

import dycl_tvm
from dycl_tvm import compile as compiler
from dycl_tvm import zoo
from dycl_tvm.artifact import Artifact
from dycl_tvm.build import simplify
from dycl_tvm.codegen import generate_code
from dycl_tvm.compare import difference
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model
from dycl_tvm.target import resolve_target

#: Architecture and CUDA version of the board's driver.
DRIVERS = {"sm_62": 10020, "sm_72": 11040, "sm_87": 12060, "sm_90": 12020}


@functools.cache
def staged(name: str) -> tuple[zoo.Entry, object, object]:
    entry, phases = zoo.load(name), Phases(None)
    graph = stage_model(entry.model, entry.example_inputs, phases=phases)
    return entry, graph, simplify(graph, (), phases)


def build(name: str, arch: str) -> tuple[zoo.Entry, Artifact]:
    """Build a network; what does not depend on the target is done once."""
    entry, graph, stats = staged(name)
    target = resolve_target(f"cuda -arch={arch}", "llvm")
    lowered = compiler.lower(graph, target.target)
    code = generate_code(lowered.program, lowered.library)
    return entry, Artifact(graph, lowered, code, target, stats, Phases(None))


@pytest.mark.parametrize("arch", list(DRIVERS))
@pytest.mark.parametrize("name, inputs, least_paths", [("act_rnn", 8, 4), ("moe_top1", 8, 6), ("early_bert_entropy", 16, 4)])
def test_networks_do_what_eager_does_on_all_kinds_of_paths(
    name: str, inputs: int, least_paths: int, arch: str, gpu: Driver, tmp_path: Path
) -> None:
    entry, artifact = build(name, arch)
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    run(entry, gpu.load(artifact, tmp_path), inputs, least_paths)
    assert (gpu.count("cubin"), gpu.count("ptx")) == (1, 0)


def test_a_convolutional_network_with_early_exits(gpu: Driver, tmp_path: Path) -> None:
    entry, artifact = build("sdn_resnet56", "sm_72")
    run(entry, gpu.load(artifact, tmp_path), 12, 4)
    rules = artifact._lowered.stats.families
    assert rules["convolution"] >= 8
    assert not {"fallback", "general_reduction"} & set(rules), rules


def run(entry: zoo.Entry, module: dycl_tvm.Module, inputs: int, least_paths: int) -> None:
    paths = set()
    for k, args in enumerate(entry.inputs(inputs)):
        with torch.no_grad():
            expected = entry.model(*args)
        assert difference(expected, module(*args), rtol=1e-4) is None, f"input {k}"
        paths.add(module.last_path.key())
    assert len(paths) >= least_paths
