# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Artefacts of the zoo for boards, and the stand-alone C++ program that runs them there."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emulated_boards import Board

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.cross import compiler_for
from dycl_tvm.codegen.machine import machine_of
from dycl_tvm.runtime.structure import flatten_call, unflatten
from dycl_tvm.runtime.trailer import read_trailer
from dycl_tvm.target import resolve_target

REPOSITORY = Path(__file__).parents[3]

#: Small networks with many paths (early exits, a loop until a condition, experts by index), and how many inputs show them.
INPUTS = {"cascade": 8, "act_rnn": 8, "moe_top1": 8}


@dataclass
class Deployed:
    """A network, its files, and what eager gives."""

    entry: zoo.Entry
    artifact: dycl_tvm.Artifact
    library: Path
    params: Path
    inputs: list[tuple[Any, ...]]
    outputs: list[Any]

    @property
    def metadata(self) -> dict[str, Any]:
        """What the library says of itself."""
        return read_trailer(self.library)

    def leaves(self, k: int) -> list[Any]:
        """Return the leaves of input ``k`` in order, tensors as arrays."""
        meta = self.metadata
        pairs = flatten_call(meta["input_structure"], self.inputs[k], {}, meta["input_names"])
        return [leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in pairs]


@functools.cache
def _network(name: str) -> tuple[zoo.Entry, list[tuple[Any, ...]], list[Any]]:
    entry = zoo.load(name)
    inputs = list(entry.inputs(INPUTS[name]))
    with torch.no_grad():
        return entry, inputs, [entry.model(*args) for args in inputs]


def deploy(name: str, board: Board | None, folder: Path, gpu: bool = False) -> Deployed:
    """Build a network for the CPU of a board (or for its GPU) and write its files."""
    entry, inputs, outputs = _network(name)
    target = board.gpu_target if board and gpu else board.target if board else "llvm"
    artifact = dycl_tvm.build(entry.model, entry.example_inputs, target=target)
    library, params = artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")
    return Deployed(entry, artifact, library, params, inputs, outputs)


def compile_program(board: Board | None, units: list[Path], out: Path, model_inside: bool = False) -> Path:
    """Compile a C++ program with the host library, as a user of the board would. A model inside has two of the host's files already."""
    machine = machine_of(resolve_target(board.target if board else "llvm").target)
    compiler = compiler_for(machine, board.glibc if board else "")
    sources = toolchain.runtime_sources()
    host = [sources.source / "host" / name for name in ("module.cc", "trailer.cc", "files.cc")]
    if not model_inside:
        host += [sources.source / "json.cc", sources.source / "sha256.cc"]
    # The same way of compiling as that of libraries: zig then has its C++ library already.
    flags = ["-std=c++17", "-O2", "-fPIC", "-pie", *compiler.link_flags, *toolchain.include_flags()]
    compiler.run([*flags, *map(str, [*units, *host]), "-o", str(out), "-ldl", "-lpthread"], out.name)
    return out


def write_inputs(net: Deployed, path: Path) -> None:
    """Write the inputs of all calls as ``replay`` reads them."""
    numbers = {bool: "<q", int: "<q", float: "<d"}
    with path.open("wb") as file:
        for k in range(len(net.inputs)):
            for leaf in net.leaves(k):
                file.write(struct.pack(numbers[type(leaf)], leaf) if type(leaf) in numbers else np.ascontiguousarray(leaf).tobytes())


def read_outputs(net: Deployed, path: Path) -> list[tuple[int, Any, str]]:
    """Return the return site, the result and the path of each call that ``replay`` wrote."""
    data, at, found, meta = path.read_bytes(), 0, [], net.metadata

    def take(form: str) -> Any:
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    while at < len(data):
        site, count = take("i"), take("I")
        types, leaves = meta["sites"][site]["types"], []
        for k in range(count):
            if take("i") != 0:
                kind = types[k]["type"]
                leaves.append({"int": int, "float": float, "bool": bool}[kind](take("d" if kind == "float" else "q")))
                continue
            shape = [take("q") for _ in range(take("I"))]
            array = np.frombuffer(data, types[k]["dtype"], int(np.prod(shape)), at).reshape(shape)
            at += array.nbytes
            leaves.append(array)
        size = take("I")
        text, at = data[at : at + size].decode(), at + size
        found.append((site, unflatten(meta["sites"][site]["structure"], lambda k, _, leaves=leaves: leaves[k]), text))
    return found
