# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a profile costs: how much longer runs of a network of the zoo take in C while they are recorded, by how many are timed inside.

A turn is some runs with one input and one thread, by the CPU time of the thread. All ways take turns, each beside a turn that is not
recorded, the one or the other first; what is told is the median of the ratios. "not" is a session without a profile too: it shows the
noise of the machine.

    python benchmarks/profiling.py [--networks act_rnn,sdn_mobilenet] [--rounds N] [--runs N]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen import toolchain
from dycl_tvm.runtime import Module, load

_SOURCE = """
#include <time.h>
#include "dycl/dycl.h"
using Run = decltype(&dycl_run_with);
extern "C" double turn(Run run, DyclSession* session, const DyclValue* values, size_t count, int runs) {
  timespec begun, ended;
  int32_t site = 0;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
  for (int k = 0; k < runs; ++k) {
    if (run(session, values, count, nullptr, &site) != 0) return -1;
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
  return ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / runs;
}
"""
#: Of how many runs one is timed inside; None: the profile chooses.
WAYS: dict[str, int | None] = {"chosen": None, "every=1": 1, "every=2": 2, "every=4": 4, "every=8": 8, "every=16": 16}


def turns_of(module: Module, inputs: list[object], turn: Callable[..., float], runs: int) -> Callable[[], float]:
    """Return what makes one turn, and tells the nanoseconds of a run."""
    held = module._inputs
    held.fill([held.prepared(k, x) for k, x in enumerate(inputs)])
    run = ctypes.cast(module._library.dycl_run_with, ctypes.c_void_p)

    def one() -> float:
        taken = turn(run, module._session, held.values, ctypes.c_size_t(len(inputs)), runs)
        assert taken > 0, f"'{module.name}' failed"
        return taken

    return one


def measure(network: str, rounds: int, runs: int) -> tuple[float, dict[str, float]]:
    """Return the nanoseconds of a run that is not recorded, and how many times longer it is, by the way."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as recordings:
        folder = Path(name)
        source, code = folder / "turn.cc", folder / "turn.so"
        source.write_text(_SOURCE)
        toolchain.find_compiler().run(["-O2", "-shared", "-fPIC", *toolchain.include_flags(), str(source), "-o", str(code)], "compile")
        turn = ctypes.CDLL(str(code)).turn
        turn.restype = ctypes.c_double
        entry = zoo.load(network)
        artifact = dycl_tvm.build(entry.model, entry.example_inputs, target="native", verify="off")
        library = artifact.export_library(folder / "net.so", embed_params=True)
        inputs = [x.numpy() if isinstance(x, torch.Tensor) else x for x in entry.example_inputs]
        modules = {way: load(library, num_threads=1) for way in ("off", "not", *WAYS)}
        for way, every in WAYS.items():
            recordings.enter_context(modules[way].profile(every=every))
        make = {way: turns_of(module, inputs, turn, runs) for way, module in modules.items()}
        alone, longer = [], {way: list[float]() for way in make if way != "off"}
        for number in range(rounds):
            for way, ratios in longer.items():
                taken = {one: make[one]() for one in (("off", way) if number % 2 else (way, "off"))}
                ratios.append(taken[way] / taken["off"])
                alone.append(taken["off"])
        return statistics.median(alone), {way: statistics.median(ratios) for way, ratios in longer.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", default="act_rnn,sdn_mobilenet")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--runs", type=int, default=100, help="of one turn")
    asked = parser.parse_args()
    print(f"{'network':16}{'off, µs':>9}" + "".join(f"{way:>10}" for way in ("not", *WAYS)))
    for network in asked.networks.split(","):
        alone, longer = measure(network, asked.rounds, asked.runs)
        print(f"{network:16}{alone / 1000:9.1f}" + "".join(f"{ratio - 1:10.1%}" for ratio in longer.values()), flush=True)


if __name__ == "__main__":
    main()
