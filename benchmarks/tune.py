# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make tune-database``: the measured choices of kernels that come with the package.

    python benchmarks/tune.py [--networks NAME,...] [--cpus x86-64-v4,x86-64-v3] [--minutes N] [--dry-run]

Candidates of each convolution and product of the zoo are measured on this machine, the largest first, with one thread and with all
that the CPU's description has. A workload gets into the database only if the winner beats the cost model's choice by several per cent
in a second measurement of these two, with every number of threads. What was measured is kept in a file of its own, so
that a run that is ended goes on where it was. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tvm
from speed.pool import environment
from speed.units import FULL, make_unit

from dycl_tvm import zoo
from dycl_tvm.backends.network_kernels import Network
from dycl_tvm.backends.partition import partition
from dycl_tvm.backends.registry import active_backends
from dycl_tvm.backends.tir_cpu import database, tuning
from dycl_tvm.backends.tir_cpu.backend import FamilyKernels
from dycl_tvm.backends.tir_cpu.database import Database, key_of
from dycl_tvm.backends.tir_cpu.families.family import Candidate
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense
from dycl_tvm.build import simplify
from dycl_tvm.codegen.machine import runs_here
from dycl_tvm.compile import on_cpu
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.layout import constant_params, plan_layouts
from dycl_tvm.compile.pipeline import legalise
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model
from dycl_tvm.target import resolve_target

#: A choice is kept if it is so many times as fast as the cost model's, in the geometric mean over the numbers of threads and with each of
#: them: what wins by less alone was seen to lose in a network, beside other kernels and with a residual in its epilogue.
GAIN, LEAST_GAIN = 1.08, 1.04
#: Candidates of a workload; rounds of all of them, and of the two best, which are measured several times.
CANDIDATES, ROUNDS, DUEL_ROUNDS, DUELS = 8, 2, 3, 3
_NOWHERE = Path(os.devnull) / "nowhere"


@dataclass
class Task:
    """One workload on one CPU, with its plans, the cost model's choice first."""

    key: str
    work: Conv2D | Dense
    plans: list[Candidate[Any]]
    machine: Machine
    target: Any
    cold: bool

    def fingerprint(self) -> str:
        """Return what tells whether the candidates are those of an earlier run."""
        return hashlib.sha256(repr([(c.name, c.plan.params) for c in self.candidates()]).encode()).hexdigest()[:12]

    def candidates(self) -> list[Candidate[Any]]:
        """Return the cost model's choice, and others worth a measurement."""
        return list(dict.fromkeys([self.plans[0], *tuning.shortlist(self.plans, CANDIDATES)]))


def tasks_of(graph: HCFG, target: Any) -> list[Task]:
    """Return the workloads of a graph that has sub-DNNs, chosen by the cost model alone."""
    sub_dnns, constants = graph.sub_dnns(), constant_params(graph)
    parts = partition(import_sub_dnns(sub_dnns), active_backends(), target, constants)
    network = Network(target, KernelOptions(), constants, on_cpu.weight_bytes(graph))
    kernels = FamilyKernels(network)
    selector, machine = kernels.selector, kernels.selector.machine
    selector.database = Database(_NOWHERE, shipped=_NOWHERE)
    legal = legalise(kernels.prepare(parts.mod), target)
    kernels.choose(legal, [s.name for s in sub_dnns], lambda graphs, wishes: plan_layouts(graph, dict(graphs), wishes))
    return [
        Task(key_of(work, machine, "default", selector.cold), work, plans, machine, target, selector.cold)
        for work, plans in selector.workloads()
        if len(plans) > 1
    ]


def measure(task: Task) -> dict[str, Any]:
    """Return the fastest candidate and how it compares with the cost model's choice."""
    candidates = task.candidates()
    threads = sorted({1, min(task.machine.cores, os.cpu_count() or 1)})
    compiled = tuning.Compiled(candidates, task.machine, task.target, task.cold)
    rows = [compiled.seconds(ROUNDS, n) for n in threads]
    products = [math.prod(column) for column in zip(*rows)]
    best = products.index(min(products))
    record: dict[str, Any] = {"fingerprint": task.fingerprint(), "gains": [1.0] * len(threads)}
    if best:
        # the least of many figures is partly luck: only these two once more
        duels = [[compiled.seconds(DUEL_ROUNDS, n, [0, best]) for n in threads] for _ in range(DUELS)]
        record["gains"] = [statistics.median(duel[k][0] / duel[k][1] for duel in duels) for k in range(len(threads))]
    winner = candidates[best]
    return record | {"family": winner.name, "params": dict(winner.plan.params), "seconds": float(f"{rows[-1][best]:.3g}")}


def worth(record: dict[str, Any]) -> bool:
    """Whether a measured choice gets into the database."""
    gains = record["gains"]
    return statistics.geometric_mean(gains) >= GAIN and min(gains) >= LEAST_GAIN


def collect(networks: Sequence[str], cpus: Sequence[str], work: Path) -> list[Task]:
    """Return the workloads of networks on all CPUs, each once, those first that are the most work together.

    Networks are those that ``make bench`` has prepared in its folder ``work``, or are prepared there now.
    """
    found: dict[str, Task] = {}
    weight: dict[str, float] = {}
    for number, name in enumerate(networks):
        tell(f"[{number + 1}/{len(networks)}] {name}: workloads")
        unit = make_unit(work / name, "network", FULL, 600.0)
        record = unit.record() or unit.run("", environment(work, FULL.threads))
        if record["error"] is not None:
            sys.exit(f"{name} cannot be prepared: {record['error']}")
        with (unit.folder / "data.pickle").open("rb") as file:
            inputs = tuple(map(torch.from_numpy, pickle.load(file)["inputs"][0]))
        graph = stage_model(torch.load(unit.folder / "model.pt", weights_only=False), inputs, phases=Phases())
        simplify(graph, (), Phases())
        for cpu in cpus:
            for task in tasks_of(graph, resolve_target({"kind": "llvm", "mcpu": cpu}).target):
                found.setdefault(task.key, task)
                weight[task.key] = weight.get(task.key, 0.0) + task.work.macs / 1e6
    return sorted(found.values(), key=lambda t: -weight[t.key])


def tell(line: str) -> None:
    """Say how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def run(tasks: Sequence[Task], measured: Path, out: Path, minutes: float) -> None:
    """Measure what is not measured yet, and write the database after each."""
    state: dict[str, Any] = json.loads(measured.read_text()) if measured.exists() else {}
    todo = [t for t in tasks if state.get(t.key, {}).get("fingerprint") != t.fingerprint()]
    tell(f"{len(tasks)} workloads, {len(todo)} to measure")
    begin = time.monotonic()
    for number, task in enumerate(todo):
        spent = time.monotonic() - begin
        if spent > 60 * minutes:
            tell(f"{len(todo) - number} are left")
            break
        try:
            state[task.key] = measure(task)
        except tvm.error.TVMError as error:
            tell(f"{task.key}: not measured: {str(error).splitlines()[-1]}")
            continue
        gains = ", ".join(f"{g:.2f}" for g in state[task.key]["gains"])
        tell(f"[{number + 1}/{len(todo)}, {spent / 60:.0f} min] {gains} {'kept' if worth(state[task.key]) else '-'} {task.key}")
        measured.parent.mkdir(parents=True, exist_ok=True)
        measured.write_text(json.dumps(state))
    entries = {t.key: state[t.key] for t in tasks if t.key in state and worth(state[t.key])}
    database.write_choices(out, {key: {name: e[name] for name in ("family", "params", "seconds")} for key, e in entries.items()})
    out.chmod(0o644)  # it comes with the package
    tell(f"wrote {out}: {len(entries)} choices")


def main() -> None:
    """Measure the zoo and write the database."""
    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(description="Measure the choices of kernels that come with the package.")
    parser.add_argument("--networks", help="names with commas between (default: the whole zoo)")
    parser.add_argument("--cpus", default="x86-64-v4,x86-64-v3", help="CPUs of LLVM; those are taken that this machine can stand for")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no measurement is begun (default 60)")
    parser.add_argument("--work", type=Path, default=root / "build" / "bench", help="where make bench prepares networks")
    parser.add_argument("--measured", type=Path, default=root / "build" / "tune" / "measured.json", help="what was measured so far")
    parser.add_argument("--out", type=Path, default=database.SHIPPED)
    parser.add_argument("--dry-run", action="store_true", help="only count the workloads")
    args = parser.parse_args()
    cpus = [c for c in args.cpus.split(",") if runs_here(resolve_target({"kind": "llvm", "mcpu": c}).target)]
    tasks = collect(args.networks.split(",") if args.networks else zoo.names(), cpus, args.work)
    if args.dry_run:
        tell(f"{len(tasks)} workloads, {sum(len(t.candidates()) for t in tasks)} candidates")
        return
    run(tasks, args.measured, args.out, args.minutes)


if __name__ == "__main__":
    main()
