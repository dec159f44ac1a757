# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Each kernel of a prepared network alone: its time, its arithmetic and its bytes.

    python -m speed.roofline FOLDER OUT.json --threads 2

The kernels are those of the artefact, run by its own dispatcher, threads and memory plan: a program is generated that calls the kernel
that its input names in a loop. Arithmetic is that of convolutions, products and attention as they are defined, two operations for
a multiplication with its addition, whatever the algorithm does (Winograd does less); bytes are those of every argument once.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import dycl_tvm
from dycl_tvm import codegen
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    Goto,
    HostInstr,
    KernelCall,
    Leave,
    Program,
    Reg,
    SetReg,
    Site,
    Slot,
    SwitchGoto,
)  # fmt: skip
from dycl_tvm.hcfg.interpreter import run_step
from dycl_tvm.hcfg.nodes import SubDNN, SubDNNCall
from dycl_tvm.hcfg.types import INT
from dycl_tvm.runtime import Module, load

_N, _WHICH, _I, _MORE = Reg(0, "int"), Reg(1, "int"), Reg(2, "int"), Reg(3, "bool")


def loops(program: Program) -> Program:
    """Return a program of two inputs, n and k, that calls the k-th kernel n times, at the first place at which it stands."""
    first: dict[int, KernelCall] = {}
    for call in program.calls():
        first.setdefault(call.kernel, call)
    order = sorted(first)
    size = program.arena_bytes
    moved: dict[tuple[str, int], int] = {}

    def place(slot: Slot) -> Slot:
        """Return a place for what is not in the arena and no weight."""
        nonlocal size
        if slot.space in ("arena", "weight"):
            return slot
        if (slot.space, slot.index) not in moved:
            moved[slot.space, slot.index] = size
            size += -(-slot.type.nbytes // 64) * 64
        return replace(slot, space="arena", index=0, offset=moved[slot.space, slot.index])

    end = 1 + 2 * len(order)
    blocks = [CodeBlock("entry", [SetReg(_I, 0)], SwitchGoto(0, _WHICH, tuple(Goto(1 + 2 * k) for k in range(len(order)))))]
    for k, kernel in enumerate(order):
        call = first[kernel]
        body = replace(call, number=k, args=tuple(map(place, call.args)))
        blocks.append(CodeBlock(f"head{k}", [HostInstr("lt", _MORE, (_I, _N))], CondGoto(k + 1, _MORE, Goto(2 + 2 * k), Goto(end))))
        blocks.append(CodeBlock(f"body{k}", [body, HostInstr("add", _I, (_I, 1))], Goto(1 + 2 * k)))
    blocks.append(CodeBlock("end", [], Leave(0, (_I,))))
    leaves = [{"leaf": 0, "type": "int"}, {"leaf": 1, "type": "int"}]
    structure = {"tuple": [{"tuple": leaves}, {"dict": []}]}
    site = Site({"leaf": 0, "type": "int"}, [INT])
    regs: list[Any] = ["int", "int", "int", "bool"]
    return Program("Kernels", structure, ["n", "k"], [_N, _WHICH], blocks, [site], program.kernels, program.weights, regs, size)


def nanoseconds(module: Module, k: int, milliseconds: float = 4.0) -> float:
    """Return the median nanoseconds of the k-th kernel."""
    n = 1
    while True:
        begin = time.perf_counter_ns()
        module(n, k)
        took = time.perf_counter_ns() - begin
        if took > milliseconds * 1e6 / 2 or n > 10**6:
            break
        n = min(n * 4, 10**6 + 1)
    found = []
    for _ in range(5):
        begin = time.perf_counter_ns()
        module(n, k)
        found.append((time.perf_counter_ns() - begin) / n)
    return statistics.median(found)


def operations(sub: SubDNN) -> list[tuple[int, tuple[int, ...]]]:
    """Return, for each operation of a sub-DNN that multiplies, the floating-point operations and the shape of the result."""
    frame = {p: torch.zeros(p.type.shape, dtype=getattr(torch, p.type.dtype)) for p in sub.params}
    found = []
    for op in sub.ops:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run_step(op, frame)
        shape = next((o.type.shape for o in op.outputs if o is not None), ())
        if counter.get_total_flops():
            found.append((int(counter.get_total_flops()), tuple(shape)))
    return found


def attributed(ops: Sequence[tuple[int, tuple[int, ...]]], calls: Sequence[KernelCall]) -> dict[int, int]:
    """Return floating-point operations by kernel, as far as results tell which kernel computes which operation.

    Kernels stand in the order of the operations; the kernel of an operation is the next one whose output has as many elements,
    with or without the filling of the last channel block. An operation that is part of a larger kernel finds none.
    """
    found: dict[int, int] = {}
    begin = 0
    for flops, shape in ops:
        for n in range(begin, len(calls)):
            if _holds(calls[n].args[-1].type.shape, shape):
                found[calls[n].kernel] = flops
                begin = n + 1
                break
    return found


def _holds(physical: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an array is a tensor of that shape: plain, or with its channels in blocks."""
    if math.prod(physical) == math.prod(shape):
        return True
    if len(physical) != len(shape) + 1 or len(shape) < 3:
        return False
    block = physical[-1]
    return (physical[0], physical[1], *physical[2:-1]) == (shape[0], -(-shape[1] // block), *shape[2:])


def measure(folder: Path, threads: int) -> dict[str, Any]:
    """Return the kernels of one network and its sub-DNNs, each with time, operations and bytes."""
    torch.set_num_threads(1)
    # Kernels alone read what happens to lie in the arena, denormal numbers among it; threads take this setting over.
    torch.set_flush_denormal(True)
    model = torch.load(folder / "model.pt", weights_only=False)
    with (folder / "data.pickle").open("rb") as file:
        inputs = tuple(map(torch.from_numpy, pickle.load(file)["inputs"][0]))
    artifact = dycl_tvm.build(model, inputs, target="native")
    out = folder / "roofline"
    out.mkdir(exist_ok=True)
    whole = load(artifact.export_library(out / "model.so"), artifact.save_params(out / "model.params"), threads)
    whole(*inputs)
    runs = whole.kernels_run
    program, library = artifact._lowered.program, artifact._code.library
    alone = loops(program)
    codegen.link(alone, library, out / "kernels.so", artifact.target.target)
    codegen.save_params(alone, out / "kernels.params")
    module = load(out / "kernels.so", out / "kernels.params", threads)
    calls = {i.kernel: i for b in alone.blocks for i in b.instrs if isinstance(i, KernelCall)}
    ns = {kernel: nanoseconds(module, call.number) for kernel, call in calls.items()}

    steps = [s for b in artifact.hcfg.blocks for s in b.steps if isinstance(s, SubDNNCall)]
    places = Counter(s.callee.name for s in steps)
    flops_of: dict[int, int] = {}
    sub_dnns = []
    for name, sub in {s.callee.name: s.callee for s in steps}.items():
        every = [c for c in program.calls() if c.sub_dnn == name]
        ops = operations(sub)
        flops_of |= attributed(ops, every[: len(every) // places[name]])
        took = sum(ns[c.kernel] for c in every) / places[name]
        what = ", ".join(dict.fromkeys(op.op.split(".")[1] for op in sub.ops))
        sub_dnns.append({"name": name, "operators": what, "flops": sum(f for f, _ in ops), "ns": took})
    kernels = [
        {
            "symbol": program.kernels[n].symbol,
            "runs": runs.get(program.kernels[n].symbol, 0),
            "ns": ns[n],
            "bytes": sum(a.type.nbytes for a in call.args),
            "weight_bytes": sum(a.type.nbytes for a in call.args if a.space == "weight"),
            "flops": flops_of.get(n),
        }
        for n, call in calls.items()
    ]
    kernels.sort(key=lambda k: -k["runs"] * k["ns"])
    return {"kernels": kernels, "sub_dnns": sorted((s for s in sub_dnns if s["ns"] > 0), key=lambda s: -s["ns"])}


def main() -> None:
    """Measure one network and write the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.out.write_text(json.dumps(measure(args.folder, args.threads)))


if __name__ == "__main__":
    main()
