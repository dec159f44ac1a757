# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What control flow costs: the time of a network over that of the unrolled trace of the path that an input takes.

The measure is that of Cocktailer (OSDI 2023). Of the inputs that are drawn, five are taken: those whose paths run the fewest
kernels, the most, and a quarter, half and three quarters of the way between. The trace of a path is a network without control flow,
loops unrolled, which computes what the decisions were taken by too, built by the same compiler. ONNX Runtime is compared with
itself in the same way: the network as ``If`` and ``Loop`` over the trace as ONNX; and so is AOTInductor, the network as ``torch.cond``
over the exported trace, on the paths of the fewest and the most kernels, as it takes a minute or two for each. One thread, of which the
CPU time counts; both take turns, each compiler in a process of its own; medians.

    python benchmarks/control_flow.py [--networks NAME ...] [--contenders ours onnxruntime aotinductor] [--rounds N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from shared import geometric_mean, in_brief, loaded, onnxruntime_session
from speed.conditional import conditional_module
from speed.contenders import aligned, direct
from speed.networks import arrays
from speed.static import StaticPath, static_path, torch_module, write_onnx

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.passes import run_passes
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model

_DRAWN, _PATHS = 64, 5
#: For how long one contender runs one input in a round, and for how long between two looks at the clock, which takes part of a microsecond.
_SECONDS, _GROUP_SECONDS = 0.1, 2e-4
Call = Callable[[], Any]
#: By the methods of a network, the names of their columns.
_CONTENDERS = {
    "ours": "over the trace",
    "onnxruntime": "ONNX Runtime, over its trace",
    "aotinductor": "AOTInductor, over its trace (fewest, most)",
}


def chosen(counts: Sequence[int]) -> list[int]:
    """Return the numbers of the inputs whose counts are nearest to the least, a quarter of the way to the most and so on, each once."""
    least, most = min(counts), max(counts)
    wanted = [least + (most - least) * k / (_PATHS - 1) for k in range(_PATHS)]
    return list(dict.fromkeys(min(range(len(counts)), key=lambda i: abs(counts[i] - w)) for w in wanted))


class Network:
    """A network of the zoo, the inputs that are timed, and their traces."""

    def __init__(self, name: str, folder: Path) -> None:
        self.entry, self.folder = zoo.load(name), folder
        self.module = self._loaded(self.entry.model, self.entry.example_inputs, "whole")
        drawn = list(self.entry.inputs(_DRAWN))
        runs = []
        for inputs in drawn:
            self.module(*inputs)
            runs.append(sum(self.module.kernels_run.values()))
        taken = chosen(runs)
        self.inputs = [drawn[k] for k in taken]
        self.parts = [runs[k] / max(runs) for k in taken]
        self.graph = stage_model(self.entry.model, self.entry.example_inputs, phases=Phases())
        self.traces: list[StaticPath] = [static_path(self.graph, inputs, decisions=True) for inputs in self.inputs]

    def _loaded(self, model: Any, inputs: tuple[Any, ...], name: str) -> Any:
        (self.folder / name).mkdir()
        return loaded(model, inputs, self.folder / name)

    def ours(self) -> list[tuple[Call, Call]]:
        """Return of each input the call of the network and that of its trace."""
        pairs = []
        for k, (inputs, trace) in enumerate(zip(self.inputs, self.traces)):
            exported = torch.export.export(torch_module(trace), inputs)
            module = self._loaded(exported, inputs, f"trace_{k}")
            given = [aligned(arrays(x)) for x in inputs]
            pairs.append((direct(self.module, given), direct(module, given)))
        return pairs

    def onnxruntime(self) -> list[tuple[Call, Call]]:
        """Return of each input ONNX Runtime's call of the network and that of its trace."""
        artifact = dycl_tvm.build(self.entry.model, self.entry.example_inputs, verify="off")
        artifact.export_onnx(self.folder / "whole.onnx")
        whole, pairs = onnxruntime_session(self.folder / "whole.onnx", 1), []
        for k, (inputs, trace) in enumerate(zip(self.inputs, self.traces)):
            write_onnx(trace, self.folder / f"trace_{k}.onnx")
            alone = onnxruntime_session(self.folder / f"trace_{k}.onnx", 1)
            pairs.append((_fed(whole, inputs), _fed(alone, inputs)))
        return pairs

    def aotinductor(self) -> list[tuple[Call, Call]]:
        """Return AOTInductor's calls of the network and of its trace, of the inputs with the shortest and the longest path."""
        run_passes(self.graph, ["element_checks"])  # as of the traces, which are made
        whole, pairs = self._by_inductor(conditional_module(self.graph), self.inputs[0], "whole"), []
        chosen = dict.fromkeys((0, len(self.inputs) - 1))
        self.parts = [self.parts[k] for k in chosen]
        for k in chosen:
            alone, inputs = self._by_inductor(torch_module(self.traces[k]), self.inputs[k], f"trace_{k}"), self.inputs[k]
            pairs.append((lambda x=inputs: whole(*x), lambda x=inputs, alone=alone: alone(*x)))
        return pairs

    def _by_inductor(self, module: torch.nn.Module, inputs: tuple[Any, ...], name: str) -> Any:
        exported = torch.export.export(module, inputs)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(self.folder / f"{name}.pt2"))
        return torch._inductor.aoti_load_package(package)


def _nanoseconds(call: Call) -> float:
    """Return the CPU time of a call: the median of groups of calls."""
    call()  # fills the caches
    start = time.perf_counter()
    call()
    group = max(1, round(_GROUP_SECONDS / (time.perf_counter() - start)))
    times: list[float] = []
    while sum(times) * group < _SECONDS * 1e9 or len(times) < 3:
        begin = time.process_time_ns()
        for _ in range(group):
            call()
        times.append((time.process_time_ns() - begin) / group)
    return statistics.median(times)


def _fed(session: Any, inputs: Sequence[torch.Tensor]) -> Call:
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs)}
    return lambda: session.run(None, feed)


def _measure(connection: Any, name: str, of: str, rounds: int) -> None:
    """Send of each input the part of the kernels that its path runs, the nanoseconds of the network and those over the trace's."""
    torch.set_num_threads(1)
    os.environ["DYCL_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        try:
            network = Network(name, Path(folder))
            pairs = getattr(network, of)()
            times: list[list[tuple[float, float]]] = [[] for _ in pairs]
            for _ in range(rounds):
                for found, (whole, trace) in zip(times, pairs):
                    found.append((_nanoseconds(whole), _nanoseconds(trace)))
            connection.send(
                [
                    (part, statistics.median(a for a, _ in t), statistics.median(a / b for a, b in t))
                    for part, t in zip(network.parts, times)
                ]
            )
        except Exception as error:
            connection.send(in_brief(error))


def main() -> None:
    """Run the command: print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(zoo.names()), metavar="NAME", help=f"of {', '.join(zoo.names())}")
    parser.add_argument("--contenders", nargs="*", default=list(_CONTENDERS), choices=list(_CONTENDERS), help="default: all")
    parser.add_argument("--rounds", type=int, default=9, help="how often the contenders take turns (default: 9)")
    given = parser.parse_args()
    unknown = [n for n in given.networks if n not in zoo.names()]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(zoo.names())}")
    context = multiprocessing.get_context("spawn")
    columns = ["network", "kernels run, of the most", "µs", *(_CONTENDERS[c] for c in given.contenders)]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    all_of: dict[str, list[float]] = {c: [] for c in given.contenders}
    for name in given.networks:
        told: dict[str, Any] = {}
        for of in all_of:
            here, there = context.Pipe()
            process = context.Process(target=_measure, args=(there, name, of, given.rounds), daemon=True)
            process.start()
            told[of] = here.recv()
            process.join()
            if not isinstance(told[of], str):
                all_of[of] += [ratio for *_, ratio in told[of]]
        rows = [t for t in told.values() if not isinstance(t, str)]
        parts = ", ".join(f"{100 * part:.0f} %" for part, *_ in rows[0]) if rows else ""
        times = ", ".join(f"{ns / 1e3:.3g}" for _, ns, _ in rows[0]) if rows else ""
        ratios = [t if isinstance(t, str) else ", ".join(f"{ratio:.2f}" for *_, ratio in t) for t in told.values()]
        print(f"| `{name}` | {' | '.join([parts, times, *ratios])} |", flush=True)
    means = [f"{geometric_mean(r):.3f}" if r else "" for r in all_of.values()]
    print(f"| geometric mean | | | {' | '.join(means)} |")


if __name__ == "__main__":
    main()
