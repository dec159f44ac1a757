# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A network of the zoo, compiled, with what eager does on its inputs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen.shipped import shipped_path
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Switch

#: The source file and the name of a function.
Function = tuple[str, str]


@dataclass
class Eager:
    """One call in eager: what it gave, in which line each function returned last, and the convolutions that ran."""

    inputs: tuple[Any, ...]
    output: Any
    returns: dict[Function, int]
    convolutions: int


@dataclass
class Compiled:
    """A network, its artefact, the artefact loaded, and eager on its inputs."""

    entry: zoo.Entry
    artifact: dycl_tvm.Artifact
    folder: Path
    module: dycl_tvm.Module
    calls: list[Eager] = field(default_factory=list)


def compile_entry(entry: zoo.Entry, folder: Path, inputs: int) -> Compiled:
    """Build, write and load a network, and run it in eager."""
    artifact = dycl_tvm.build(entry.model, entry.example_inputs)
    library, params = artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")
    calls = [run_eager(entry.model, args) for args in entry.inputs(inputs)]
    return Compiled(entry, artifact, folder, dycl_tvm.load(library, params, num_threads=1), calls)


def run_eager(model: nn.Module, args: tuple[Any, ...]) -> Eager:
    """Run a network and watch it."""
    convolutions = {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    with torch.no_grad(), zoo.executed_modules(model) as executed, _returns() as returns:
        output = model(*args)
    return Eager(args, output, returns, sum(name in convolutions for name in executed))


@contextmanager
def _returns() -> Iterator[dict[Function, int]]:
    lines: dict[CodeType, int] = {}
    found: dict[Function, int] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "return":
            lines.pop(frame.f_code, None)  # in order of the last return
            lines[frame.f_code] = frame.f_lineno

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)
        found.update({(shipped_path(code.co_filename), code.co_name): line for code, line in lines.items()})


def passed_blocks(graph: HCFG, args: tuple[Any, ...]) -> tuple[list[Block], list[int]]:
    """Return the blocks that the reference interpreter passes, in order, and its choices at branches and switches."""
    by_name = {block.name: block for block in graph.blocks}
    assert len(by_name) == len(graph.blocks)
    _, path = interpret(graph, list(args))
    blocks, choices = [graph.entry], []
    for name, edge in path:
        block = by_name[name]
        assert block is blocks[-1]
        if isinstance(block.terminator, Branch):
            choices.append(1 - edge)  # edge 0 is that of True
        elif isinstance(block.terminator, Switch):
            choices.append(edge)
        blocks.append(block.edges()[edge].target)
    return blocks, choices


def kernel_runs(artifact: dycl_tvm.Artifact, blocks: list[Block]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each kernel runs on a way through these blocks, and how many kernels each sub-DNN runs."""
    program = artifact._lowered.program
    calls = {code.name: [i for i in code.instrs if isinstance(i, dycl_tvm.compile.program.KernelCall)] for code in program.blocks}
    on_path = [call for block in blocks for call in calls[block.name]]
    return Counter(program.kernels[call.kernel].symbol for call in on_path), Counter(call.sub_dnn for call in on_path)
