# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Each kernel of a prepared network alone, next to the machine's peaks.

    python -m speed.roofline FOLDER OUT.json --threads 2 --peak GFLOPS --bandwidth GBS

The kernels are those of the artefact, run by its own dispatcher, threads and memory plan: a program is generated that calls the kernel
that its input names in a loop. Arithmetic is counted by sub-DNN (convolutions, products and attention, two operations for a
multiplication with its addition), bytes by kernel (every argument once).
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import time
from collections import Counter
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
#: Rows of a table.
ROWS = 25


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
        body = replace(call, site=k, args=tuple(map(place, call.args)))
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


def operations(sub: SubDNN) -> int:
    """Return the floating-point operations of one call of a sub-DNN."""
    frame = {p: torch.zeros(p.type.shape, dtype=getattr(torch, p.type.dtype)) for p in sub.params}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for op in sub.ops:
            run_step(op, frame)
    return int(counter.get_total_flops())


def measure(folder: Path, threads: int, peak: float, bandwidth: float) -> dict[str, Any]:
    """Return two tables of one network: its kernels, and its sub-DNNs."""
    torch.set_num_threads(1)
    model = torch.load(folder / "model.pt", weights_only=False)
    with (folder / "data.pickle").open("rb") as file:
        inputs = tuple(map(torch.from_numpy, pickle.load(file)["inputs"][0]))
    artifact = dycl_tvm.build(model, inputs, target="native")
    out = folder / "roofline"
    out.mkdir(exist_ok=True)
    whole = load(artifact.export_library(out / "model.so"), artifact.save_params(out / "model.params"), threads)
    whole(*inputs)
    runs = whole.kernels_run
    program, library = artifact._lowered.program, artifact._lowered.library
    alone = loops(program)
    codegen.link(alone, library, out / "kernels.so", artifact.target.target)
    codegen.save_params(alone, out / "kernels.params")
    module = load(out / "kernels.so", out / "kernels.params", threads)
    calls = {i.kernel: i for b in alone.blocks for i in b.instrs if isinstance(i, KernelCall)}
    ns = {kernel: nanoseconds(module, call.site) for kernel, call in calls.items()}

    rows = []
    total = sum(runs.get(k.symbol, 0) * ns[n] for n, k in enumerate(program.kernels) if n in ns)
    for n in sorted(ns, key=lambda n: -runs.get(program.kernels[n].symbol, 0) * ns[n])[:ROWS]:
        kernel = program.kernels[n]
        count, size = runs.get(kernel.symbol, 0), sum(a.type.nbytes for a in calls[n].args)
        rows.append(
            [
                f"`{kernel.symbol}`", kernel.backend, str(count), f"{ns[n] / 1000:.2f}", f"{100 * count * ns[n] / max(total, 1):.0f} %",
                f"{size / 1024:.0f}", f"{size / ns[n]:.1f}", f"{100 * size / ns[n] / bandwidth:.0f} %",
            ]
        )  # fmt: skip
    steps = [s for b in artifact.hcfg.blocks for s in b.steps if isinstance(s, SubDNNCall)]
    places = Counter(s.callee.name for s in steps)
    subs = {s.callee.name: s.callee for s in steps}
    took: Counter[str] = Counter()
    for call in program.calls():
        took[call.sub_dnn] += ns[call.kernel]  # type: ignore[assignment]
    found = []
    for name, sub in subs.items():
        if name in took and took[name] > 0:
            found.append((operations(sub), took[name] / places[name], sub))
    found.sort(key=lambda f: -f[1])
    second = [
        [f"`{sub.name}`", ", ".join(dict.fromkeys(op.op.split(".")[1] for op in sub.ops))[:60], f"{flops / 1e6:.2f}", f"{each / 1000:.2f}",
         f"{flops / each:.1f}", f"{100 * flops / each / peak:.0f} %"]
        for flops, each, sub in found[:ROWS]
    ]  # fmt: skip
    head = ["kernel", "backend", "runs (first input)", "µs", "share", "KiB", "GB/s", "of the memory bandwidth"]
    return {
        "head": head,
        "rows": rows,
        "sub_head": ["sub-DNN", "operators", "MFLOP", "µs", "GFLOP/s", "of the FMA peak"],
        "sub_rows": second,
    }


def main() -> None:
    """Measure one network and write the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", type=float, required=True, help="GFLOP/s")
    parser.add_argument("--bandwidth", type=float, required=True, help="GB/s")
    args = parser.parse_args()
    args.out.write_text(json.dumps(measure(args.folder, args.threads, args.peak, args.bandwidth)))


if __name__ == "__main__":
    main()
